"""Batch jobs with numbers: what comes again is known, whole, and other rows are no mixture."""

import uuid
from collections import Counter

import pyarrow.parquet as pq
import pytest
from iceberg_life import TABLE, table_of
from numbered_jobs import make_job_options, run_job

from krishiv_spark import memory_table
from krishiv_spark.errors import BatchMismatch, OptionError
from krishiv_spark.formats import (
    ConsoleDataSource,
    IcebergDataSource,
    KafkaDataSource,
    MemoryDataSource,
    ParquetDataSource,
)
from krishiv_spark.lifecycle.plans import PlanningFailed


class InParquet:
    source = ParquetDataSource

    def __init__(self, folder):
        self.options = {"path": str(folder / "table")}
        self._table = folder / "table"

    def rows(self):
        return [n for path in self._table.glob("*.parquet") for n in pq.read_table(path)["id"]]


class InIceberg:
    source = IcebergDataSource

    def __init__(self, folder):
        self.options = {"path": TABLE, "warehouse": str(folder)}
        self._folder = folder

    def rows(self):
        return table_of(self._folder).scan().to_arrow()["id"]


class InMemory:
    source = MemoryDataSource

    def __init__(self, folder):
        self.options = {"path": f"{folder.name}-{uuid.uuid4()}"}

    def rows(self):
        return memory_table(self.options["path"])["id"]


@pytest.fixture(params=[InParquet, InIceberg, InMemory])
def place(request, tmp_path):
    return Place(request.param(tmp_path))


class Place:
    def __init__(self, sink):
        self._sink = sink

    def job(self, name, number, numbers, tasks=2, *, overwrite=False, **more):
        options = {**self._sink.options, **make_job_options(name, number, **more)}
        run_job(self._sink.source, options, numbers, tasks=tasks, overwrite=overwrite)

    def assert_holds(self, numbers):
        found = Counter(int(n.as_py()) for n in self._sink.rows())
        assert found == Counter(numbers)


def test_a_number_is_written_once(place):
    for number in (3, 3, 4, 4, 9):
        place.job("load", number, range(10 * number, 10 * number + 10))
    place.assert_holds([*range(30, 50), *range(90, 100)])


def test_a_batch_that_comes_again_is_said(place, caplog):
    place.job("load", 1, [1, 2])
    assert not caplog.records
    place.job("load", 1, [1, 2])
    assert "This sink has it already" in caplog.text


def test_rows_may_come_again_in_other_tasks_and_in_another_order(place):
    place.job("load", 3, range(10))
    place.job("load", 3, range(9, -1, -1), tasks=3)
    place.assert_holds(range(10))


def test_a_lower_number_is_skipped_unless_only_the_newest_may_come_again(place):
    place.job("load", 3, range(10))
    place.job("load", 2, range(50, 60))
    with pytest.raises(PlanningFailed, match="batch 2 of load comes after batch 3"):
        place.job("load", 2, range(50, 60), txnRepeats="newest")
    place.assert_holds(range(10))


@pytest.mark.long
@pytest.mark.parametrize("others", [range(9), range(11), range(1, 11), [*range(9), 8]])
def test_other_rows_under_a_number_are_no_mixture_but_an_error(place, others):
    place.job("load", 3, range(10))
    with pytest.raises(BatchMismatch, match=r"batch 3 of load .* other rows: \d+ now.* has 10,"):
        place.job("load", 3, others)
    place.job("load", 3, others, txnCompare="false")
    place.assert_holds(range(10))


def test_what_was_not_compared_is_taken_for_the_same(place):
    place.job("load", 3, range(10), txnCompare="false")
    place.job("load", 3, range(5))
    place.assert_holds(range(10))


def test_names_do_not_know_of_one_another(tmp_path):
    place = Place(InParquet(tmp_path))
    for name in ("orders", "returns"):
        place.job(name, 1, range(10))
    place.assert_holds([*range(10), *range(10)])


@pytest.mark.parametrize("sink", [InParquet, InIceberg])  # a result in memory has columns
def test_a_batch_without_rows_leaves_no_mark(sink, tmp_path):
    place = Place(sink(tmp_path))
    place.job("load", 1, range(10))
    place.job("load", 2, range(0))
    place.job("load", 2, range(10, 20))
    place.assert_holds(range(20))


def test_what_is_overwritten_goes_once(place):
    place.job("load", 1, range(10))
    place.job("load", 2, range(20, 25), overwrite=True)
    place.job("load", 3, range(30, 35))
    place.job("load", 3, range(30, 35), overwrite=True)
    place.assert_holds([*range(20, 25), *range(30, 35)])


def test_whoever_has_written_is_overwritten_in_a_folder(tmp_path):
    place = Place(InParquet(tmp_path))
    place.job("orders", 1, range(10))
    place.job("returns", 1, range(20, 25), overwrite=True)
    place.assert_holds(range(20, 25))


# --- what users get wrong

KAFKA = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}
WRONG = {
    "half a number": (ParquetDataSource, {"path": "t", "txnAppId": "a"}, "belong together"),
    "a path": (
        ParquetDataSource,
        {"path": "t", **make_job_options("../up", 1)},
        "not a valid query id",
    ),
    "a job's": (
        ParquetDataSource,
        {"path": "t", **make_job_options("batch-1", 1)},
        "names of batch jobs",
    ),
    "below 0": (
        ParquetDataSource,
        {"path": "t", **make_job_options("a", -1)},
        "greater than or equal",
    ),
}


@pytest.mark.parametrize(("source", "options", "says"), WRONG.values(), ids=WRONG)
def test_bad_numbers_are_refused(source, options, says):
    with pytest.raises(OptionError, match=says):
        run_job(source, options, range(3))


@pytest.mark.parametrize(
    ("source", "options"),
    [(KafkaDataSource, {**KAFKA, "delivery": "at-least-once"}), (ConsoleDataSource, {})],
)
def test_a_sink_that_cannot_know_a_number_says_so(source, options):
    with pytest.raises(PlanningFailed, match="'txnAppId' has no effect here"):
        run_job(source, {**options, **make_job_options("a", 1)}, range(3))


def test_one_log_for_two_tables_is_refused(tmp_path):
    """Else the second would be taken for a repetition of the first."""
    shared = {"epochLog": str(tmp_path / "logs"), **make_job_options("load", 1)}
    run_job(ParquetDataSource, {"path": str(tmp_path / "one"), **shared}, range(10))
    with pytest.raises(PlanningFailed, match="a separate 'txnAppId' for each target"):
        run_job(ParquetDataSource, {"path": str(tmp_path / "other"), **shared}, range(10))


def test_results_in_memory_share_a_number():
    names = [f"result-{uuid.uuid4()}" for _ in range(2)]
    for name in (*names, *names):
        run_job(MemoryDataSource, {"path": name, **make_job_options("load", 1)}, range(10))
    assert [memory_table(name).num_rows for name in names] == [10, 10]
