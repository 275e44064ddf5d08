"""The memory sink and source without Spark: every promise of the store, and crashes in between."""

import json
import multiprocessing
import os
import pickle
import shutil
import stat
import time
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_spark.errors import (
    CommitRejected,
    DataLossError,
    Fenced,
    OffsetVersionError,
    OptionError,
    SchemaError,
)
from krishiv_spark.memory import memory_batches, memory_clear, memory_table
from krishiv_spark.memory import store as store_module
from krishiv_spark.memory.entry import Bound, StoreEntry
from krishiv_spark.memory.log import Log, sweep
from krishiv_spark.memory.results import NamedResult
from krishiv_spark.memory.store import open_store, quote_name
from krishiv_spark.offsets import Start, Watermark
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, OutputMode, Task
from krishiv_spark.sinks.memory import MemorySinkOptions, MemoryWriter
from krishiv_spark.sources.base import (
    UNLIMITED,
    Limit,
    SupportsAvailableNow,
    SupportsBacklog,
    SupportsMovingStart,
)
from krishiv_spark.sources.memory.handle import memory_source
from krishiv_spark.sources.memory.reader import MemoryOffset, MemoryReader, MemorySourceOptions

IDS = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "store"
    monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(folder))
    return folder


def writer(
    mode: OutputMode = OutputMode.APPEND,
    schema: pa.Schema = IDS,
    *,
    streaming: bool = True,
    **options: str,
) -> MemoryWriter:
    parsed = MemorySinkOptions.parse(options, "krishiv-memory")
    return MemoryWriter(parsed, schema, mode, streaming=streaming)


def ids(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=IDS)


def publish(sink: MemoryWriter, query: str, epoch: int, *values: int) -> None:
    """One epoch of two tasks, each in a writer of its own, as Spark runs it."""
    tasks = [Task(query, epoch, partition, partition) for partition in range(2)]
    halves = values[: len(values) // 2], values[len(values) // 2 :]
    staged = [
        pickle.loads(pickle.dumps(sink)).stage(iter([ids(*half)]), task, None)
        for half, task in zip(halves, tasks, strict=True)
    ]
    sink.publish(Epoch(query, epoch), pickle.loads(pickle.dumps(staged)))


def shown(key: str) -> list[int]:
    return memory_table(key).column("id").to_pylist()


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


NOON = datetime(2024, 1, 1, 12)  # noqa: DTZ001
LOSSES = [
    (pa.int64(), 1.5),
    (pa.int32(), 2**31),
    (pa.float32(), 1e300),
    (pa.float64(), 2**53 + 1),
    (pa.bool_(), 1),
    (pa.date32(), NOON),
    (pa.date32(), 5),
    (pa.timestamp("s"), NOON.replace(microsecond=1)),
    (pa.timestamp("us"), NOON.replace(tzinfo=timezone.utc)),
    (pa.timestamp("us", "UTC"), NOON),
    (pa.time32("s"), NOON.replace(microsecond=1).time()),
    (pa.string(), 5),
    (pa.decimal128(5, 2), Decimal("0.125")),
    (pa.decimal128(5, 2), 0.5),
    (pa.struct([("a", pa.int64())]), {"A": 1}),
]
KEPT = [
    (pa.int64(), 1.0),
    (pa.float32(), 0.1),
    (pa.float64(), float("nan")),
    (pa.float32(), float("-inf")),
    (pa.date32(), NOON.date()),
    (pa.timestamp("ns"), NOON),
    (pa.timestamp("us", "Asia/Tokyo"), NOON.replace(tzinfo=timezone.utc)),
    (pa.string(), b"ab"),
    (pa.binary(), "ab"),
    (pa.decimal128(5, 2), 5),
    (pa.list_(pa.int64()), (1, None)),
    (pa.map_(pa.string(), pa.float32()), {"a": 0.1}),
    (pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1}),
]


class TestEpochs:
    def test_rows_come_in_order_of_epochs_and_tasks(self) -> None:
        sink = writer()
        publish(sink, "q", 0, 1, 2, 3)
        publish(sink, "q", 1, 4)
        assert shown("q") == [1, 2, 3, 4]
        assert [batch.num_rows for batch in memory_batches("q")] == [1, 2, 1]

    def test_a_fresh_writer_knows_the_newest_epoch(self) -> None:
        assert writer().last_committed("q") is None
        for epoch in (0, 1, 2):
            publish(writer(), "q", epoch, epoch)
            assert writer().last_committed("q") == CommittedEpoch(epoch)
        assert writer().last_committed("other") is None

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_an_epoch_is_published_once(self, epoch: int) -> None:
        publish(writer(), "q", 0, 1)
        publish(writer(), "q", 1, 2)
        with pytest.raises(CommitRejected, match="already"):
            publish(writer(), "q", epoch, 9)
        assert shown("q") == [1, 2]

    def test_the_slower_of_two_drivers_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        publish(writer(), "q", 0, 1)
        appear = Log._appear

        def overtaken(log: Log, aside: str, path: str) -> None:
            monkeypatch.setattr(Log, "_appear", appear)
            publish(writer(), "q", 1, 2)
            appear(log, aside, path)

        monkeypatch.setattr(Log, "_appear", overtaken)
        with pytest.raises(CommitRejected, match="exists already"):
            publish(writer(), "q", 1, 3)
        assert shown("q") == [1, 2]

    @pytest.mark.parametrize("named", [{}, {"name": "clicks"}])
    def test_a_crash_before_the_link_leaves_nothing_visible(
        self, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
    ) -> None:
        publish(writer(**named), "q", 0, 1)
        with monkeypatch.context() as patched:
            patched.setattr(Log, "_appear", _die)
            with pytest.raises(KeyboardInterrupt):
                publish(writer(**named), "q", 1, 2)
        assert shown("q") == [1]
        assert writer(**named).last_committed("q") == CommittedEpoch(0)
        publish(writer(**named), "q", 1, 2)
        assert shown("q") == [1, 2]

    def test_a_crash_at_any_file_operation_can_be_replayed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = {"name": "clicks", "maxRows": "2", "onFull": "dropOldest"}
        for victim in range(200):
            query = f"q{victim}"
            crashed = _publish_until(monkeypatch, victim, lambda q=query: _three(q, options))
            mark = writer(**options).last_committed(query)
            begin = 0 if mark is None else mark.epoch + 1
            for epoch in range(begin, 3):
                publish(writer(**options), query, epoch, epoch)
            assert shown("clicks") == shown(query) == [1, 2]
            if not crashed:
                return
        pytest.fail("the crash point never moved after the last operation")

    def test_an_empty_epoch_has_a_schema(self) -> None:
        publish(writer(), "q", 0)
        assert memory_table("q").schema == IDS
        assert memory_batches("q") == []

    def test_no_message_at_all_counts_as_an_empty_epoch(self) -> None:
        writer(OutputMode.REPLACE).publish(Epoch("q", 0), [])
        assert memory_table("q").schema == IDS

    def test_a_column_added_later_is_null_before(self) -> None:
        publish(writer(), "q", 0, 1)
        wider = IDS.append(pa.field("name", pa.string()))
        sink = writer(schema=wider)
        rows = pa.record_batch({"id": [2], "name": ["b"]}, schema=wider)
        sink.publish(Epoch("q", 1), [sink.stage(iter([rows]), Task("q", 1, 0, 0), None)])
        expected = [{"id": 1, "name": None}, {"id": 2, "name": "b"}]
        assert memory_table("q").to_pylist() == expected

    def test_a_changed_type_is_a_clear_error(self) -> None:
        publish(writer(), "q", 0, 1)
        sink = writer(schema=pa.schema([("id", pa.string())]))
        sink.publish(Epoch("q", 1), [])
        with pytest.raises(SchemaError, match="type has changed"):
            memory_table("q")

    def test_a_hundred_epochs_keep_their_order_over_folders(self) -> None:
        sink = writer()
        for epoch in range(205):
            sink.publish(
                Epoch("q", epoch), [sink.stage(iter([ids(epoch)]), Task("q", epoch, 0, 0), None)]
            )
        assert shown("q") == list(range(205))

    def test_an_empty_folder_behind_the_newest_epoch_is_no_epoch(self, root: Path) -> None:
        publish(writer(), "q", 0, 1)
        (root / "queries" / "q" / "epochs" / "00" / "00" / "00" / "00" / "01").mkdir()
        assert writer().last_committed("q") == CommittedEpoch(0)


class TestBounds:
    def test_a_full_result_refuses_before_anything_is_visible(self) -> None:
        publish(writer(maxRows="3"), "q", 0, 1, 2)
        with pytest.raises(CommitRejected, match=r"4 rows .* maxRows is 3 .*dropOldest"):
            publish(writer(maxRows="3"), "q", 1, 3, 4)
        assert shown("q") == [1, 2]
        assert writer().last_committed("q") == CommittedEpoch(0)
        publish(writer(maxRows="3"), "q", 1, 3)
        assert shown("q") == [1, 2, 3]

    def test_a_task_that_exceeds_the_bound_alone_is_stopped_early(self) -> None:
        def endless():
            while True:
                yield ids(1, 2, 3)

        with pytest.raises(CommitRejected, match="maxRows"):
            writer(maxRows="10").stage(endless(), Task("q", 0, 0, 0), None)

    def test_bytes_are_bounded_too(self) -> None:
        publish(writer(maxBytes="1k"), "q", 0, 1)  # two tasks, two streams with their schema
        with pytest.raises(CommitRejected, match="maxBytes 1024"):
            publish(writer(maxBytes="1k"), "q", 1, 2)

    def test_drop_oldest_removes_whole_epochs(self, root: Path) -> None:
        sink = writer(maxRows="4", onFull="dropOldest")
        for epoch in range(4):
            publish(sink, "q", epoch, 2 * epoch, 2 * epoch + 1)
        assert shown("q") == [4, 5, 6, 7]
        assert writer().last_committed("q") == CommittedEpoch(3)
        assert len(files(root)) == 2
        publish(sink, "q", 4, 8, 9, 10)
        assert shown("q") == [8, 9, 10]

    def test_the_newest_epoch_stays_even_beyond_the_bound(self) -> None:
        sink = writer(maxRows="2", onFull="dropOldest")
        publish(sink, "q", 0, 1)
        publish(sink, "q", 1, 2, 3, 4)
        assert shown("q") == [2, 3, 4]
        publish(sink, "q", 2, 5)
        assert shown("q") == [5]
        assert writer().last_committed("q") == CommittedEpoch(2)

    def test_a_crash_before_old_files_are_removed_shows_nothing_old(
        self, monkeypatch: pytest.MonkeyPatch, root: Path
    ) -> None:
        sink = writer(maxRows="1", onFull="dropOldest")
        publish(sink, "q", 0, 1)
        with monkeypatch.context() as patched:
            patched.setattr(Log, "remove_below", _die)
            with pytest.raises(KeyboardInterrupt):
                publish(sink, "q", 1, 2)
        assert shown("q") == [2]
        assert writer().last_committed("q") == CommittedEpoch(1)
        publish(sink, "q", 2, 3)
        assert len(files(root)) == 1

    def test_replace_shows_the_newest_epoch_only(self, root: Path) -> None:
        sink = writer(OutputMode.REPLACE)
        publish(sink, "q", 0, 1, 2)
        publish(sink, "q", 1, 3)
        assert shown("q") == [3]
        assert len(files(root)) == 1
        publish(sink, "q", 2)
        assert shown("q") == []
        assert writer(OutputMode.REPLACE).last_committed("q") == CommittedEpoch(2)

    def test_replace_is_bounded_by_one_epoch(self) -> None:
        sink = writer(OutputMode.REPLACE, maxRows="2")
        publish(sink, "q", 0, 1, 2)
        publish(sink, "q", 1, 3, 4)
        with pytest.raises(CommitRejected):
            publish(sink, "q", 2, 5, 6, 7)
        assert shown("q") == [3, 4]

    def test_a_reader_never_meets_half_of_a_replaced_result(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = writer(OutputMode.REPLACE)
        publish(sink, "q", 0, 1)
        read = Log.read

        def interrupted(log: Log, number: int):
            monkeypatch.setattr(Log, "read", read)
            publish(sink, "q", 1, 2)
            return read(log, number)

        monkeypatch.setattr(Log, "read", interrupted)
        assert shown("q") == [2]


class TestNames:
    @pytest.mark.parametrize("key", ["name", "path", "queryname"])
    def test_a_result_is_found_by_name_and_by_id(self, key: str) -> None:
        publish(writer(**{key: "clicks/2024.."}), "id-1", 0, 1)
        assert shown("clicks/2024..") == shown("id-1") == [1]

    def test_a_query_object_is_found_by_its_id(self) -> None:
        publish(writer(name="clicks"), "id-1", 0, 1)

        class Query:
            id = "id-1"

        assert memory_table(Query()).num_rows == 1

    def test_name_wins_over_path_and_query_name(self) -> None:
        publish(writer(name="a", path="b", queryName="c"), "q", 0, 1)
        assert shown("a") == [1]
        with pytest.raises(OptionError, match="no result 'b'"):
            memory_table("b")

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(OptionError, match="known: none"):
            memory_table("clicks")
        publish(writer(name="orders"), "id-1", 0, 1)
        with pytest.raises(OptionError, match=r"no result 'clicks' .* known: orders, id-1"):
            memory_batches("clicks")
        with pytest.raises(OptionError, match="orders"):
            memory_clear("clicks")

    @pytest.mark.parametrize("name", ["", "x" * 300])
    def test_a_name_must_fit_a_file_name(self, name: str) -> None:
        with pytest.raises(OptionError, match="characters"):
            quote_name(name)
        assert os.sep not in quote_name("../a/b")

    def test_a_new_query_takes_the_name_and_the_old_rows_go(self, root: Path) -> None:
        publish(writer(name="clicks"), "old", 0, 1)
        publish(writer(name="clicks"), "new", 0, 2)
        assert shown("clicks") == [2]
        assert writer().last_committed("old") is None
        assert not (root / "queries" / "old" / "epochs").exists()

    def test_a_query_that_lost_its_name_is_fenced(self) -> None:
        publish(writer(name="clicks"), "old", 0, 1)
        publish(writer(name="clicks"), "new", 0, 2)
        with pytest.raises(Fenced, match="taken over by new"):
            publish(writer(name="clicks"), "old", 1, 3)
        assert shown("clicks") == [2]
        memory_clear("clicks")
        publish(writer(name="clicks"), "old", 1, 3)
        assert shown("clicks") == [3]

    def test_a_query_whose_first_epoch_is_refused_takes_no_name(self) -> None:
        publish(writer(name="clicks"), "old", 0, 1)
        with pytest.raises(CommitRejected, match="maxRows"):
            publish(writer(name="clicks", maxRows="2"), "new", 0, 2, 3, 4)
        assert shown("clicks") == [1]

    @pytest.mark.parametrize("mode", list(OutputMode))
    def test_a_restarted_query_keeps_its_name(self, mode: OutputMode) -> None:
        for epoch in range(3):
            publish(writer(mode, name="clicks"), "q", epoch, epoch)
        assert shown("clicks") == ([0, 1, 2] if mode is OutputMode.APPEND else [2])

    def test_clear_removes_everything(self, root: Path) -> None:
        publish(writer(name="clicks"), "old", 0, 1)
        publish(writer(name="clicks"), "id-1", 0, 1)
        publish(writer(name="clicks", streaming=False), "batch-1", 0, 2)
        memory_clear("clicks")
        assert files(root) == []
        publish(writer(), "id-2", 0, 1)
        memory_clear("id-2")
        assert files(root) == []


class TestBatchJobs:
    def test_append_adds_and_overwrite_replaces(self, root: Path) -> None:
        for job in ("batch-1", "batch-2"):
            publish(writer(path="clicks", streaming=False), job, 0, 1, 2)
        assert shown("clicks") == [1, 2, 1, 2]
        publish(writer(OutputMode.REPLACE, path="clicks", streaming=False), "batch-3", 0, 3)
        assert shown("clicks") == [3]
        assert len(files(root)) == 2  # the rows, and their second link: the mark
        assert len({path.stat().st_ino for path in files(root)}) == 1

    def test_the_rows_are_the_mark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sink = writer(path="clicks", streaming=False)
        with monkeypatch.context() as patched:
            patched.setattr(Log, "_appear", _die)
            with pytest.raises(KeyboardInterrupt):
                publish(sink, "batch-1", 0, 1)
        assert not NamedResult(open_store(), "clicks").holds("batch-1")
        publish(sink, "batch-1", 0, 1)
        assert NamedResult(open_store(), "clicks").holds("batch-1")
        with pytest.raises(CommitRejected, match="already"):
            publish(sink, "batch-1", 0, 1)
        assert shown("clicks") == [1]

    def test_a_batch_adds_to_a_stream_and_a_stream_replaces_a_batch(self) -> None:
        publish(writer(name="clicks"), "q", 0, 1)
        publish(writer(name="clicks", streaming=False), "batch-1", 0, 2)
        publish(writer(name="clicks"), "q", 1, 3)
        assert shown("clicks") == [1, 3, 2]
        publish(writer(name="clicks"), "q2", 0, 4)
        assert shown("clicks") == [4]

    def test_an_overwrite_fences_the_stream(self) -> None:
        publish(writer(name="clicks"), "q", 0, 1)
        publish(writer(OutputMode.REPLACE, name="clicks", streaming=False), "batch-1", 0, 2)
        with pytest.raises(Fenced, match="batch-1"):
            publish(writer(name="clicks"), "q", 1, 3)
        assert shown("clicks") == [2]

    def test_the_bound_is_that_of_the_whole_result(self) -> None:
        publish(writer(name="clicks", streaming=False), "batch-1", 0, 1, 2)
        full = writer(name="clicks", streaming=False, maxRows="3")
        with pytest.raises(CommitRejected, match="maxRows"):
            publish(full, "batch-2", 0, 3, 4)
        assert not NamedResult(open_store(), "clicks").holds("batch-2")
        dropping = writer(name="clicks", streaming=False, maxRows="3", onFull="dropOldest")
        publish(dropping, "batch-2", 0, 3, 4)
        assert shown("clicks") == [3, 4]

    def test_drop_oldest_of_a_batch_never_drops_a_stream(self) -> None:
        publish(writer(name="clicks"), "q", 0, 1, 2)
        dropping = writer(name="clicks", streaming=False, maxRows="1", onFull="dropOldest")
        with pytest.raises(CommitRejected, match="maxRows"):
            publish(dropping, "batch-1", 0, 3, 4)
        assert shown("clicks") == [1, 2]

    def test_a_batch_needs_a_name(self) -> None:
        with pytest.raises(OptionError, match="name"):
            writer(streaming=False).check()
        writer(streaming=False, path="clicks").check()
        writer().check()


class TestStore:
    def test_only_the_user_can_look_into_it(self, root: Path) -> None:
        assert stat.S_IMODE(os.stat(open_store().root).st_mode) == 0o700
        publish(writer(), "q", 0, 1)
        assert {stat.S_IMODE(path.stat().st_mode) for path in files(root)} == {0o600}

    def test_it_is_in_shared_memory_or_among_temporary_files(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("KRISHIV_MEMORY_DIR")
        monkeypatch.setattr(store_module, "_SHARED_MEMORY", str(tmp_path))
        assert open_store().root == f"{tmp_path}/krishiv-memory-{os.getuid()}"
        monkeypatch.setattr(store_module, "_SHARED_MEMORY", "/not/there")
        monkeypatch.setattr(store_module.tempfile, "gettempdir", lambda: f"{tmp_path}/t")
        assert open_store().root == f"{tmp_path}/t/krishiv-memory-{os.getuid()}"

    def test_a_folder_of_somebody_else_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, root: Path
    ) -> None:
        root.mkdir()
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(OptionError, match="another user"):
            open_store()

    def test_orphans_are_swept_after_an_hour_and_marks_are_not(self, root: Path) -> None:
        publish(writer(name="clicks", streaming=False), "batch-1", 0, 1)
        aside = root / "aside"
        for name, age in (("old", 4000), ("young", 100)):
            (aside / name).touch()
            os.utime(aside / name, (time.time() - age,) * 2)
        os.utime(aside / "batch-1", (0, 0))
        sweep(str(aside))
        assert sorted(path.name for path in aside.iterdir()) == ["batch-1", "young"]

    def test_no_room_on_the_disk_is_a_rejection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_: str) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("krishiv_spark.memory.log._create", full)
        with pytest.raises(CommitRejected, match="No space left"):
            publish(writer(), "q", 0, 1)

    def test_totals_are_exact_after_any_mixture_of_appends(self) -> None:
        log = open_store().log("any")
        bound = Bound(rows=10, drop_oldest=True)
        for number, rows in enumerate([3, 4, 5, 1, 20, 2, 2]):
            log.put(number, StoreEntry([b"x" * rows], rows, bound=bound), log.state())
            state = log.state()
            visible = [log.header(n) for n in log.numbers(state.first, number + 1)]
            assert state.total_rows == state.total_size == sum(header.rows for header in visible)
            assert state.total_rows <= max(10, rows)


def reader(schema: pa.Schema | None = None, *, streaming: bool = True, **options: str):
    parsed = MemorySourceOptions.parse({"path": "clicks", **options}, "krishiv-memory")
    return MemoryReader(parsed, schema, streaming=streaming)


def rows_between(source: MemoryReader, start: MemoryOffset, end: MemoryOffset) -> list[int]:
    parts = [pickle.loads(pickle.dumps(part)) for part in source.plan(start, end)]
    batches = [batch for part in parts for batch in source.read(part)]
    return [value for batch in batches for value in batch.column("id").to_pylist()]


class TestSource:
    def test_pushes_of_all_kinds_are_read_in_order(self) -> None:
        source = memory_source("clicks", IDS)
        source.add(pa.table({"id": [1, 2]}))
        source.add(pa.record_batch({"id": [3]}))
        source.add([{"id": 4}, {"id": 5}])
        feed = reader()
        end = feed.latest(feed.initial(), UNLIMITED)
        assert end.next == 3
        assert rows_between(feed, feed.initial(), end) == [1, 2, 3, 4, 5]
        assert feed.latest(end, UNLIMITED) == end
        assert feed.plan(end, end) == []

    def test_the_first_push_sets_the_schema_and_later_ones_fit_it(self) -> None:
        source = memory_source("clicks")
        source.add([{"id": 1}])
        assert reader().infer_schema() == IDS == source.schema()
        source.add(pa.table({"id": pa.array([2], pa.int32())}))
        assert rows_between(reader(), MemoryOffset(next=0), MemoryOffset(next=2)) == [1, 2]
        with pytest.raises(SchemaError, match="'id'"):
            source.add(pa.table({"other": [1]}))
        with pytest.raises(SchemaError, match="do not fit"):
            source.add([{"id": "text"}])

    def test_another_schema_is_refused(self) -> None:
        memory_source("clicks", IDS)
        with pytest.raises(SchemaError, match="another schema"):
            memory_source("clicks", pa.schema([("name", pa.string())]))

    def test_an_unknown_schema_says_what_to_do(self) -> None:
        with pytest.raises(OptionError, match=r"memory_source\('clicks'\)"):
            reader().infer_schema()
        options = MemorySourceOptions.parse({}, "krishiv-memory")
        with pytest.raises(OptionError, match="name"):
            MemoryReader(options, None, streaming=True).infer_schema()

    @pytest.mark.long
    def test_processes_push_under_numbers_of_their_own(self) -> None:
        memory_source("clicks", IDS)
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_push_many, args=(base,)) for base in (0, 100)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        feed = reader()
        end = feed.latest(feed.initial(), UNLIMITED)
        assert end.next == 40
        found = rows_between(feed, feed.initial(), end)
        assert sorted(found) == sorted(base + i for base in (0, 100) for i in range(20))
        assert [value for value in found if value < 100] == list(range(20))

    @pytest.mark.parametrize(
        ("limit", "ends"),
        [
            (Limit(rows=2), [1, 2, 4, 5]),
            (Limit(files=2), [2, 4, 5]),
            (Limit(bytes=1), [1, 2, 3, 4, 5]),
            (Limit(rows=100, files=3), [3, 5]),
        ],
    )
    def test_limits_hold_and_a_batch_has_a_push_at_least(
        self, limit: Limit, ends: list[int]
    ) -> None:
        source = memory_source("clicks", IDS)
        for count in (3, 2, 1, 1, 2):
            source.add(pa.table({"id": range(count)}))
        feed, position, seen = reader(), MemoryOffset(next=0), []
        while (end := feed.latest(position, limit)) != position:
            position = end
            seen.append(end.next)
        assert seen == ends

    def test_partitions_are_at_most_as_many_as_asked_for(self) -> None:
        source = memory_source("clicks", IDS)
        for value in range(10):
            source.add([{"id": value}])
        feed = reader(maxPartitions="4")
        start, end = MemoryOffset(next=0), MemoryOffset(next=10)
        assert [len(part) for part in feed.plan(start, end)] == [2, 3, 2, 3]
        assert rows_between(feed, start, end) == list(range(10))
        assert len(feed.plan(start, MemoryOffset(next=2))) == 2

    def test_latest_is_a_moving_start(self) -> None:
        source = memory_source("clicks", IDS)
        source.add([{"id": 1}])
        feed = reader(startingOffsets="latest")
        assert feed.initial() == Start(at="latest")
        assert feed.resolve(feed.initial()).next == 1

    def test_a_frozen_reader_sees_nothing_newer(self) -> None:
        source = memory_source("clicks", IDS)
        source.add([{"id": 1}])
        feed = reader()
        feed.freeze()
        source.add([{"id": 2}])
        assert feed.latest(feed.initial(), UNLIMITED).next == 1
        assert feed.backlog() == {"kind": "memory", "next": 2, "v": 1}

    def test_abilities(self) -> None:
        for ability in (SupportsAvailableNow, SupportsBacklog, SupportsMovingStart):
            assert isinstance(reader(), ability)

    def test_the_watermark_follows_event_time(self) -> None:
        times = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
        source = memory_source("clicks", times)
        for minute in (10, 5, 20):
            source.add([{"at": datetime(2024, 1, 1, 0, minute, tzinfo=timezone.utc)}])
        source.add([{"at": None}])
        feed = reader(eventTime="at", watermarkDelay="1 minute")
        position, marks = feed.initial(), []
        for _ in range(4):
            position = feed.latest(position, Limit(files=1))
            marks.append(position.watermark)
        base = int(datetime(2024, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)
        assert [(mark.ms - base) // 60_000 for mark in marks] == [9, 9, 19, 19]
        assert marks[-1].held == "no event time in the batch"

    def test_clear_lets_numbers_go_on(self) -> None:
        source = memory_source("clicks", IDS)
        source.add([{"id": 1}])
        source.clear()
        assert source.schema() is None
        source.add([{"name": "a"}])
        feed = reader()
        end = feed.latest(feed.initial(), UNLIMITED)
        assert end.next == 3
        parts = feed.plan(feed.initial(), end)
        rows = [row for part in parts for batch in feed.read(part) for row in batch.to_pylist()]
        assert rows == [{"name": "a"}]

    def test_a_query_behind_a_clear_fails(self) -> None:
        source = memory_source("clicks", IDS)
        for value in range(3):
            source.add([{"id": value}])
        source.clear()
        with pytest.raises(DataLossError, match="new checkpoint"):
            reader().latest(MemoryOffset(next=1), UNLIMITED)
        with pytest.raises(DataLossError):  # a replay of a batch planned before the clear
            reader().plan(MemoryOffset(next=0), MemoryOffset(next=3))

    @pytest.mark.parametrize(("kind", "value"), LOSSES, ids=[str(loss) for loss in LOSSES])
    def test_a_value_of_a_dict_that_its_type_would_change_is_refused(self, kind, value) -> None:
        source = memory_source("clicks", pa.schema([("c", kind)]))
        with pytest.raises(SchemaError, match="column 'c'"):
            source.add([{"c": None}, {"c": value}])
        nested = memory_source("nested", pa.schema([("c", pa.list_(pa.struct([("f", kind)])))]))
        with pytest.raises(SchemaError, match="column 'c'"):
            nested.add([{"c": [{"f": value}]}])

    @pytest.mark.parametrize(("kind", "value"), KEPT, ids=[str(kept) for kept in KEPT])
    def test_a_value_of_a_dict_that_its_type_holds_is_kept(self, kind, value) -> None:
        memory_source("clicks", pa.schema([("c", kind)])).add([{"c": value}, {}])

    def test_a_key_that_is_no_column_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(SchemaError, match=r"row 1 has 'idd', .* did you mean 'id'"):
            memory_source("clicks", IDS).add([{"id": 1}, {"idd": 2}])

    def test_keys_of_all_dicts_are_columns_where_no_schema_is_given(self) -> None:
        memory_source("clicks").add([{"a": 1}, {"b": 2.5}, {"a": 3}])
        assert memory_source("clicks").schema() == pa.schema([("a", "int64"), ("b", "double")])

    def test_a_null_is_refused_where_the_schema_has_none(self) -> None:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        with pytest.raises(SchemaError, match="column 'id' has nulls"):
            memory_source("clicks", schema).add([{"id": 1}, {}])

    def test_a_table_with_a_narrower_source_is_refused(self) -> None:
        source = memory_source("clicks", pa.schema([("f", pa.float32())]))
        with pytest.raises(SchemaError, match="column 'f' of type double does not fit float"):
            source.add(pa.table({"f": [1e300]}))

    def test_a_query_meets_a_wiped_store(self) -> None:
        source = memory_source("clicks", IDS)
        source.add([{"id": 1}])
        position = reader().latest(reader().initial(), UNLIMITED)
        shutil.rmtree(os.environ["KRISHIV_MEMORY_DIR"])
        for value in range(5):
            memory_source("clicks", IDS).add([{"id": value}])
        with pytest.raises(DataLossError, match="its store is new"):
            reader().latest(position, UNLIMITED)
        with pytest.raises(DataLossError, match="its store is new"):
            reader().plan(reader().initial(), position)

    def test_a_query_pinned_on_an_empty_source_misses_no_cleared_push(self) -> None:
        source = memory_source("clicks", IDS)
        feed = reader(startingOffsets="latest")
        pinned = feed.resolve(feed.initial())
        source.add([{"id": 1}])
        source.clear()
        source.add([{"id": 2}])
        with pytest.raises(DataLossError):
            feed.latest(pinned, UNLIMITED)

    def test_a_query_ahead_of_a_new_store_fails(self) -> None:
        with pytest.raises(DataLossError, match="is at 7"):
            reader().latest(MemoryOffset(next=7), UNLIMITED)

    def test_golden_offsets(self) -> None:
        texts = {
            '{"kind":"memory","next":0,"v":1}': MemoryOffset(next=0),
            '{"kind":"memory","next":7,"v":1,"watermark":{"ms":-5}}': MemoryOffset(
                next=7, watermark=Watermark(ms=-5)
            ),
        }
        for text, offset in texts.items():
            assert offset.to_json() == text
            assert MemoryOffset.from_json(text) == offset
        with pytest.raises(OffsetVersionError):
            MemoryOffset.from_dict({**json.loads(next(iter(texts))), "v": 2})


class TestReadingResults:
    def test_a_batch_reads_the_result_of_the_name(self) -> None:
        publish(writer(name="clicks"), "q", 0, 1, 2)
        publish(writer(name="clicks"), "q", 1, 3)
        feed = reader(IDS, streaming=False)
        assert feed.infer_schema() == IDS
        start = feed.initial()
        assert rows_between(feed, start, feed.latest(start, UNLIMITED)) == [1, 2, 3]

    def test_a_source_and_a_result_with_other_columns_are_not_mixed_up(self) -> None:
        memory_source("clicks", pa.schema([("other", pa.int64())])).add([{"other": 1}])
        publish(writer(name="clicks"), "q", 0, 1)
        start = MemoryOffset(next=0)
        feed = reader(reader().infer_schema(), streaming=False)
        with pytest.raises(OptionError, match="two names"):
            feed.plan(start, start)
        assert rows_between(reader(IDS, streaming=False), start, start) == [1]


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def _push_many(base: int) -> None:
    for value in range(20):
        memory_source("clicks").add([{"id": base + value}])


def _three(query: str, options: dict[str, str]) -> None:
    for epoch in range(3):
        publish(writer(**options), query, epoch, epoch)


def _publish_until(
    monkeypatch: pytest.MonkeyPatch, victim: int, action: Callable[[], None]
) -> bool:
    """Run an action that dies before its `victim`-th change of the file system."""
    left = [victim]

    def counted(operation: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return operation(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for name in ("link", "mkdir", "open", "unlink"):
            patched.setattr(os, name, counted(getattr(os, name)))
        try:
            action()
        except KeyboardInterrupt:
            return True
    return False
