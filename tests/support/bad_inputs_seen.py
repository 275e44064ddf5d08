"""What users have seen of bad inputs, as docs/bad-inputs.json keeps it for docs/bad-inputs.md."""

import json
import re
import socket
from pathlib import Path
from typing import Any

from bad_input_cases import GROUPS
from bad_inputs import Case, Desk
from wheels import ROOT

FILE = ROOT / "docs" / "bad-inputs.json"
RECORDED: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONG = re.compile(r"\b(?:(?=\d*[a-f])[0-9a-f]{10,64}|\d{17,20})\b")
_TIME = re.compile(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z")
_SEEN = re.compile(r"""(['"]seen['"]: \{)[^}]+""")
_SOON_S, _LATER_S = 4.0, 8.5


def shown(desk: Desk, line: str) -> str:
    """A line with the places and names of a reader, instead of those of this run."""
    said = {str(desk.folder): "/data", desk.name: "orders", socket.gethostname(): "host"}
    if desk.cluster is not None:
        said |= dict.fromkeys(
            (desk.cluster.bootstrap, desk.cluster.secure.bootstrap), "broker:9092"
        )
    for here, there in said.items():
        line = line.replace(here, there)
    line = _LONG.sub("9f2c", _UUID.sub("5a0c...", line))
    line = _SEEN.sub(r"\1...", _TIME.sub("2026-11-24T09:00:00.123Z", line))
    return " ".join(line.split())


def ours(line: str) -> str:
    """What is left of a line without the words that Spark puts before it, which differ."""
    return line[max(line.find("krishiv_spark."), 0) :]


def record(file: Path, case: Case, seconds: float, line: str) -> None:
    """Keep what a case has shown, in the order of the table."""
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept[case.name] = {**facts(case), "soon": _soon(seconds), "line": line}
    ordered = {name: kept[name] for name in names() if name in kept}
    file.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")


def names() -> list[str]:
    """Of all cases."""
    return [case.name for cases in GROUPS.values() for case in cases]


def facts(case: Case) -> dict[str, str]:
    """What the table itself says of a case."""
    (group,) = (group for group, cases in GROUPS.items() if case in cases)
    kind = "batch" if case.batch else "stream"
    return {
        "group": group,
        "query": f"{kind} from krishiv-{case.source} to krishiv-{case.sink}",
        "kept": _kept(case),
        "cure": case.cure,
    }


def _kept(case: Case) -> str:
    """What `examine` compares: the target before and after, and the mended query's rows."""
    if not case.begun:
        return "nothing was written"
    if case.batch:
        return "what was there stays, and nothing was added"
    return "what was written before stays, and the mended query goes on after it"


def _soon(seconds: float) -> str:
    """The order of magnitude: machines differ, and how busy they are."""
    if seconds < _SOON_S:
        return "within a second or two"
    return "after five seconds or so" if seconds < _LATER_S else "after ten seconds or so"
