"""Mistakes of users: the first line states the fault, the value and the correction; no row is lost.

With ``KRISHIV_BAD_INPUTS`` = a file, the messages are recorded there, and a report shows them:

    KRISHIV_BAD_INPUTS=tests/golden/bad-inputs.json ./run test tests/spark/test_bad_inputs.py ./run
    python tests/support/spark/bad_inputs_seen.py
"""

import os
import re
import sys
import time
from pathlib import Path

import pytest
from bad_input_cases import CASES, KAFKA
from bad_inputs import ROWS, SECRET, Case, Desk, check_soon
from bad_inputs_seen import RECORDED, record, remove_spark_prefix, replace_names

from krishiv_spark.kafka.dev import ACLS, open_cluster

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

HEADING = re.compile(r"\s*An exception was thrown from the Python worker[^\n]*\n\s*")
"""The text that Spark puts before the error of a task."""


EACH = 6
"""Of so many cases one runs in ./run test. What an option or a column is refused for is tried
without Spark too; what is tried here alone is the way of its words to the user, one for all."""


def some(cases: list[Case]) -> list[object]:
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.long] if number % EACH else [])
        for number, case in enumerate(cases)
    ]


@pytest.fixture(scope="module")
def cluster():
    settings = {**ACLS, "auto.create.topics.enable": "false"}
    with open_cluster(secure=True, settings=settings) as found:
        yield found


@pytest.mark.parametrize("case", some(CASES))
def test_the_first_line_says_it_and_nothing_is_lost(spark, tmp_path, case):
    examine(Desk(spark, tmp_path), case)


@pytest.mark.parametrize("case", some(KAFKA))
def test_so_it_does_of_kafka(spark, tmp_path, cluster, case):
    examine(Desk(spark, tmp_path, cluster), case)


def examine(desk: Desk, case: Case) -> None:
    desk.add_orders(case.source)
    if case.begun:
        desk.run(case.mended())
        desk.add_orders(case.source)
    mend = case.harm(desk)
    held, files = desk.ids(case.sink), desk.files()
    text, took_s = desk.refusal(case)
    first = HEADING.sub("", text).partition("\n")[0]
    if sys.version_info >= (3, 11):  # before, there are no notes of errors
        assert re.search(case.says, first), text
        compare(case, took_s, replace_names(desk, first))
    assert re.search(case.says, text), text
    assert "krishiv_spark." not in first or "Traceback" in text.removeprefix(first)
    assert SECRET not in text
    if "password" not in case.name:
        assert "see its password" not in first, "which nobody has looked at"
    assert desk.ids(case.sink) == held
    assert desk.files() == files
    mend()
    begun_s = time.monotonic()
    desk.run(case.mended())
    check_soon(took_s, case.within_s, time.monotonic() - begun_s)
    goes_on(desk, case)


def goes_on(desk: Desk, case: Case) -> None:
    """The mended query has brought each row once; a batch brings all that there is."""
    found = desk.ids(case.sink)
    wanted = list(range(desk.rows))
    if case.batch and case.begun:
        wanted = sorted([*range(ROWS), *wanted])
    assert found is None or found == wanted


def compare(case: Case, took_s: float, line: str) -> None:
    """Compare with the record, or record it."""
    if target := os.environ.get("KRISHIV_BAD_INPUTS"):
        record(Path(target), case, took_s, line)
    else:
        assert case.varies or remove_spark_prefix(line) == remove_spark_prefix(
            RECORDED[case.name]["line"]
        )
