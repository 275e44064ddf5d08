"""The packages that users install: the wheel, and the one built from the source distribution."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def list_tracked_files() -> list[str]:
    """All files and links that are, or will be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="session")
def plain_clone(tmp_path_factory) -> Path:
    """The repository as somebody has it who has cloned it and installed nothing."""
    clone = tmp_path_factory.mktemp("clone") / "krishiv-spark"
    for name in list_tracked_files():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
    return clone


@pytest.fixture
def committed_clone(plain_clone, tmp_path) -> Path:
    """A copy of the repository in which all files are committed, to be changed by one test."""
    clone = tmp_path / "committed" / "krishiv-spark"
    shutil.copytree(plain_clone, clone, symlinks=True)
    run_git(clone, "init", "--quiet")
    commit_all(clone)
    return clone


def commit_all(clone: Path) -> None:
    run_git(clone, "add", "--all")
    author = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgSign=false")
    run_git(clone, *author, "commit", "--quiet", "--message", "x")


def run_git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def build_distribution(source: Path, kind: str, folder: Path) -> Path:
    """The one file that a build of a source tree makes, without the network."""
    done = subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", folder, source],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="session")
def wheel(plain_clone, tmp_path_factory) -> Path:
    return build_distribution(plain_clone, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def wheel_of_sdist(plain_clone, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build_distribution(plain_clone, "sdist", folder)) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (tree,) = (folder / "unpacked").iterdir()
    return build_distribution(tree, "wheel", tmp_path_factory.mktemp("wheel-of-sdist"))


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """The wheel, unpacked into a folder: all that an installer does with pure Python."""
    target = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target
