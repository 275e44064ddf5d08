"""The files that are published: built from a commit, and checked by the index's tools."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from release.steps import Refused, output

__all__ = ["ROOT", "build", "check_contents", "check_files", "clean_copy", "declared", "version"]

ROOT = Path(__file__).parents[1]
_DECLARED = re.compile(r'^version = "(.*)"$', re.MULTILINE)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_GENERATED = re.compile(
    r"[^/]+/PKG-INFO|[^/]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt)"
)
_SCRIPTS = "krishiv_spark/spark/fast_start"  # pyproject.toml: shared-scripts
_SHOWN = 10
"""Names of files in an error."""


def version() -> str:
    """Return the version that this checkout would be published as.

    Raises:
        Refused: If it is none, if the changelog does not begin with it or with "Unreleased", if
            the commit has a tag of another one, or if the checkout has files or changes that are
            not committed.
    """
    _refuse_changes()
    number = declared((ROOT / "pyproject.toml").read_text())
    newest, *_ = _HEADING.findall((ROOT / "CHANGELOG.md").read_text())
    if newest != "Unreleased" and newest.split()[0] != number:
        raise Refused(f"CHANGELOG.md begins with {newest!r}, and pyproject.toml says {number}")
    tags = [tag for tag in _git("tag", "--points-at", "HEAD").split() if tag.startswith("v")]
    if tags and tags != [f"v{number}"]:
        raise Refused(f"the commit has the tags {tags}, and pyproject.toml says {number}")
    return number


def declared(text: str) -> str:
    """Return the only version in a ``pyproject.toml``.

    Raises:
        Refused: If there is none, or several, or it is not written as versions are (PEP 440).
    """
    found = _DECLARED.findall(text)
    try:
        if [str(Version(number)) for number in found] != found or len(found) != 1:
            raise Refused(f"pyproject.toml has the versions {found}: one is needed, in normal form")
    except InvalidVersion as invalid:
        raise Refused(f"pyproject.toml: {invalid}") from None
    return found[0]


def _refuse_changes() -> None:
    """Refuse a checkout whose files are not those of its commit; ignored files do not count."""
    changed = _git("status", "--porcelain", "--untracked-files=all", "-z").split("\0")
    if names := [each for each in changed if each]:
        shown = ", ".join(names[:_SHOWN])
        more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise Refused(
            f"the checkout has what is not committed ({shown}{more}): a release is made from a "
            "commit, so commit it, remove it, or have git ignore it"
        )


def _git(*arguments: str) -> str:
    """Return the output of git about this checkout; empty without git, as in a copy."""
    return _run_git(*arguments).decode()


def _run_git(*arguments: str) -> bytes:
    done = subprocess.run(  # noqa: S603  git
        ["git", *arguments],  # noqa: S607  of the path
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    return done.stdout


def clean_copy(target: Path) -> Path:
    """Unpack the files of the commit, and no other file of the checkout; links stay links.

    Raises:
        Refused: If there is no commit.
    """
    archive = _run_git("archive", "--format=tar", "HEAD")
    if not archive:
        raise Refused("a release is made from a checkout of git")
    with tarfile.open(fileobj=io.BytesIO(archive)) as unpacked:
        unpacked.extractall(target, filter="data")
    return target


def build(source: Path, dist: Path) -> Path:
    """Build the source distribution, and from that the wheel, without the network."""
    output([sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source])
    return dist


def check_contents(dist: Path, source: Path) -> None:
    """Compare the files of the source distribution and of the wheel with those of the commit.

    Args:
        dist: The folder that `build` has filled.
        source: The folder that `clean_copy` has filled, by which links are resolved.

    Raises:
        Refused: If one of them has a file that is neither in the commit nor made by the build.
    """
    listed = set(_git("ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0"))
    for path in sorted(dist.iterdir()):
        names = _list_sdist(path) if path.suffix == ".gz" else _list_wheel(path)
        unknown = sorted(name for name in names if _resolve(source, name) not in listed)
        if unknown:
            shown = ", ".join(unknown[:_SHOWN])
            raise Refused(f"{path.name} has {len(unknown)} files that git does not know: {shown}")


def _list_sdist(path: Path) -> Iterator[str]:
    """Yield the names of files as the repository has them."""
    with tarfile.open(path) as archive:
        for member in archive:
            if not member.isdir() and not _GENERATED.fullmatch(member.name):
                yield member.name.partition("/")[2]


def _list_wheel(path: Path) -> Iterator[str]:
    """Yield the names of files as the repository has them."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            head, _, rest = name.partition("/")
            if head.endswith(".dist-info"):
                if not _GENERATED.fullmatch(name):
                    yield rest.removeprefix("licenses/")
            elif head.endswith(".data"):
                yield f"{_SCRIPTS}/{rest.removeprefix('scripts/')}"
            else:
                yield name if rest else f"discovery/{name}"


def _resolve(source: Path, name: str) -> str:
    """Return the path to which links lead, such as ``sinks/base.py``, below a source tree."""
    found = (source / name).resolve()
    return str(found.relative_to(source.resolve())) if found.exists() else name


def check_files(dist: Path) -> None:
    """Let the tools of the index look at them.

    Raises:
        Refused: If the description cannot be shown, or a wheel has files that do not belong there.
    """
    files = sorted(dist.iterdir())
    output([sys.executable, "-m", "twine", "check", "--strict", *files])
    output([sys.executable, "-m", "check_wheel_contents", *dist.glob("*.whl")])
