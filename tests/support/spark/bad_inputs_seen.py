"""The messages that users get for bad inputs, as `test_bad_inputs` has recorded them.

The record is tests/golden/bad-inputs.json; a report to read is made of it in .krishiv/reports:

    ./run python tests/support/spark/bad_inputs_seen.py
"""

import json
import re
import socket
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bad_input_cases import GROUPS
from bad_inputs import Case, Desk
from wheels import ROOT

FILE = ROOT / "tests" / "golden" / "bad-inputs.json"
REPORT = ROOT / ".krishiv" / "reports" / "bad-inputs.md"
RECORDED: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONG = re.compile(r"\b(?:(?=\d*[a-f])[0-9a-f]{10,64}|\d{17,20})\b")
_TIME = re.compile(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z")
_SEEN = re.compile(r"""(['"]seen['"]: \{)[^}]+""")
_SOON_S, _LATER_S = 4.0, 8.5


def replace_names(desk: Desk, line: str) -> str:
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


def remove_spark_prefix(line: str) -> str:
    """Return the rest of a line without Spark's prefix, which differs between versions."""
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
    """Return the facts about a case in the table itself."""
    (group,) = (group for group, cases in GROUPS.items() if case in cases)
    kind = "batch" if case.batch else "stream"
    return {
        "group": group,
        "query": f"{kind} from krishiv-{case.source} to krishiv-{case.sink}",
        "kept": _kept(case),
        "cure": case.cure,
    }


def _kept(case: Case) -> str:
    """Return the values that `examine` compares: the target before and after, and the rows."""
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


_TITLE = "# Bad inputs"
_HEAD = """
Each of these was tried on a real Spark, with a real broker where one is named: a query that copies
orders, with one mistake. The report shows the first line of the message, how soon it came, what was
kept, and the cure. Paths, names, ids and times are replaced by readable ones; Spark shows a
traceback after the line. The same query without the mistake then brought each row once. Times are
orders of magnitude on a machine with two cores where Spark runs already.
"""
_WIDTH = 80


def report() -> str:
    """Return the record as a page, with a section for each bad input."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from (_TITLE, "", *_wrapped(_HEAD.strip()))
    errors = (ROOT / "docs" / "errors.md").read_text()
    classes = set(re.findall(r"^## (\w+)$", errors, re.MULTILINE))
    group = ""
    for name, case in RECORDED.items():
        if case["group"] != group:
            group = case["group"]
            yield from ("", f"## {group}")
        yield from ("", f"### {name[0].upper()}{name[1:]}", "")
        yield from _wrapped(f"A {case['query']}; {case['soon']}:")
        yield from ("", "```text", *_wrapped(case["line"]), "```", "")
        yield from _wrapped(f"Kept: {case['kept']}. Cure: {case['cure']}.{_link(case, classes)}")


def _link(case: dict[str, str], classes: set[str]) -> str:
    named = [word for word in re.findall(r"\b([A-Za-z]+): ", case["line"]) if word in classes]
    return f" See [{named[0]}](../../docs/errors.md#{named[0].lower()})." if named else ""


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(report())
    print(REPORT)
