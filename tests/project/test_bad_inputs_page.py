"""The report on bad inputs: every case of the table, as a reader may see it."""

import re
import socket
from pathlib import Path

import pytest
from bad_input_cases import GROUPS
from bad_inputs import SECRET
from bad_inputs_seen import RECORDED, facts, names, report
from wheels import ROOT

PAGE = report()
CASES = [case for cases in GROUPS.values() for case in cases]
OF_THIS_MACHINE = ("/tmp", "/dev/shm", "/home", "/root", str(Path.home()), socket.gethostname())


def test_every_case_was_seen_and_no_other():
    assert list(RECORDED) == names()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_was_seen_is_what_the_table_says(case):
    seen = RECORDED[case.name]
    assert seen.items() >= facts(case).items()
    assert re.search(case.says, seen["line"])
    assert case.cure


def test_no_line_has_a_secret_or_a_place_of_the_machine_that_ran_it():
    assert SECRET not in PAGE
    assert [place for place in OF_THIS_MACHINE if place in PAGE] == []
    assert str(ROOT) not in PAGE
    assert set(re.findall(r"127\.0\.0\.1:\d+", PAGE)) <= {"127.0.0.1:1"}


def test_the_page_can_be_read_at_80_columns():
    long = [line for line in PAGE.splitlines() if len(line) > 80]
    assert [line for line in long if " " in line.strip()] == []
