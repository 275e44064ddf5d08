"""The files that are published: built from what git knows, and checked by the index's tools."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

from release.steps import Refused, output

__all__ = ["ROOT", "build", "check_files", "clean_copy", "declared", "version"]

ROOT = Path(__file__).parents[1]
_DECLARED = re.compile(r'^version = "(.*)"$', re.MULTILINE)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def version() -> str:
    """The version that this checkout would be published as.

    Raises:
        Refused: If it is none, if the changelog does not begin with it or with "Unreleased", or if
            the commit has a tag of another one.
    """
    number = declared((ROOT / "pyproject.toml").read_text())
    newest, *_ = _HEADING.findall((ROOT / "CHANGELOG.md").read_text())
    if newest != "Unreleased" and newest.split()[0] != number:
        raise Refused(f"CHANGELOG.md begins with {newest!r}, and pyproject.toml says {number}")
    tags = [tag for tag in _git("tag", "--points-at", "HEAD").split() if tag.startswith("v")]
    if tags and tags != [f"v{number}"]:
        raise Refused(f"the commit has the tags {tags}, and pyproject.toml says {number}")
    return number


def declared(text: str) -> str:
    """The one version in a ``pyproject.toml``.

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


def _git(*arguments: str) -> str:
    """What git says of this checkout; nothing where there is no git, as in a copy of the files."""
    done = subprocess.run(  # noqa: S603  git
        ["git", *arguments],  # noqa: S607  of the path
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout


def clean_copy(target: Path) -> Path:
    """Copy the files that are, or will be, in the repository; links stay links."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    if not any(listed):
        raise Refused("a release is made from a checkout of git")
    for name in filter(None, listed):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def build(source: Path, dist: Path) -> Path:
    """Build the source distribution, and from that the wheel, without the network."""
    output([sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source])
    return dist


def check_files(dist: Path) -> None:
    """Let the tools of the index look at them.

    Raises:
        Refused: If the description cannot be shown, or a wheel has files that do not belong there.
    """
    files = sorted(dist.iterdir())
    output([sys.executable, "-m", "twine", "check", "--strict", *files])
    output([sys.executable, "-m", "check_wheel_contents", *dist.glob("*.whl")])
