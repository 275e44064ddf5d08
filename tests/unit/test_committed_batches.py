"""Targets of numbered batches that were restored or emptied; names that two queries use."""

import itertools
import json
import shutil
import uuid
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Command
from iceberg_life import TABLE, table_of
from numbered_jobs import make_job_options, run_job

from krishiv_spark import memory_clear, memory_table
from krishiv_spark.errors import KrishivError, StorageError
from krishiv_spark.formats import (
    FanoutDataSource,
    IcebergDataSource,
    MemoryDataSource,
    ParquetDataSource,
)
from krishiv_spark.iceberg.catalogs import forget_catalog
from krishiv_spark.iceberg.options import IcebergOptions
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.sinks.numbered import RECORD_SUFFIX
from krishiv_spark.spark.checkpoint import SparkCheckpoint

RUNS = itertools.count()


class InParquet:
    source = ParquetDataSource

    def __init__(self, folder, monkeypatch):
        del monkeypatch
        self.target = folder / "table"
        self.options = {"path": str(self.target)}

    def rows(self):
        return [n for path in self.target.glob("*.parquet") for n in pq.read_table(path)["id"]]

    def forget(self):
        """Nothing of a table is kept in a process."""


class InIceberg:
    source = IcebergDataSource

    def __init__(self, folder, monkeypatch):
        del monkeypatch
        self.target = folder / "warehouse"
        self.options = {"path": TABLE, "warehouse": str(self.target)}

    def rows(self):
        return table_of(self.target).scan().to_arrow()["id"]

    def forget(self):
        forget_catalog(IcebergOptions.parse(self.options, "test"))


class InMemory:
    source = MemoryDataSource

    def __init__(self, folder, monkeypatch):
        self.target = folder / "memory"
        monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(self.target))
        self.options = {"path": f"result-{uuid.uuid4()}"}

    def rows(self):
        return memory_table(self.options["path"])["id"]

    def forget(self):
        """Nothing of a result is kept in a process."""


class Place:
    """A target of batches of one query, with its checkpoint."""

    def __init__(self, sink, folder):
        self.sink, self.folder = sink, folder
        self.checkpoint = folder / "checkpoint"
        for number in range(10):
            for name in ("offsets", "commits"):
                (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
                (self.checkpoint / name / str(number)).write_text('v1\n{}\n{"end":1}')
        (self.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.start()

    def start(self):
        """The query is started again."""
        self.run = str(next(RUNS))
        self.sink.forget()

    def batch(self, number, numbers=None, *, overwrite=False, **more):
        known = {"txnCheckpoint": str(self.checkpoint), "txnRun": self.run, "txnRepeats": "newest"}
        options = {**self.sink.options, **make_job_options("load", number), **known, **more}
        rows = range(10 * number, 10 * number + 3) if numbers is None else numbers
        run_job(self.sink.source, options, rows, overwrite=overwrite)

    def save(self, name):
        shutil.copytree(self.sink.target, self.folder / name)

    def restore(self, name):
        shutil.rmtree(self.sink.target)
        shutil.copytree(self.folder / name, self.sink.target)
        self.sink.forget()

    def rewind(self, batch):
        """As the message says."""
        Command("checkpoint", "rewind").said(self.checkpoint, "--to", batch)

    def records(self):
        return sorted((self.checkpoint / "krishiv").glob(f"*{RECORD_SUFFIX}"))

    def assert_holds(self, *batches):
        wanted = Counter(n for each in batches for n in range(10 * each, 10 * each + 3))
        assert Counter(int(n.as_py()) for n in self.sink.rows()) == wanted


SINKS = [InParquet, InIceberg, InMemory]


@pytest.fixture(params=SINKS)
def place(request, tmp_path, monkeypatch):
    return Place(request.param(tmp_path, monkeypatch), tmp_path)


@pytest.fixture
def table(tmp_path, monkeypatch):
    return Place(InParquet(tmp_path, monkeypatch), tmp_path)


@pytest.mark.parametrize("starts", [True, False])
def test_a_target_that_was_restored_from_an_older_copy_is_refused(place, starts):
    place.batch(0)
    place.save("older")
    place.batch(1)
    place.save("newest")
    place.restore("older")
    if starts:
        place.start()
    with pytest.raises(PlanningFailed, match=r"batch 1 of load was committed .* batch 0 as its"):
        place.batch(2)
    place.assert_holds(0)
    place.restore("newest")
    place.batch(2)
    place.assert_holds(0, 1, 2)


def test_a_target_that_was_made_anew_is_refused_until_its_record_is_removed(table):
    for number in range(2):
        table.batch(number)
    shutil.rmtree(table.sink.target)
    table.start()
    with pytest.raises(PlanningFailed, match="remove the file") as caught:
        table.batch(2)
    (record,) = table.records()
    assert str(record) in str(caught.value)
    record.unlink()
    table.batch(2)
    table.assert_holds(2)


def test_a_result_in_memory_that_was_cleared_goes_on_with_a_warning(tmp_path, monkeypatch, caplog):
    place = Place(InMemory(tmp_path, monkeypatch), tmp_path)
    place.batch(0)
    memory_clear(place.sink.options["path"])
    place.start()
    place.batch(1)
    place.batch(2)
    place.assert_holds(1, 2)
    assert caplog.text.count("was emptied or replaced by a new one") == 1


@pytest.mark.long
def test_batches_that_are_left_out_on_purpose_or_have_no_rows_are_no_gap(place):
    for number in (1, 2, 5):
        place.batch(number)
    place.batch(6, [])
    place.start()
    place.batch(9)
    place.assert_holds(1, 2, 5, 9)


@pytest.mark.long
def test_a_batch_that_is_repeated_is_written_again_where_only_it_is_missing(place):
    place.batch(0)
    place.batch(1)
    place.save("before")
    place.batch(2)
    place.restore("before")
    place.start()
    place.batch(2)
    place.assert_holds(0, 1, 2)


@pytest.mark.long
def test_a_repeated_batch_is_refused_where_an_earlier_one_is_missing_too(place):
    place.batch(0)
    place.save("older")
    place.batch(1)
    place.batch(2)
    place.restore("older")
    place.start()
    with pytest.raises(PlanningFailed, match=r"batch 1 of load was committed .* batch 0 as"):
        place.batch(2)


@pytest.mark.long
def test_a_batch_whose_record_was_not_stored_before_the_driver_died_is_recorded_when_it_comes_again(
    place,
):
    place.batch(0)
    (record,) = place.records()
    before = record.read_bytes()
    place.save("older")
    place.batch(1)
    record.write_bytes(before)  # as if the process had died between both
    place.start()
    place.batch(1)
    assert json.loads(record.read_text()) == {"v": 1, "batches": [0, 1]}
    place.restore("older")
    place.start()
    with pytest.raises(PlanningFailed, match="batch 1 of load was committed"):
        place.batch(2)


def test_one_name_may_write_into_one_table_for_each_day(table):
    """No record of one table refuses another one, in whatever order they come."""
    for number, day in enumerate(["mon", "mon", "tue", "tue", "mon"]):
        table.batch(number, path=str(table.sink.target / day))
        table.start()
    assert len(table.records()) == 2


@pytest.mark.long
def test_tables_and_checkpoints_without_a_record_go_on(place):
    for number in range(2):
        place.batch(number)
    for record in place.records():
        record.unlink()
    place.start()
    place.batch(5)
    assert place.records()
    place.assert_holds(0, 1, 5)


@pytest.mark.long
def test_a_record_of_a_checkpoint_that_was_moved_is_known(place):
    place.batch(0)
    place.save("older")
    place.batch(1)
    place.checkpoint = place.checkpoint.rename(place.folder / "moved")
    place.start()
    place.batch(2)
    place.restore("older")
    place.start()
    with pytest.raises(PlanningFailed, match="batch 2 of load was committed"):
        place.batch(3)


@pytest.mark.parametrize("left", [b"", b"{", bytes(30)])
def test_a_record_that_a_power_cut_has_damaged_stops_no_batch(table, caplog, left):
    table.batch(0)
    (record,) = table.records()
    record.write_bytes(left)
    table.start()
    for number in (1, 2):
        table.batch(number)
    table.assert_holds(0, 1, 2)
    assert caplog.text.count("is damaged. The query continues") == 1
    assert json.loads(record.read_text()) == {"v": 1, "batches": [0, 1, 2]}


def test_a_checkpoint_in_a_store_that_the_settings_of_the_target_do_not_reach_stops_no_batch(
    table, monkeypatch, caplog
):
    def refuse(self, name, *more):
        if name.endswith(RECORD_SUFFIX):
            raise StorageError("403 Forbidden")
        return read(self, name, *more)

    table.batch(0)
    folder = type(SparkCheckpoint(str(table.checkpoint)).folder("krishiv"))
    read = folder.read
    monkeypatch.setattr(folder, "read", refuse)
    table.start()
    for number in (1, 2):
        table.batch(number)
    table.assert_holds(0, 1, 2)
    assert caplog.text.count("cannot be read: 403 Forbidden") == 1


def test_a_checkpoint_that_can_only_be_read_stops_no_batch(table, monkeypatch, caplog):
    def refuse(*_, **__):
        raise OSError("read-only file system")

    table.batch(0)
    folder = type(SparkCheckpoint(str(table.checkpoint)).folder("krishiv"))
    monkeypatch.setattr(folder, "replace", refuse)
    for number in (1, 2):
        table.batch(number)
    table.assert_holds(0, 1, 2)
    assert caplog.text.count("could not be recorded") == 1


def test_a_rewind_takes_the_records_of_later_batches_back(table):
    """The way on that the message names."""
    table.batch(0)
    table.save("older")
    for number in (1, 2):
        table.batch(number)
    table.restore("older")
    table.start()
    with pytest.raises(PlanningFailed, match="checkpoint rewind --to 0"):
        table.batch(3)
    table.rewind(0)
    (record,) = table.records()
    assert json.loads(record.read_text()) == {"v": 1, "batches": [0]}
    assert list((table.checkpoint / "krishiv-rewound").rglob(f"*{RECORD_SUFFIX}"))
    table.start()
    for number in (1, 2, 3):
        table.batch(number)
    table.assert_holds(0, 1, 2, 3)


def test_a_rewind_to_a_batch_that_one_output_lacks_is_refused_by_that_output(table):
    """Two tables that were restored from copies of two days: a message names the end of one."""
    for number in range(4):
        table.batch(number, path=str(table.sink.target / "one"))
        table.batch(number, path=str(table.sink.target / "other"))
        table.save(f"after-{number}")
    shutil.rmtree(table.sink.target)
    shutil.copytree(table.folder / "after-2" / "one", table.sink.target / "one")
    shutil.copytree(table.folder / "after-1" / "other", table.sink.target / "other")
    table.rewind(2)
    table.start()
    table.batch(3, path=str(table.sink.target / "one"))
    with pytest.raises(PlanningFailed, match=r"batch 2 of load .* batch 1 as its newest"):
        table.batch(3, path=str(table.sink.target / "other"))


def test_records_that_a_restored_checkpoint_has_left_refuse_no_later_batch(table):
    """Spark's files and the target went back together, and the later batches have no rows now."""
    for number in range(3):
        table.batch(number)
    table.save("older")
    for number in (3, 4):
        table.batch(number)
    table.restore("older")
    for number, rows in ((3, []), (4, []), (5, None), (6, None)):
        table.start()
        table.batch(number, rows)
    table.assert_holds(0, 1, 2, 5, 6)


@pytest.mark.long
@pytest.mark.parametrize("sink", [InParquet, InIceberg])
def test_a_target_that_each_batch_overwrites_need_not_have_those_before(
    sink, tmp_path, monkeypatch
):
    place = Place(sink(tmp_path, monkeypatch), tmp_path)
    for number in range(3):
        place.batch(number, overwrite=True)
    shutil.rmtree(place.sink.target)
    place.start()
    place.batch(3, overwrite=True)
    place.assert_holds(3)
    place.batch(4)
    place.assert_holds(3, 4)


def test_outputs_that_have_all_batches_skip_them_after_a_rewind(table):
    for number in range(4):
        table.batch(number)
    table.rewind(0)
    table.start()
    for number in (1, 2, 3, 4):
        table.batch(number, txnRepeats="any")
    table.assert_holds(0, 1, 2, 3, 4)


# --- names


def test_a_name_that_another_query_has_used_is_refused_unless_it_is_replaced(place):
    place.batch(0, txnQueryId="aaaa-1")
    for number in (0, 1):
        with pytest.raises(PlanningFailed, match=r"batch 0 of that name from query aaaa-1.*replac"):
            place.batch(number, txnQueryId="bbbb-2")
    place.batch(1, txnQueryId="bbbb-2", txnReplaces="aaaa-1")
    place.batch(2, txnQueryId="bbbb-2")
    place.batch(3, txnQueryId="bbbb-2", txnReplaces="aaaa-1")  # it may stay
    with pytest.raises(PlanningFailed, match="batch 3 of that name from query bbbb-2"):
        place.batch(4, txnQueryId="aaaa-1")
    place.assert_holds(0, 1, 2, 3)


def test_a_name_of_a_fan_out_that_another_query_has_used_is_refused(tmp_path):
    schema = pa.schema([("left", pa.struct({"id": pa.int64()}))])
    given = {
        "route.left.format": "krishiv-parquet",
        "route.left.path": str(tmp_path / "left"),
        "epochLog": str(tmp_path / "logs"),
    }

    def batch(number, query):
        options = {**given, **make_job_options("load", number), "txnQueryId": query}
        rows = [10 * number]
        run_job(FanoutDataSource, options, rows, tasks=1, schema=schema, row=lambda n: ({"id": n},))

    batch(0, "aaaa-1")
    with pytest.raises(PlanningFailed, match="batch 0 of that name from query aaaa-1"):
        batch(1, "bbbb-2")
    batch(1, "aaaa-1")
    assert sorted(pq.read_table(tmp_path / "left")["id"].to_pylist()) == [0, 10]


@pytest.mark.parametrize("compare", ["true", "false"])
def test_the_query_is_kept_whether_rows_are_compared_or_not(place, compare):
    for _ in range(2):
        place.batch(0, txnQueryId="aaaa-1", txnCompare=compare)
    with pytest.raises(PlanningFailed, match="from query aaaa-1"):
        place.batch(1, txnQueryId="bbbb-2", txnCompare=compare)


def test_batches_that_were_written_without_a_query_are_continued_and_compared(place):
    """As those of versions that did not keep it, and those of drivers that do not know it."""
    place.batch(0)
    place.batch(0, txnQueryId="aaaa-1")
    with pytest.raises(KrishivError, match=r"was repeated with other rows: 2 now, .* has 3"):
        place.batch(0, [1, 2], txnQueryId="aaaa-1")
    place.batch(1, txnQueryId="aaaa-1")
    place.batch(1)
    with pytest.raises(KrishivError, match=r"was repeated with other rows: 2 now, .* has 3"):
        place.batch(1, [1, 2])
    place.batch(2)
    place.assert_holds(0, 1, 2)
