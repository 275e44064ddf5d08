"""Makes what would be published and tries it: ``python -m release``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from release.artefacts import ROOT, build, check_contents, check_files, clean_copy, version
from release.audit import audit
from release.licences import check_licences
from release.steps import Refused, step
from release.trial import Trial, sbom

__all__ = ["main"]

LINES = ("4.3", "4.2", "4.1", "4.0")
"""Of PySpark, the newest first."""


def main(arguments: list[str]) -> int:
    """Run all steps; the first one that fails says why, and ends it.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="./run release-check", description=__doc__)
    parser.add_argument("--all", action="store_true", help="on each line of PySpark")
    parser.add_argument("--spark", choices=LINES, default=LINES[0], help="on one of them")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where it is kept")
    given = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="krishiv-release-") as folder:
            made = _made(Path(folder))
            lines = LINES if given.all else (given.spark,)
            notes = [note for line in lines for note in _tried(made, line, Path(folder))]
            _kept(made, given.dist)
            print(*dict.fromkeys(notes), sep="\n")
    except Refused as refused:
        print(f"REFUSED: {refused}", file=sys.stderr)
        return 1
    return 0


def _made(folder: Path) -> Path:
    """Build the two files that would be published into a folder."""
    with step("version"):
        number = version()
    source = clean_copy(folder / "source")
    with step(f"build of {number}, from the files of the commit"):
        dist = build(source, folder / "dist")
    with step("files that git does not know"):
        check_contents(dist, source)
    with step("twine check, check-wheel-contents"):
        check_files(dist)
    return dist


def _tried(dist: Path, line: str, folder: Path) -> list[str]:
    """Try the wheel in an environment of its own, and return lines for the summary."""
    (wheel,) = dist.glob("*.whl")
    with Trial(line) as trial:
        with step(f"an empty environment with PySpark {line}"):
            trial.install(wheel)
        with step("imports and the command"):
            trial.imports()
        with step("the first example of the README"):
            trial.example(folder / f"example-{line}")
        if not list(dist.glob("*.cdx.json")):
            with step("SBOM"):
                sbom(trial.python, dist / f"krishiv-spark-{version()}.cdx.json")
        with step("licences, with all extras"):
            trial.install(wheel, extras=True)
            found = check_licences(trial.python)
        with step("known vulnerabilities, with all extras"):
            audited = audit(trial.packages)
    return [f"licences: {len(found)} packages with PySpark {line}", audited]


def _kept(made: Path, dist: Path) -> None:
    dist.mkdir(parents=True, exist_ok=True)
    for path in made.iterdir():
        shutil.copyfile(path, dist / path.name)
        print(dist / path.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
