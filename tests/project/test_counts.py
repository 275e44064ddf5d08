"""Counts beside those that are recorded: what a regression is, and that each kind is seen."""

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from planted_counts import count_regressions

from benchmarks.counts import __main__ as command
from benchmarks.counts import record as recording
from benchmarks.counts.count import LOOP, RULES, Count
from benchmarks.counts.every import CASES
from benchmarks.counts.record import Record, Verdict
from benchmarks.counts.runner import Ran
from benchmarks.counts.watch import calls, listening, outside, transfers

PACKAGES = recording.packages()
CALLS = Count("calls", "calls", 1000.0)
OPENED = Count("files opened to read", "files", 10.0)


def recorded(*counts, case="a"):
    record = Record()
    record.keep({case: counts})
    return record


def verdicts(record, *counts, case="a"):
    found = record.differences({case: counts})
    return {each.count.name: each.verdict for each in found}


class TestVerdicts:
    @pytest.mark.parametrize(
        ("value", "verdict"),
        [
            (1019.0, Verdict.SAME),
            (1021.0, Verdict.REGRESSION),
            (981.0, Verdict.SAME),
            (979.0, Verdict.GAIN),
        ],
    )
    def test_beyond_the_tolerance_more_is_a_regression_and_less_a_gain(self, value, verdict):
        found = verdicts(recorded(CALLS), Count("calls", "calls", value))
        assert found == {"calls": verdict}

    def test_one_file_more_in_an_epoch_is_a_regression(self):
        found = verdicts(recorded(OPENED), Count(OPENED.name, "files", 11.0))
        assert found == {OPENED.name: Verdict.REGRESSION}

    def test_what_was_not_there_at_all_is_one_too(self):
        new = Count("files removed", "files", 1.0)
        assert verdicts(recorded(OPENED), OPENED, new)[new.name] is Verdict.REGRESSION

    def test_what_is_gone_is_a_gain(self):
        kinds = {name: Count(name, "requests", 1.0) for name in ("EndTxn", "Produce")}
        found = verdicts(recorded(*kinds.values()), kinds["Produce"])
        assert found == {"Produce": Verdict.SAME, "EndTxn": Verdict.GAIN}

    def test_a_case_without_a_record_is_not_judged(self):
        assert verdicts(recorded(CALLS), CALLS, case="b") == {"calls": Verdict.UNKNOWN}

    def test_processor_time_has_room_for_noise(self):
        taken = Count("processor time", LOOP, 1.0)
        assert verdicts(recorded(taken), Count(taken.name, LOOP, 1.3))[taken.name] is Verdict.SAME
        assert (
            verdicts(recorded(taken), Count(taken.name, LOOP, 1.5))[taken.name]
            is Verdict.REGRESSION
        )


class TestVersions:
    def test_another_python_has_counts_of_its_own(self, monkeypatch):
        record = recorded(CALLS, OPENED)
        monkeypatch.setattr(recording, "python", lambda: "3.99")
        found = verdicts(record, Count("calls", "calls", 5000.0), Count(OPENED.name, "files", 11.0))
        # What depends on no version is compared all the same.
        assert found == {"calls": Verdict.UNKNOWN, OPENED.name: Verdict.REGRESSION}

    def test_both_are_kept(self, monkeypatch):
        record, here = recorded(CALLS), recording.python()
        monkeypatch.setattr(recording, "python", lambda: "3.99")
        record.keep({"a": [Count("calls", "calls", 5000.0)]})
        assert record.cases["a"]["calls"] == {"unit": "calls", here: 1000.0, "3.99": 5000.0}

    def test_other_packages_widen_tolerances_and_are_named(self, monkeypatch):
        record = recorded(CALLS)
        monkeypatch.setattr(recording, "packages", lambda: {**PACKAGES, "pyarrow": "99"})
        assert verdicts(record, Count("calls", "calls", 1090.0)) == {"calls": Verdict.SAME}
        assert verdicts(record, Count("calls", "calls", 1110.0)) == {"calls": Verdict.REGRESSION}
        assert list(record.other_packages()) == ["pyarrow"]

    def test_another_pyspark_widens_only_what_depends_on_it(self, monkeypatch):
        imported = Count("task: calls", "calls of a process", 1000.0)
        record = recorded(CALLS, imported)
        monkeypatch.setattr(recording, "packages", lambda: {**PACKAGES, "pyspark": "99"})
        more = (Count("calls", "calls", 1100.0), Count(imported.name, imported.unit, 1100.0))
        found = verdicts(record, *more)
        assert found == {"calls": Verdict.REGRESSION, imported.name: Verdict.SAME}


def test_a_record_reads_back_as_it_was_written(tmp_path):
    record = recorded(CALLS, OPENED)
    record.save(tmp_path / "counts.json")
    assert Record.load(tmp_path / "counts.json") == record


def test_the_record_knows_all_cases_and_no_other():
    kept = Record.load()
    assert kept.cases.keys() == CASES.keys()
    units = {each["unit"] for case in kept.cases.values() for each in case.values()}
    assert units <= RULES.keys()


@pytest.fixture
def counts(monkeypatch, tmp_path):
    """The command, with what it counts given, and a record of its own."""

    def call(*found, failed="", missing="", arguments=()):
        ran = Ran({"sink.memory": list(found)} if found else {})
        ran.failed |= {"sink.memory": failed} if failed else {}
        ran.missing |= {"sink.memory": missing} if missing else {}
        monkeypatch.setattr(command, "run_all", lambda *_given: ran)
        against = ("--against", str(tmp_path / "counts.json"))
        return CliRunner().invoke(command.main, [*against, *arguments])

    return call


class TestCommand:
    @pytest.fixture(autouse=True)
    def _recorded(self, tmp_path):
        recorded(CALLS, case="sink.memory").save(tmp_path / "counts.json")

    def test_as_recorded(self, counts):
        assert counts(CALLS).exit_code == 0

    def test_a_regression_fails(self, counts):
        done = counts(Count("calls", "calls", 1100.0))
        assert done.exit_code == 1
        assert "+10.0 %" in done.output

    def test_a_gain_asks_to_be_recorded(self, counts, tmp_path):
        less = Count("calls", "calls", 900.0)
        done = counts(less)
        assert done.exit_code == 0
        assert "--record" in done.output
        assert counts(less, arguments=["--record"]).exit_code == 0
        assert Record.load(tmp_path / "counts.json") == recorded(less, case="sink.memory")

    def test_a_case_that_fails_fails(self, counts):
        done = counts(failed="rows and sum of ids: found 3, wanted 4")
        assert done.exit_code == 1
        assert "wanted 4" in done.output

    def test_a_server_that_is_not_to_be_had_does_not(self, counts):
        done = counts(missing="go is missing")
        assert done.exit_code == 0
        assert "go is missing" in done.output

    def test_some_are_not_kept_where_packages_differ_from_those_of_the_others(
        self, counts, monkeypatch
    ):
        monkeypatch.setattr(recording, "packages", lambda: {**PACKAGES, "pyarrow": "99"})
        done = counts(CALLS, arguments=["--record", "--only", "sink.memory"])
        assert "without --only" in done.output

    def test_an_unknown_name_is_refused(self, counts):
        assert "no case nothing" in counts(CALLS, arguments=["--only", "nothing"]).output


# --- the instruments


def test_calls_of_threads_that_are_started_meanwhile_count():
    import threading

    def turn():
        for _ in range(1000):
            abs(-1)

    def counted(work):
        seen = Counter()
        with calls(seen):
            work()
        return seen["calls", "calls"]

    def beside():
        thread = threading.Thread(target=turn)
        thread.start()
        thread.join()

    assert 1000 < counted(turn) < 1100
    assert 1000 < counted(beside) < 1200


def test_files_databases_and_transfers_are_seen(tmp_path):
    import os
    import sqlite3

    seen = Counter()
    with listening(), outside(seen), open(tmp_path / "a", "wb") as file:
        file.write(b"." * 70_000)
        file.flush()
        os.fsync(file.fileno())
        os.rename(tmp_path / "a", tmp_path / "b")
        with sqlite3.connect(tmp_path / "c.db") as database:
            database.execute("CREATE TABLE t (n)")
        database.close()
    names = {name: number for (name, unit), number in seen.items() if unit == "files"}
    assert names["files opened to write"] == 1
    assert names["files renamed"] == 1
    assert names["files synced"] == 1
    assert names["databases opened"] == 1
    assert seen["SQL statements", "statements"] >= 1
    if Path("/proc/self/io").exists():
        assert seen["bytes written", "bytes"] >= 70_000


def test_what_is_not_in_the_block_does_not_count(tmp_path):
    seen = Counter()
    with outside(seen):
        pass
    before = dict(seen)
    (tmp_path / "a").write_text("a")
    assert dict(seen) == before


def test_transfers_are_those_of_c_as_well(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not Path("/proc/self/io").exists():
        pytest.skip("Linux alone counts the bytes of a process")
    seen = Counter()
    with transfers(seen):
        pq.write_table(pa.table({"n": range(100_000)}), tmp_path / "a", compression="none")
    assert seen["bytes written", "bytes"] >= (tmp_path / "a").stat().st_size


# --- planted regressions, each in a process of its own

WORSE = {
    "files more are opened in each epoch": (
        "sink.parquet",
        "files opened to read",
        """
from krishiv_spark.offsets.epoch_log import EpochLog as owner
name, more = "intend", lambda *_: [open("/dev/null").close() for _ in range(20)]
""",
    ),
    "a file more is synced in each epoch": (
        "sink.parquet",
        "files synced",
        """
import os, tempfile
from krishiv_spark.offsets.epoch_log import EpochLog as owner
file = tempfile.TemporaryFile()
name, more = "intend", lambda *_: os.fsync(file.fileno())
""",
    ),
    "each epoch calls a little more": (
        "sink.memory",
        "calls",
        """
from krishiv_spark.sinks.memory import MemoryWriter as owner
name, more = "publish", lambda *_: [abs(-1) for _ in range(50)]
""",
    ),
}


@pytest.mark.long  # each counts a case twice, which takes seconds
@pytest.mark.parametrize("what", WORSE)
def test_a_planted_regression_is_found(what):
    case, name, which = WORSE[what]
    assert name in count_regressions(case, which)
