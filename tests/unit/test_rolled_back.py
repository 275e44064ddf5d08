"""A log, or a target, that was restored from an older copy while the query was stopped."""

import shutil
from collections import Counter

import pytest
from click.testing import CliRunner
from fan_queries import Fan, routes_below
from iceberg_tables import table_in
from replays import Stream, count_range, forget, said, table_rows
from spark_starts import files, make_checkpoint

from krishiv_spark.cli import main
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import PlannedOffsets, open_log
from krishiv_spark.offsets.journal import StoredEntries
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks import log_checks
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.fanout.participant import FanoutParticipant
from krishiv_spark.sinks.parquet.disk_table import DiskParticipant
from krishiv_spark.sinks.parquet.writer import ParquetWriter


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


@pytest.fixture
def checkpoint(place):
    return make_checkpoint(place / "c", -1)


@pytest.fixture
def routes(place):
    return routes_below(place)


@pytest.fixture
def fan(checkpoint, routes):
    """Epochs 0 to 2 of ten rows each, in both targets; one without rows for the table comes."""
    query = Fan(checkpoint, routes, without_lake={5})
    for epoch in range(3):
        query.run(epoch)
    return query


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """A process of its own for each query."""
    monkeypatch.setattr(log_checks, "_epochs", LruCache(64))


def start_again():
    log_checks._epochs = LruCache(64)
    forget()


class Copy:
    """A copy of a folder, by an operator."""

    def __init__(self, folder):
        self.folder = folder
        self.copy = folder.parent.parent / f"copy-of-{folder.name}"
        shutil.copytree(folder, self.copy)

    def put_back(self):
        shutil.rmtree(self.folder)
        shutil.copytree(self.copy, self.folder)
        start_again()


def words_of(options):
    return [word for name, text in options.items() for word in ("-o", f"{name}={text}")]


def command(*words, fails=None):
    start_again()
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert (done.exit_code != 0) == (fails is not None), done.output
    assert (fails or "") in done.output
    start_again()


def lake_rows(place):
    forget()
    return Counter(table_in(place / "w").scan().to_arrow()["id"].to_pylist())


def both(place):
    found = table_rows(place / "t")
    assert found == lake_rows(place)
    return found


def refused(query, number, why, place):
    """Nothing of the epoch is staged or logged: the same start is refused again."""
    start_again()
    texts = []
    for _ in range(2):
        before = {name for name in files(place) if not name.startswith("c/offsets")}
        with pytest.raises(PlanningFailed, match=why) as caught:
            query.run(number)
        assert {name for name in files(place) if not name.startswith("c/offsets")} == before
        texts.append(str(caught.value))
    return texts[0]


# --- the log is older than a target


def test_a_checkpoint_with_its_log_is_put_back_under_a_fan_out(fan, checkpoint, place):
    old = Copy(checkpoint)
    fan.run(3)
    newest = shutil.copytree(checkpoint, place.parent / "newest")
    old.put_back()
    text = refused(fan, 3, "CheckpointMismatch", place)
    assert "route 'files': Parquet table" in text
    assert "restored from an older copy" in text
    shutil.rmtree(checkpoint)
    shutil.copytree(newest, checkpoint)
    start_again()
    fan.run(4)
    assert both(place) == count_range(50)


@pytest.mark.parametrize("end", [40, 50], ids=["the same rows", "other rows"])
def test_the_mark_of_a_table_alone_shows_that_the_log_is_older(fan, checkpoint, place, end):
    old = Copy(checkpoint)
    fan.run(3)
    for folder in (place / "t/_krishiv").glob("*/staged/*"):
        shutil.rmtree(folder)  # as an earlier version leaves it
    old.put_back()
    start_again()
    why = r"route 'lake': Iceberg table .* has epoch 3 of query"
    with pytest.raises(PlanningFailed, match=why):
        fan.run(3, end)
    assert both(place) == count_range(40)


def test_a_mark_of_the_same_number_with_other_rows_is_a_mismatch(fan, checkpoint):
    """Also right after the intent: another copy of checkpoint and log has run meanwhile."""
    participant = fan._make().committer().participant
    state = open_log(str(checkpoint / "krishiv"), fan._query).state()
    good = Epoch(fan._query, 2, state.intent_generation, state.committed_offsets)
    other = PlannedOffsets.of(2, {"0": "20"}, {"0": "31"})
    lake = participant._parts["lake"]
    part = f"{fan._query}-lake"
    assert lake.is_finished(Epoch(part, 2, 1, good.offsets))
    assert lake.is_finished(Epoch(part, 2, 1))  # marks of version 0.1.0: the number decides
    assert not lake.is_finished(Epoch(part, 2, 1, other))
    assert lake.is_finished(
        Epoch(part, 1, 1, good.offsets and PlannedOffsets.of(1, {"0": "10"}, {"0": "20"}))
    )
    assert not lake.is_finished(Epoch(part, 1, 1, other))


def test_an_intent_is_not_finished_by_the_mark_of_another_history(
    fan, checkpoint, place, monkeypatch
):
    """The log goes back to an epoch whose intent was logged and not finished yet."""
    with monkeypatch.context() as dying:
        dying.setattr(FanoutParticipant, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            fan.run_to_commit(3, 35)
    old = Copy(checkpoint)
    (checkpoint / "offsets/3").unlink()
    fan.run_to_commit(3, 35)
    (checkpoint / "commits/3").write_text("v1\n{}")
    fan.run(4)
    assert both(place) == count_range(45)
    old.put_back()
    refused(fan, 3, "CheckpointMismatch", place)
    assert both(place) == count_range(45)


def die(*_):
    raise KeyboardInterrupt


def test_a_log_elsewhere_that_is_put_back_with_the_checkpoint(checkpoint, place):
    query = Stream(ParquetWriter, checkpoint, path=f"{place}/t", epochLog=f"{place}/log")
    for epoch in range(2):
        query.run(epoch)
    olds = [Copy(checkpoint), Copy(place / "log")]
    query.run(2)
    query.run(3)
    for old in olds:
        old.put_back()
    refused(query, 2, "CheckpointMismatch: Parquet table .* has a later epoch", place)
    assert table_rows(place / "t") == count_range(40)


@pytest.mark.parametrize("before", ["prepare", "finish"])
def test_a_log_that_was_copied_while_an_epoch_ran_is_put_back_with_the_checkpoint(
    elsewhere, checkpoint, place, before
):
    """A copy from before the intent lacks an epoch that the table has."""
    copies = []
    original = getattr(DiskParticipant, before)

    def copy(*given):
        copies.extend(Copy(folder) for folder in (checkpoint, place / "log"))
        return original(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskParticipant, before, copy)
        elsewhere.run(2)
    for old in copies:
        old.put_back()
    if before == "prepare":
        why = "CheckpointMismatch: Parquet table .* has a later epoch"
        refused(elsewhere, 2, why, place)
    else:  # the copy has the intent
        elsewhere.run(2)
    assert table_rows(place / "t") == count_range(30)


def test_replay_goes_on_where_the_log_is_older(fan, checkpoint, place, routes):
    old = Copy(checkpoint)
    fan.run(3)
    fan.run(4)
    old.put_back()
    text = refused(fan, 3, "CheckpointMismatch", place)
    assert "'krishiv-spark replay CHECKPOINT --from 3' takes them out of all targets" in text
    said(checkpoint, "--from", 3, "--stopped", *words_of(routes))
    start_again()
    assert both(place) == count_range(30)
    fan.run(3, 45)
    start_again()
    fan.run(4)
    assert both(place) == count_range(55)


def test_resolve_does_not_hide_that_the_log_is_older(fan, checkpoint, place, routes):
    old = Copy(checkpoint)
    fan.run(3)
    old.put_back()
    words = ("--format", "fanout", "--checkpoint", checkpoint, *words_of(routes))
    command("log", "resolve", *words, fails="restored from an older copy")
    refused(fan, 3, "CheckpointMismatch", place)


# --- a target is older than the log


@pytest.mark.long
@pytest.mark.parametrize(("target", "names"), [("t", "route 'files'"), ("w", "route 'lake'")])
@pytest.mark.parametrize("knows", ["Spark", "log"])
def test_a_target_of_a_fan_out_is_put_back(fan, checkpoint, place, routes, target, names, knows):
    old = Copy(place / target)
    fan.run(3)
    fan.run(4)
    newest = shutil.copytree(place / target, place.parent / "newest")
    if knows == "log":
        words = ("--format", "fanout", "--checkpoint", checkpoint, *words_of(routes))
        command("log", "resolve", *words)
    old.put_back()
    text = refused(fan, 5, f"CheckpointMismatch: {names}: .* lacks epochs 3 to 4 of query", place)
    assert "the target was restored from an older copy" in text
    shutil.rmtree(place / target)
    shutil.copytree(newest, place / target)
    start_again()
    fan.without_lake = set()
    fan.run(5)
    assert both(place) == count_range(60)


def test_a_table_is_put_back_before_an_epoch_that_had_no_rows_for_it(fan, place):
    old = Copy(place / "w")
    for epoch in (3, 4, 5):
        fan.run(epoch)
    old.put_back()
    refused(fan, 6, "route 'lake': Iceberg table .* lacks epochs 3 to 4 of query", place)


def test_a_table_that_had_no_rows_since_is_no_older_copy(fan, place):
    fan.run(3)
    fan.without_lake = {4, 5}
    old = Copy(place / "w")
    for epoch in (4, 5):
        fan.run(epoch)
    old.put_back()
    fan.run(6)
    assert lake_rows(place) == count_range(40) + Counter(range(60, 70))


@pytest.fixture
def elsewhere(checkpoint, place):
    query = Stream(ParquetWriter, checkpoint, path=f"{place}/t", epochLog=f"{place}/log")
    for epoch in range(2):
        query.run(epoch)
    return query


def test_a_table_whose_log_is_elsewhere_is_put_back(elsewhere, place):
    old = Copy(place / "t")
    elsewhere.run(2)
    old.put_back()
    refused(elsewhere, 3, "CheckpointMismatch: Parquet table .* lacks epoch 2 of query", place)
    assert table_rows(place / "t") == count_range(20)


@pytest.mark.parametrize("is_stripped", [False, True], ids=["whole", "without empty folders"])
def test_a_table_is_put_back_from_before_the_first_epoch(checkpoint, place, is_stripped):
    """Other writers had the table before: it has an id, and nothing of the query yet."""
    run_another(place)
    old = Copy(place / "t")
    query = Stream(ParquetWriter, checkpoint, path=f"{place}/t", epochLog=f"{place}/log")
    for epoch in range(2):
        query.run(epoch)
    if is_stripped:
        remove_empty(old.copy)
    old.put_back()
    refused(query, 2, "lacks epochs 0 to 1", place)


def test_a_first_epoch_is_not_finished_where_the_table_is_put_back(checkpoint, place, monkeypatch):
    run_another(place)
    old = Copy(place / "t")
    query = Stream(ParquetWriter, checkpoint, path=f"{place}/t", epochLog=f"{place}/log")
    with monkeypatch.context() as dying:
        dying.setattr(DiskParticipant, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            query.run(0)
    old.put_back()
    with pytest.raises(PlanningFailed, match=r"CommitUnknown: .* has nothing of it"):
        query.run(0)


def test_a_copy_without_empty_folders_is_an_older_copy(elsewhere, place):
    """As stores, git and 'rsync -m' make it."""
    old = Copy(place / "t")
    remove_empty(old.copy)
    elsewhere.run(2)
    old.put_back()
    refused(elsewhere, 3, "lacks epoch 2", place)


def test_a_clean_up_of_empty_folders_changes_nothing(elsewhere, place):
    elsewhere.run(2)
    remove_empty(place)
    for path in (place / "t").glob("part-*.parquet"):
        path.unlink()
    start_again()
    elsewhere.run(3)
    assert table_rows(place / "t") == Counter(range(30, 40))


def run_another(place):
    other = make_checkpoint(place / "other", -1)
    (other / "metadata").write_text('{"id":"5e1f0d6c-3a55-4d0e-9a52-0d7a0f1d2c3b"}')
    Stream(ParquetWriter, other, path=f"{place}/t", epochLog=f"{place}/others").run(0)


def remove_empty(folder):
    """Remove what 'find -empty -delete' removes of folders."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def test_replay_writes_again_what_the_older_copy_lacks(elsewhere, checkpoint, place):
    old = Copy(place / "t")
    elsewhere.run(2)
    elsewhere.run(3)
    old.put_back()
    text = refused(elsewhere, 4, "lacks epochs 2 to 3", place)
    assert "'krishiv-spark replay CHECKPOINT --from 2' rewinds all targets" in text
    said(checkpoint, "--from", 2, "--stopped", "--table", place / "t", "--epoch-log", place / "log")
    start_again()
    elsewhere.run(2)
    elsewhere.run(3, 50)
    start_again()
    elsewhere.run(4)
    assert table_rows(place / "t") == count_range(60)


@pytest.mark.long
@pytest.mark.parametrize("target", ["t", "w"])
def test_replay_writes_again_what_one_target_of_a_fan_out_lacks(
    fan, checkpoint, place, routes, target
):
    old = Copy(place / target)
    fan.run(3)
    fan.run(4)
    old.put_back()
    refused(fan, 5, "lacks epochs 3 to 4", place)
    said(checkpoint, "--from", 3, "--stopped", *words_of(routes))
    start_again()
    fan.run(3)
    fan.run(4, 60)
    start_again()
    fan.without_lake = set()
    fan.run(5)
    assert both(place) == count_range(70)


def test_adopt_goes_on_without_what_the_older_copy_lacks(elsewhere, checkpoint, place):
    old = Copy(place / "t")
    elsewhere.run(2)
    old.put_back()
    assert "'krishiv-spark log adopt' continues without them" in refused(
        elsewhere, 3, "lacks", place
    )
    (checkpoint / "offsets/3").unlink()
    given = {"path": place / "t", "epochLog": place / "log"}
    command("log", "adopt", "--format", "parquet", "--checkpoint", checkpoint, *words_of(given))
    elsewhere.run(3)
    start_again()
    elsewhere.run(4)
    assert table_rows(place / "t") == count_range(50) - Counter(range(20, 30))


@pytest.mark.parametrize("outcome", ["committed", "aborted"])
def test_a_table_is_put_back_behind_an_intent_that_is_not_finished(
    elsewhere, checkpoint, place, monkeypatch, outcome
):
    old = Copy(place / "t")
    with monkeypatch.context() as dying:
        dying.setattr(DiskParticipant, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            elsewhere.run(2)
    old.put_back()
    with pytest.raises(PlanningFailed, match=r"CommitUnknown: .* has nothing of it") as caught:
        elsewhere.run(2)
    assert f"--assume {outcome}" in str(caught.value)
    assert table_rows(place / "t") == count_range(20)
    given = {"path": place / "t", "epochLog": place / "log"}
    where = ("--format", "parquet", "--checkpoint", checkpoint, *words_of(given))
    command("log", "resolve", "--assume", outcome, *where)
    elsewhere.run(2)
    elsewhere.run(3)
    start_again()
    elsewhere.run(4)
    passed = Counter(range(20, 30)) if outcome == "committed" else Counter()
    assert table_rows(place / "t") == count_range(50) - passed


def test_a_copy_from_the_middle_of_an_epoch_is_an_older_copy(elsewhere, place):
    copied = []
    original = DiskParticipant.prepare

    def prepare(self, epoch, staged, salvaged):
        copied.append(Copy(place / "t"))
        return original(self, epoch, staged, salvaged)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskParticipant, "prepare", prepare)
        elsewhere.run(2)
    copied[0].put_back()
    refused(elsewhere, 3, "lacks epoch 2", place)


# --- what is no older copy


def test_files_that_were_deleted_moved_or_compacted_are_no_older_copy(elsewhere, place):
    elsewhere.run(2)
    for path in (place / "t").glob("part-*.parquet"):
        path.unlink()
    start_again()
    elsewhere.run(3)
    assert table_rows(place / "t") == Counter(range(30, 40))


def test_epochs_without_rows_change_nothing(elsewhere, place):
    elsewhere.run_without_rows(2)
    old = Copy(place / "t")
    elsewhere.run_without_rows(3)
    old.put_back()
    elsewhere.run(4)
    assert table_rows(place / "t") == count_range(30)


def test_a_table_of_an_earlier_version_goes_on(elsewhere, place):
    def remove(self, folder, **_):
        shutil.rmtree(f"{self._table}/{folder}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskParticipant, "_end_generation", remove)
        for epoch in (2, 3):
            elsewhere.run(epoch)
            start_again()
    for folder in (place / "t/_krishiv").glob("*/staged/*.done"):
        shutil.rmtree(folder)
    for epoch in (4, 5, 6):
        elsewhere.run(epoch)
        start_again()
    assert table_rows(place / "t") == count_range(70)


def test_a_driver_that_was_taken_over_from_finishes_late(elsewhere, place, monkeypatch):
    """Its trace is older than that of its successor, and does not hide it."""
    late = []
    original = DiskParticipant.finish
    with monkeypatch.context() as sleeping:
        sleeping.setattr(
            DiskParticipant, "finish", lambda self, *given: late.append((self, given)) or die()
        )
        with pytest.raises(KeyboardInterrupt):
            elsewhere.run(2)
    start_again()
    elsewhere.run(2)
    elsewhere.run(3)
    ((slow, given),) = late
    original(slow, *given)
    start_again()
    elsewhere.run(4)
    assert table_rows(place / "t") == count_range(50)


def test_a_log_that_was_removed_and_adopted_counts_from_one(elsewhere, checkpoint, place):
    for epoch in (2, 3, 4):
        elsewhere.run(epoch)
    shutil.rmtree(place / "log")
    start_again()
    given = {"path": place / "t", "epochLog": place / "log"}
    command("log", "adopt", "--format", "parquet", "--checkpoint", checkpoint, *words_of(given))
    for epoch in (5, 6):
        elsewhere.run(epoch)
        start_again()
    old = Copy(place / "t")
    elsewhere.run(7)
    old.put_back()
    refused(elsewhere, 8, "lacks epoch 7", place)


def test_a_target_that_is_put_back_while_the_session_lives_is_found(elsewhere, place, monkeypatch):
    monkeypatch.setattr(log_checks, "_PAUSE_S", 0.0)
    old = Copy(place / "t")
    elsewhere.run(2)
    shutil.rmtree(place / "t")
    shutil.copytree(old.copy, place / "t")
    with pytest.raises(PlanningFailed, match="lacks epoch 2"):
        elsewhere.run(3)


def test_a_driver_compares_when_it_starts_and_after_a_pause(elsewhere, monkeypatch):
    monkeypatch.setattr(log_checks, "_PAUSE_S", 60.0)
    looked = []
    original = DiskParticipant.contains
    monkeypatch.setattr(
        DiskParticipant, "contains", lambda self, *given: looked.append(1) or original(self, *given)
    )
    start_again()
    for epoch in (2, 3, 4):
        elsewhere.run(epoch)
    assert len(looked) == 1
    monkeypatch.setattr(log_checks, "_PAUSE_S", -1.0)
    elsewhere.run(5)
    assert len(looked) == 2


def test_what_stays_staged_after_an_epoch_is_one_empty_folder(elsewhere, place):
    for epoch in range(2, 6):
        elsewhere.run(epoch)
    names = sorted(path.name for path in (place / "t/_krishiv").glob("*/staged/*"))
    assert len(names) == 2
    assert all(name.endswith(".done") for name in names)


def test_a_route_without_rows_does_not_have_the_log_read_back_after_each_pause(
    fan, place, monkeypatch
):
    """A process remembers the newest epoch of each target; a restored target is still found."""
    monkeypatch.setattr(log_checks, "_PAUSE_S", -1.0)
    fan.without_lake = {*range(3, 20)}
    fan.run(3)
    start_again()
    fan.run(4)
    reads = []
    original = StoredEntries.iter_newest_first
    monkeypatch.setattr(
        StoredEntries, "iter_newest_first", lambda self: reads.append(1) or original(self)
    )
    for epoch in range(5, 9):
        fan.run(epoch)
    assert not reads
    old = Copy(place / "w")
    fan.without_lake.discard(9)
    for epoch in (9, 10):
        fan.run(epoch)
    assert not reads
    shutil.rmtree(place / "w")
    shutil.copytree(old.copy, place / "w")
    forget()
    with pytest.raises(PlanningFailed, match=r"route 'lake': .* lacks epoch 9 of query"):
        fan.run(11)


def test_a_table_of_a_named_query_is_put_back(checkpoint, place):
    query = Stream(
        ParquetWriter, checkpoint, path=f"{place}/t", epochLog=f"{place}/log", queryId="n"
    )
    for epoch in range(2):
        query.run(epoch)
    old = Copy(place / "t")
    query.run(2)
    old.put_back()
    refused(query, 3, "lacks epoch 2", place)
