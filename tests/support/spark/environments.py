"""An environment as users send it with a job: what docs/deploy.md has them do, offline."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

LEFT_OUT = {"pyspark", "py4j", "pyiceberg-core"}
"""Spark brings the first two; the other one is large, and used by Iceberg's transforms only."""


def packed_environment(wheel: Path, folder: Path) -> Path:
    """An archive of a virtual environment with the wheel and what it needs."""
    home = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in _needed("krishiv-spark"):
        _copy(metadata.distribution(name), packages)
    made = folder / "environment.tar.gz"
    tar = ["tar", "--exclude=pyspark", "-C", str(home), "-I", "gzip -1", "-cf", str(made), "."]
    subprocess.run(tar, check=True)
    shutil.rmtree(home)
    return made


def _needed(name: str) -> set[str]:
    """Return the requirements of a distribution, recursively, without extras."""
    found, waiting = set(), {name}
    while waiting:
        lines = metadata.distribution(waiting.pop()).requires or ()
        named = {re.match(r"[\w.-]+", line)[0].lower() for line in lines if "extra ==" not in line}
        waiting |= {one for one in named - LEFT_OUT - found if _is_installed(one)}
        found |= waiting
    return found


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False  # for another system, or another Python
    return True


def _copy(distribution: metadata.Distribution, packages: Path) -> None:
    for file in distribution.files or ():
        source = Path(distribution.locate_file(file))
        if ".." not in file.parts and source.is_file():
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:  # another file system, or there already
                shutil.copy2(source, target)
