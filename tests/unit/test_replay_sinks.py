"""Replays of queries into tables of Iceberg, results in memory and several targets at once."""

from collections import Counter

import pyarrow as pa
import pytest
from click.testing import CliRunner
from fan_queries import Fan, routes_below
from iceberg_tables import append, expire, table_in
from replays import Stream, count_range, forget, kill_everywhere, refused, run, said, table_rows
from sink_life import SCHEMA, rows
from spark_starts import files, make_checkpoint

from krishiv_spark.cli import main
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.memory import memory_batches
from krishiv_spark.operate.moving.rewinding import CheckpointRewind
from krishiv_spark.sinks.iceberg.writer import IcebergWriter
from krishiv_spark.sinks.memory import MemoryWriter
from krishiv_spark.sinks.parquet.writer import ParquetWriter


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


@pytest.fixture
def checkpoint(place):
    return make_checkpoint(place / "c", -1)


def ids_in(warehouse):
    forget()
    return Counter(table_in(warehouse).scan().to_arrow()["id"].to_pylist())


# --- Iceberg


@pytest.fixture
def where(place):
    return {"warehouse": str(place / "w"), "table": "db.t"}


@pytest.fixture
def words(where):
    return [word for name, text in where.items() for word in ("-o", f"{name}={text}")]


@pytest.fixture
def landed(checkpoint, where):
    """Epochs 0 to 4, in a table of Iceberg."""
    stream = Stream(IcebergWriter, checkpoint, **where)
    for epoch in range(5):
        stream.run(epoch)
    return stream


def test_a_table_goes_back_to_the_snapshot_before_with_its_mark(landed, checkpoint, place, words):
    before = table_in(place / "w")
    shown = said(checkpoint, "--from", 2, *words)
    assert "3 snapshots, of epochs 2 to 4, are undone" in shown
    after = table_in(place / "w")
    line = [one for one in before.metadata.snapshots if one.sequence_number == 2]
    assert after.metadata.current_snapshot_id == line[0].snapshot_id
    assert after.properties["krishiv.epoch.0f-1"] == "1"
    assert len(after.metadata.metadata_log) == len(before.metadata.metadata_log) + 1  # one commit
    (tag,) = (name for name in after.metadata.refs if name != "main")
    assert after.metadata.refs[tag].snapshot_id == before.metadata.current_snapshot_id
    assert ids_in(place / "w") == count_range(20)
    landed.run(2, 45)
    landed.run(3)
    assert ids_in(place / "w") == count_range(55)
    kept = after.scan(snapshot_id=before.metadata.current_snapshot_id).to_arrow()
    assert Counter(kept["id"].to_pylist()) == count_range(50)


def test_the_mark_refuses_an_epoch_that_begins_elsewhere(landed, checkpoint, words):
    said(checkpoint, "--from", 2, *words)
    (checkpoint / "offsets/1").write_text("v1\n{}\n19")
    with pytest.raises(PlanningFailed, match="CheckpointMismatch"):
        landed.run(2, 45)


@pytest.mark.usefixtures("landed")
@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_replay_into_iceberg_can_be_killed_before_each_change(place, where, words, stride):
    def check():
        assert ids_in(place / "w") == count_range(20)
        again = Stream(IcebergWriter, place / "c", **where)
        again.run(2, 35)
        again.run(3, 50)
        assert ids_in(place / "w") == count_range(50)

    assert kill_everywhere(place, (place / "c", "--from", 2, *words), check, stride) > 15


@pytest.mark.long
def test_a_commit_whose_answer_is_lost_is_found_by_the_next_run(
    landed, checkpoint, place, words, monkeypatch
):
    from krishiv_spark.sinks.iceberg.epoch_snapshot import EpochTransaction

    original = EpochTransaction.compare_and_set

    def lost(self):
        original(self)
        raise ConnectionResetError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(EpochTransaction, "compare_and_set", lost)
        assert "run the command again" in refused(checkpoint, "--from", 2, *words)
    said(checkpoint, *words)
    landed.run(2, 45)
    assert ids_in(place / "w") == count_range(45)


def test_a_driver_in_the_middle_of_an_epoch_is_found_out_by_the_next_start(
    landed, checkpoint, place, words
):
    """The user has said --stopped, and that is wrong: it is no silent loss, and can be mended."""
    (checkpoint / "offsets/5").write_text("v1\n{}\n60")
    landed.plan()
    message = landed.task(5, 0, landed.rows(50, 60))
    said(checkpoint, "--from", 2, *words, "--stopped")
    landed.commit(5, [message])
    forget()
    with pytest.raises(PlanningFailed, match=r"CheckpointMismatch: .* the sink has epoch 5"):
        landed.run(2, 60)
    assert ids_in(place / "w") == count_range(20) + Counter(range(50, 60))
    said(checkpoint, "--from", 2, *words, "--stopped")
    landed.run(2, 60)
    assert ids_in(place / "w") == count_range(60)


def test_an_idle_driver_that_outlives_a_replay_is_refused_at_its_next_epoch(
    landed, checkpoint, place, words
):
    """All its epochs are over, so --stopped is not asked for. Its memory is at epoch 4."""
    said(checkpoint, "--from", 2, *words)
    forget()
    (checkpoint / "offsets/5").write_text("v1\n{}\n60")
    with pytest.raises(PlanningFailed, match=r"CheckpointMismatch: .*lacks epoch 4.*rewind"):
        landed.plan()
    assert ids_in(place / "w") == count_range(20)
    command("checkpoint", "rewind", checkpoint, "--to", 1)
    landed.run(2, 60)
    assert ids_in(place / "w") == count_range(60)


def test_a_second_run_keeps_what_the_first_one_has_undone(
    landed, checkpoint, place, words, monkeypatch
):
    """A driver that was not stopped has committed in between."""
    before = table_in(place / "w").metadata.current_snapshot_id
    (checkpoint / "offsets/5").write_text("v1\n{}\n60")
    landed.plan()
    message = landed.task(5, 0, landed.rows(50, 60))
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointRewind, "run", _die)
        assert run(checkpoint, "--from", 2, *words, "--stopped").exit_code != 0
    forget()
    landed.commit(5, [message])
    forget()
    said(checkpoint, *words)
    landed.run(2, 45)
    assert ids_in(place / "w") == count_range(45)
    refs = table_in(place / "w").metadata.refs
    assert before in {ref.snapshot_id for name, ref in refs.items() if name != "main"}
    assert len(refs) == 3


def _die(*_):
    raise KeyboardInterrupt


def test_a_snapshot_of_another_writer_is_not_undone(landed, checkpoint, place, words):
    other = append(place / "w", pa.table(rows(1000, 3).to_pydict(), SCHEMA))
    forget()
    landed.run(5)
    before = files(place)
    text = refused(checkpoint, "--from", 4, *words)
    assert f"snapshot {other} (append, by an unnamed writer)" in text
    assert f"krishiv-spark checkpoint copy {checkpoint} NEW --to 3" in text
    assert files(place) == before
    # An epoch after that of the other writer can go.
    said(checkpoint, "--from", 5, *words)
    landed.run(5, 75)
    assert ids_in(place / "w") == count_range(75) + Counter(range(1000, 1003))


@pytest.mark.usefixtures("landed")
def test_the_engine_of_another_writer_is_named(checkpoint, place, words):
    table = table_in(place / "w")
    told = {"engine-name": "spark", "engine-version": "4.1.0"}
    table.append(pa.table(rows(1000, 3).to_pydict(), SCHEMA), snapshot_properties=told)
    forget()
    assert "(append, by spark 4.1.0)" in refused(checkpoint, "--from", 4, *words)


def test_snapshots_that_have_expired_are_refused(landed, checkpoint, place, words):
    ids = [one.snapshot_id for one in table_in(place / "w").metadata.snapshots]
    expire(place / "w", *ids[:3])
    forget()
    before = files(place)
    assert "snapshots of that time have expired" in refused(checkpoint, "--from", 3, *words)
    assert files(place) == before
    said(checkpoint, "--from", 4, *words)
    landed.run(4, 70)
    assert ids_in(place / "w") == count_range(70)


def test_the_first_snapshot_of_a_table_has_none_before(checkpoint, where, words):
    stream = Stream(IcebergWriter, checkpoint, **where)
    stream.run_without_rows(0)
    for epoch in (1, 2):
        stream.run(epoch)
    assert "had no snapshot before epoch 1" in refused(checkpoint, "--from", 1, *words)


def test_epochs_without_rows_are_no_reason_to_stop(checkpoint, place, where, words):
    stream = Stream(IcebergWriter, checkpoint, **where)
    stream.run(0)
    for epoch in (1, 3):
        stream.run_without_rows(epoch)
        stream.run(epoch + 1)
    said(checkpoint, "--from", 4, *words)
    assert ids_in(place / "w") == count_range(20)
    stream.run(4, 33)
    assert ids_in(place / "w") == count_range(33)


def test_a_table_that_was_rolled_back_by_hand_gets_its_mark(landed, checkpoint, place, words):
    table = table_in(place / "w")
    base = next(one.snapshot_id for one in table.metadata.snapshots if one.sequence_number == 2)
    table.manage_snapshots().rollback_to_snapshot(base).commit()
    forget()
    assert "its committed epoch is reset to 1" in said(checkpoint, "--from", 2, *words)
    landed.run(2, 45)
    assert ids_in(place / "w") == count_range(45)


@pytest.mark.usefixtures("landed")
@pytest.mark.parametrize("more", [("--dry-run",), ()])
def test_a_warehouse_that_is_not_there_is_refused_and_not_created(checkpoint, place, more):
    before = files(place)
    words = ("-o", f"warehouse={place}/other", "-o", "table=db.t")
    assert refused(checkpoint, "--from", 2, *words, *more)
    assert files(place) == before
    assert not (place / "other").exists()


@pytest.mark.usefixtures("landed")
def test_a_table_that_has_nothing_of_the_query_is_refused(checkpoint, place, words):
    other = [word.replace("db.t", "db.other") for word in words]
    Stream(IcebergWriter, make_checkpoint(place / "c2", -1), warehouse=f"{place}/w", table="db.x")
    assert refused(checkpoint, "--from", 2, *other)


# --- copies of checkpoints


@pytest.mark.long
@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
@pytest.mark.parametrize("records", [True, False], ids=["records", "by an earlier version"])
def test_epochs_that_the_query_of_the_old_checkpoint_has_written_are_not_replayed_in_a_copy(
    checkpoint, place, where, kind, records
):
    """They are in the target under the old id, and would be there twice."""
    given = where if kind == "iceberg" else {"path": str(place / "t")}
    writer = IcebergWriter if kind == "iceberg" else ParquetWriter
    words = [word for name, text in given.items() for word in ("-o", f"{name}={text}")]
    stream = Stream(writer, checkpoint, **given)
    for epoch in range(4):
        stream.run(epoch)
    copy = place / "copy"
    command("checkpoint", "copy", checkpoint, copy)
    if kind == "parquet":
        command("log", "adopt", "--format", "parquet", "--checkpoint", copy, *words)
    if not records:
        (copy / "krishiv/copied-after.json").unlink()
    other = Stream(writer, copy, **given)
    for epoch in (4, 5):
        other.run(epoch)
    before = files(place)
    for first in (2, 3):
        text = refused(copy, "--from", first, *words)
        assert "copied from the checkpoint of another query at the end of epoch 3" in text
        assert "replay from epoch 4 or later" in text
    assert files(place) == before
    said(copy, "--from", 4, *words)
    other.run(4, 75)
    assert (ids_in(place / "w") if kind == "iceberg" else table_rows(place / "t")) == count_range(
        75
    )


def command(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    forget()


# --- memory


@pytest.fixture(autouse=True)
def own_store(place, monkeypatch):
    monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(place / "memory"))


def in_memory(key):
    return Counter(n for batch in memory_batches(key) for n in batch["id"].to_pylist())


def test_a_result_in_memory_is_found_without_options_and_goes_back(checkpoint, place):
    stream = Stream(MemoryWriter, checkpoint, name="clicks")
    for epoch in range(5):
        stream.run(epoch)
    shown = said(checkpoint, "--from", 2)
    assert "krishiv-memory: epochs 2 to 4 go out of the result" in shown
    assert in_memory("clicks") == count_range(20)
    assert len(list((place / "memory").rglob("replayed/*/*"))) == 3
    stream.run(2, 45)
    stream.run(3)
    assert in_memory("clicks") == count_range(55)


def test_an_idle_driver_that_outlives_a_replay_in_memory_is_refused(checkpoint):
    stream = Stream(MemoryWriter, checkpoint, name="clicks")
    for epoch in range(5):
        stream.run(epoch)
    said(checkpoint, "--from", 2)
    (checkpoint / "offsets/5").write_text("v1\n{}\n60")
    with pytest.raises(PlanningFailed, match=r"CheckpointMismatch: .*lacks epoch 4"):
        stream.plan()
    assert in_memory("clicks") == count_range(20)


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_replay_in_memory_can_be_killed_before_each_change(checkpoint, place, stride):
    stream = Stream(MemoryWriter, checkpoint, name="clicks")
    for epoch in range(5):
        stream.run(epoch)

    def check():
        assert in_memory("clicks") == count_range(20)
        again = Stream(MemoryWriter, checkpoint, name="clicks")
        again.run(2, 35)
        assert in_memory("clicks") == count_range(35)

    assert kill_everywhere(place, (checkpoint, "--from", 2), check, stride) > 15


def test_a_result_whose_epochs_replace_each_other_is_refused(checkpoint):
    options = {"name": "clicks", "mode": "upsert", "keyColumns": "id"}
    stream = Stream(MemoryWriter, checkpoint, **options)
    for epoch in range(3):
        stream.run(epoch)
    text = refused(checkpoint, "--from", 2)
    assert "has nothing from before epoch 2" in text
    assert f"krishiv-spark checkpoint rewind {checkpoint} --to 1" in text
    assert in_memory("clicks") == count_range(30)


# --- several targets


@pytest.fixture
def routes(place):
    return routes_below(place)


def of_routes(routes):
    return [word for name, text in routes.items() for word in ("-o", f"{name}={text}")]


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.long)])
def test_all_targets_of_a_fan_out_go_back_and_kills_leave_none_behind(
    checkpoint, place, routes, stride
):
    stream = Fan(checkpoint, routes)
    for epoch in range(4):
        stream.run(epoch)
    assert table_rows(place / "t") == ids_in(place / "w") == count_range(40)

    def check():
        assert table_rows(place / "t") == ids_in(place / "w") == count_range(20)
        again = Fan(checkpoint, routes)
        again.run(2, 35)
        again.run(3, 50)
        assert table_rows(place / "t") == ids_in(place / "w") == count_range(50)

    assert kill_everywhere(place, (checkpoint, "--from", 2, *of_routes(routes)), check, stride) > 20


@pytest.mark.parametrize("more", [("--dry-run",), ()])
def test_another_folder_of_a_route_is_refused_and_not_created(checkpoint, place, routes, more):
    stream = Fan(checkpoint, routes)
    for epoch in range(3):
        stream.run(epoch)
    before = files(place)
    said(checkpoint, "--from", 2, *of_routes(routes), "--dry-run")
    other = {**routes, "route.files.path": str(place / "other")}
    assert "files: not known" in refused(checkpoint, "--from", 2, *of_routes(other), *more)
    assert files(place) == before
    assert not (place / "other").exists()


def test_the_routes_of_a_fan_out_have_to_be_those_of_its_log(checkpoint, routes):
    stream = Fan(checkpoint, routes)
    for epoch in range(3):
        stream.run(epoch)
    one = {name: text for name, text in routes.items() if name.startswith("route.files.")}
    assert "Nothing was changed: give the options of the query's writer" in refused(
        checkpoint, "--from", 2, *of_routes(one)
    )
    assert "name the target of the query" in refused(checkpoint, "--from", 2)


def test_a_route_into_kafka_keeps_all_targets_from_going_back(checkpoint, place, routes):
    stream = Fan(checkpoint, routes)
    for epoch in range(3):
        stream.run(epoch)
    before = files(place)
    kafka = {
        "route.out.format": "krishiv-kafka",
        "route.out.topic": "t",
        "route.out.kafka.bootstrap.servers": "127.0.0.1:1",
    }
    text = refused(checkpoint, "--from", 2, *of_routes({**routes, **kafka}))
    assert "route 'out': krishiv-kafka cannot remove committed records" in text
    assert files(place) == before
