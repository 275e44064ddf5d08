"""The wheel as somebody has it who had nothing: an empty environment, the first script."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
from pathlib import Path

from typing_extensions import Self

from release.artefacts import ROOT
from release.steps import Refused, output

__all__ = ["Trial", "first_example", "sbom"]

_WORK = ROOT / ".krishiv" / "release"
_EXAMPLE = re.compile(r"```python\n((?:(?!```).)*)```\s+```text\n(.*?)```", re.DOTALL)
_IMPORTS = """
import krishiv_spark
from krishiv_spark.formats import every_format
assert len(list(every_format())) > 1
assert "site-packages" in krishiv_spark.__file__, krishiv_spark.__file__
"""


class Trial:
    """An environment that lasts for a ``with``, as it is after ``activate``.

    Attributes:
        python: Its interpreter.

    Args:
        line: Of PySpark, such as "4.3".
    """

    def __init__(self, line: str) -> None:
        self._line = line
        self._home = _WORK / f"spark-{line}"
        self.python = self._home / "bin" / "python"

    def __enter__(self) -> Self:
        shutil.rmtree(self._home, ignore_errors=True)
        _uv("venv", "--python", sys.executable, self._home)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def packages(self) -> Path:
        """The folder in which packages are installed."""
        return next(self._home.glob("lib/python*/site-packages"))

    def install(self, wheel: Path, *, extras: bool = False) -> None:
        """Install the wheel and its dependencies, with this line of PySpark; none in conflict.

        Versions are those of ``requirements/``, and files have the hashes that are there. Without
        the network, the files that uv has cached for other environments suffice.

        Args:
            wheel: A file.
            extras: Whether to install the dependencies of all extras too.
        """
        into = ("--python", self.python)
        locked = ROOT / "requirements" / f"spark-{self._line}.txt"
        known = ("--constraints", locked, "--build-constraints", locked)
        named = f"{wheel}[{','.join(_extras())}]" if extras else str(wheel)
        wanted = ("pip", "install", *into, *known, named, f"pyspark=={self._line}.*")
        try:
            _uv(*wanted)
        except Refused as refused:
            try:
                _uv(*wanted, "--offline")
            except Refused:
                raise refused from None
        _uv("pip", "check", *into)

    def imports(self) -> None:
        """Import what everybody does, from this environment and not from the repository."""
        output([self.python, "-c", _IMPORTS], cwd=self._home, env=self._activated())
        output([self._home / "bin" / "krishiv-spark", "--help"], env=self._activated())

    def example(self, folder: Path) -> None:
        """Run the first script of the README in a folder that is made for it.

        Raises:
            Refused: If it fails, or prints something else than the README says.
        """
        code, wanted = first_example((ROOT / "README.md").read_text())
        folder.mkdir()
        printed = output([self.python, "-c", code], cwd=folder, env=self._activated())
        if printed != wanted:
            raise Refused(f"the README's first script printed\n{printed}\ninstead of\n{wanted}")

    def _activated(self) -> dict[str, str]:
        """Return the variables after ``activate``, without the environment of this process."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV"))
        }
        path = f"{self._home / 'bin'}{os.pathsep}{kept['PATH']}"
        return {**kept, "PATH": path, "VIRTUAL_ENV": str(self._home), "SPARK_LOCAL_IP": "127.0.0.1"}


def _extras() -> list[str]:
    given = importlib.metadata.metadata("krishiv-spark").get_all("Provides-Extra")
    assert given
    return given


def first_example(readme: str) -> tuple[str, str]:
    """Return the first script that is followed by its output, and that output.

    Raises:
        Refused: If there is none.
    """
    found = _EXAMPLE.search(readme)
    if found is None:
        raise Refused("the README has no script that is followed by what it prints")
    return found[1], found[2]


def sbom(python: Path, target: Path) -> None:
    """List the parts of an environment in CycloneDX's form, which its schema has to take."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", python]
    described = ["--pyproject", ROOT / "pyproject.toml", "--mc-type", "library"]
    form = ["--output-format", "JSON", "--output-reproducible", "--validate"]
    output([*command, *described, *form, "--output-file", target])


def _uv(*arguments: str | Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise Refused("uv is not on the path: run this as ./run release-check")
    output([uv, *arguments])
