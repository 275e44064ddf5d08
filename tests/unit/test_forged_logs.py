"""Forgeries by another user with write access to a table's folder: no effect outside of it."""

import json
import logging
import os
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sink_life import Job, Life, dies_at, rows
from tables import visible_names

from krishiv_spark.errors import (
    CommitUnknown,
    KrishivError,
    LinkError,
    LogError,
    OffsetError,
    StorageError,
)
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log
from krishiv_spark.parquet.layout import log_folder, staged_name
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.parquet.staging import StagedFiles
from krishiv_spark.sinks.parquet.vacuum import find_orphans, find_unused_state, remove_orphan
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.parquet.offset import ParquetOffset
from krishiv_spark.sources.parquet.reader import ParquetReader, ParquetSourceOptions
from krishiv_spark.storage.paths import check_file_name, check_name_within

QUERY = "8d9c3a52-5b8e-4f0e-9a55-4c9a5a3f0001"


@pytest.fixture
def table(tmp_path):
    """A table of ten rows that others may write."""
    folder = tmp_path / "shared" / "table"
    life(folder).epoch(0, rows(0, 10))
    return folder


@pytest.fixture
def victim(tmp_path):
    """Files of the user who writes the table, which nobody else may touch."""
    folder = tmp_path / "victim"
    (folder / ".ssh").mkdir(parents=True)
    (folder / "precious.db").write_text("years of work")
    (folder / ".ssh" / "authorized_keys").write_text("the victim's")
    pq.write_table(pa.table({"id": pa.array([666], pa.int64())}), folder / "secret.parquet")
    before = contents(folder)
    yield folder
    assert contents(folder) == before


def life(folder, query="q1", mode=OutputMode.APPEND, **options):
    return Life(ParquetWriter, {"path": str(folder), **options}, query, mode)


def job(folder, **options):
    return Job(ParquetWriter, {"path": str(folder), **options})


def contents(folder):
    """Everything below a folder, with what `touch` and `chmod` change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (data, status.st_mode, status.st_mtime_ns, status.st_nlink)
    return found


def forge(table, staged, query="batch-evil", staged_names=("authorized_keys.staged",)):
    """An epoch log with an intent that nobody has finished, and what it names."""
    folder = table / "_krishiv" / query
    (folder / "log").mkdir(parents=True)
    (folder / "staged" / "1").mkdir(parents=True)
    for name in staged_names:
        (folder / "staged" / "1" / name).write_text("the attacker's")
    write_entries(folder / "log", query, staged)


def write_entries(log, query, staged):
    same = {"v": 1, "writer": "x"}
    owner = {**same, "kind": "owner", "nonce": "a", "claim": {"query": query}}
    intent = {**same, "kind": "intent", "nonce": "b", "epoch": 0, "staged": staged}
    for number, entry in enumerate((owner, intent), 1):
        (log / f"{number:020d}.json").write_text(json.dumps(entry))


def named(name="authorized_keys", folder="", removes=()):
    file = {"name": name, "folder": folder, "rows": 0, "size": 0}
    return [{"folder": "", "files": [file], "removes": [*removes]}]


OUT = "../../victim"
HOSTILE = [
    named(folder=f"{OUT}/.ssh"),
    named(name=f"{OUT}/.ssh/authorized_keys"),
    named(removes=[f"{OUT}/precious.db"]),
    named(removes=["a/../../../victim/precious.db"]),
    named(name="a\0b"),
    named(name=".."),
    named(name=""),
    named(folder="/tmp"),
    named(folder="a//b"),
    named(name="a\\b"),
    named(folder="..\\..\\victim"),
    [{"files": 1}],
    [{"files": [{"name": 1}]}],
    {"files": []},
    7,
    None,
]


@pytest.mark.long
@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("staged", HOSTILE, ids=range(len(HOSTILE)))
def test_a_forged_intent_of_a_job_is_left_alone_by_the_next_writer(table, staged, caplog):
    forge(table, staged)
    life(table).epoch(1, rows(10, 5))
    job(table).epoch(0, rows(20, 5))
    assert "batch-evil has published, but not all of it" in caplog.text
    assert len(visible_names(table)) == 3


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("staged", HOSTILE, ids=range(len(HOSTILE)))
def test_a_forged_intent_of_the_own_query_is_an_error_that_names_it(table, staged):
    log = open_log(str(log_folder(table, "q1")))
    log.intend(log.begin().owner, 7, staged)
    (table / "_krishiv/q1/staged" / str(log.state().intent_generation)).mkdir(parents=True)
    with pytest.raises((PlanningFailed, LogError), match="cannot have been staged: "):
        life(table).plan()


def read(table, *, streaming=False):
    reader = ParquetReader(
        ParquetSourceOptions(path=str(table)), pa.schema([("id", pa.int64())]), streaming=streaming
    )
    start = reader.initial()
    end = reader.latest(start, UNLIMITED)
    parts = reader.plan(start, end)
    return [row["id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize(
    "staged",
    [named("secret.parquet", OUT), named(f"{OUT}/secret.parquet"), [{"files": [7]}], 7],
    ids=range(4),
)
def test_a_reader_takes_no_rows_out_of_files_outside_of_the_table(tmp_path, streaming, staged):
    table = tmp_path / "shared" / "table"
    table.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), table / "plain.parquet")
    forge(table, staged, QUERY, ())
    (table / "_krishiv" / QUERY / "staged" / "1").rmdir()
    with pytest.raises(
        LogError, match=r"names something that is not a file of table .* nothing was read"
    ):
        read(table, streaming=streaming)


def test_a_link_to_a_file_is_read_as_spark_reads_it(table, tmp_path):
    pq.write_table(pa.table({"id": pa.array([77], pa.int64())}), tmp_path / "77.parquet")
    (table / "linked.parquet").symlink_to(tmp_path / "77.parquet")
    assert 77 in read(table)


@pytest.mark.parametrize(
    "change",
    [
        {"files": [["../x.parquet", 1, 1]]},
        {"files": [["/x.parquet", 1, 1]]},
        {"files_in": "../x"},
        {"seen_in": [["../x", 1]]},
        {"epochs_in": "a/b"},
        {"stream": ".."},
    ],
    ids=str,
)
def test_an_offset_names_only_files_of_its_place(change):
    text = json.dumps({**json.loads(ParquetOffset().to_json()), **change})
    with pytest.raises(OffsetError, match="damaged parquet offset"):
        ParquetOffset.from_json(text)


HONEST = [
    "a=%2F/b=__HIVE_DEFAULT_PARTITION__/x.parquet",
    "day=2013-01-01 05%3A00/naïve é.parquet",
    "a=./x",
    "..a/b..",
    "...",
    "a=..",
    "\u2024\u2024/x",  # one-dot leaders, which no file system takes for dots
    "weird\\name.parquet",
    "line\nbreak",
    "%2e%2e/x",
    "x" * 255,
]


@pytest.mark.parametrize("name", HONEST)
def test_honest_names_stay_what_they_are(name, tmp_path):
    assert check_name_within(name) == name
    assert StagedFiles(removes=(name,)).removes == (name,)
    inside = os.path.normpath(tmp_path / name)
    assert inside.startswith(f"{tmp_path}/")


@given(st.text(st.sampled_from("./\\a\0 \n\u2024"), max_size=8))
def test_a_name_that_is_accepted_stays_below_its_folder(name):
    for check in (check_name_within, check_file_name):
        try:
            check(name)
        except ValueError:
            continue
        for text in (name, name.replace("\\", "/")):
            assert f"{os.path.normpath(f'/table/{text}')}/".startswith("/table/")
            assert "\0" not in text
    # Those without any such part are accepted.
    parts = name.replace("\\", "/").split("/")
    if not {"", ".", ".."} & {*parts} and "\0" not in name:
        check_name_within(name)


# --- any mutation of a real entry


ODD = [None, True, -1, 1e9, [], {}, "", "..", "/", "\0", "\ud800", "a/b"]
ELSEWHERE = [f"{OUT}/precious.db", f"{OUT}/.ssh", OUT, "../" * 9 + "etc/passwd"]


def locations(value, above=()):
    """The keys on the way to each part of a JSON value."""
    yield above
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield from locations(value[key], (*above, key))


def mutated(draw, value):
    """JSON like a value, with one or two parts of it replaced."""
    for _ in range(draw(st.integers(1, 2))):
        every = [*locations(value)]
        texts = [one for one in every if isinstance(part(value, one), str)] or every
        location = draw(st.sampled_from(texts) | st.sampled_from(every))
        odd = st.sampled_from([*ODD, ELSEWHERE]) | st.text(max_size=5)
        value = replaced(value, location, draw(st.sampled_from(ELSEWHERE) | odd))
    return value


def part(value, location):
    return part(value[location[0]], location[1:]) if location else value


def replaced(value, location, by):
    if not location:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[location[0]] = replaced(value[location[0]], location[1:], by)
    return copy


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The entries of a job that died after its intent, which replaces files."""
    folder = tmp_path_factory.mktemp("real") / "shared" / "table"
    job(folder, partitionBy="day").epoch(0, rows(0, 3))
    given = {"path": str(folder), "partitionBy": "day"}
    dead = Job(ParquetWriter, given, OutputMode.REPLACE)
    for step in range(200):
        assert dies_at(step, lambda: dead.epoch(0, rows(10, 10)), after=True)
        logs = [path.parent for path in folder.glob("_krishiv/batch-*/log/*2.json")]
        if logs:
            break
    return [json.loads(path.read_text()) for path in sorted(logs[0].glob("*.json"))]


def planted(folder, entries, staged):
    """The log of a job, and the files that it has staged."""
    own = folder / "_krishiv" / "batch-evil"
    (own / "log").mkdir(parents=True)
    (own / "staged" / "1").mkdir(parents=True)
    for item in staged:
        for file in item["files"]:
            (own / "staged" / "1" / staged_name(file["name"])).write_text("the attacker's")
    for number, entry in enumerate(entries, 1):
        text = json.dumps(entry).replace(REAL, "batch-evil")
        (own / "log" / f"{number:020d}.json").write_text(text)


REAL = "batch-REAL"


@pytest.mark.long
@settings(max_examples=80, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_no_mutation_of_an_entry_makes_a_planner_touch_a_file_outside(data, real, tmp_path_factory):
    root = tmp_path_factory.mktemp("mutated")
    outside = root / "victim"
    (outside / ".ssh").mkdir(parents=True)
    (outside / "precious.db").write_text("x")
    text = json.dumps(real).replace(real[0]["claim"]["query"], REAL)
    owner, intent = json.loads(text)
    staged = intent["staged"]
    changed = {**intent, "staged": mutated(data.draw, staged)}
    if data.draw(st.integers(0, 4)) == 0:
        owner, changed = mutated(data.draw, owner), mutated(data.draw, intent)
    folder = root / "shared" / "table"
    planted(folder, [owner, changed], staged)
    before = contents(outside)
    life(folder).plan()
    for read_it in (lambda: [*find_orphans(folder, 0.0)], lambda: read(folder)):
        with suppress(KrishivError):
            read_it()
    assert contents(outside) == before


# --- links


def superseded(table, query=QUERY):
    log = table / "_krishiv" / query / "log"
    log.mkdir(parents=True)
    for number in (1, 2):
        entry = {"v": 1, "kind": "owner", "nonce": str(number), "writer": "x"}
        (log / f"{number:020d}.json").write_text(json.dumps(entry))
    return table / "_krishiv" / query / "staged"


def vacuum(table):
    for orphan in [*find_orphans(table, -10.0), *find_unused_state(table, -10.0)]:
        remove_orphan(orphan)


def test_vacuum_follows_no_link(table, victim):
    staged = superseded(table)
    staged.mkdir()
    (staged / "1").symlink_to(victim)
    (staged.parent.with_name("batch-x")).symlink_to(victim)
    (table / "_krishiv_sources").mkdir()
    (table / "_krishiv_sources" / "s").symlink_to(victim)
    other = superseded(table, "other")
    other.symlink_to(victim)
    vacuum(table)
    assert (staged / "1").is_symlink()


def test_vacuum_follows_no_link_that_is_put_there_after_it_has_looked(table, victim):
    staged = superseded(table)
    (staged / "1").mkdir(parents=True)
    (staged / "1" / "precious.db").write_text("staged")
    (staged / "1" / "inner").mkdir()
    found = [*find_orphans(table, -10.0)]
    assert {orphan.path.name for orphan in found} == {"precious.db", "inner"}
    (staged / "1").rename(staged / "moved")
    (staged / "1").symlink_to(victim)
    for orphan in found:
        remove_orphan(orphan)


def test_what_is_removed_with_a_folder_is_a_link_and_not_its_target(table, victim):
    staged = superseded(table)
    (staged / "1" / "inner").mkdir(parents=True)
    (staged / "1" / "inner" / "up").symlink_to(victim)
    (staged / "1" / "file").symlink_to(victim / "precious.db")
    vacuum(table)
    assert [*(staged / "1").iterdir()] == [staged / "1" / "file"]


@pytest.mark.parametrize("linked", ["day=d1", "_krishiv", "_krishiv/q1", "_krishiv/q1/staged"])
def test_no_epoch_is_published_through_a_link(table, victim, linked):
    driver = life(table, partitionBy="")
    driver.plan()
    message = driver.task(1, 0, rows(10, 10))
    path = table / linked
    if path.exists():
        path.rename(path.with_name("moved"))
    path.symlink_to(victim)
    attempt = life(table, partitionBy="day", query="q2") if linked == "day=d1" else driver
    publish = forced if linked == "day=d1" else lambda one: one.commit(1, [message])
    with pytest.raises(KrishivError, match="is a link"):
        publish(attempt)


def forced(driver):
    """Write an epoch into a folder with other columns of partitions: the committer refuses it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("krishiv_spark.sinks.parquet.writer.check_partitioning", lambda *_: None)
        driver.epoch(0, rows(10, 10))


def test_a_folder_that_is_swapped_for_a_link_between_two_renames_gets_no_file(table, victim):
    driver = life(table.with_name("other"), partitionBy="day")
    driver.plan()
    other = table.with_name("other")
    messages = [driver.task(0, 0, rows(0, 10))]
    rename, seen = os.rename, []

    def swapping(source, target, **folders):
        if not seen and source.endswith(".staged"):
            for day in other.glob("day=*"):
                rename(day, day.with_name(f"_was{day.name[-2:]}"))
                day.symlink_to(victim)
            seen.append(target)
        rename(source, target, **folders)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "rename", swapping)
        with pytest.raises(CommitUnknown, match="is a link"):
            driver.commit(0, messages)
    assert seen
    for day in other.glob("day=*"):
        day.unlink()
        day.with_name(f"_was{day.name[-2:]}").rename(day)
    life(other, partitionBy="day").plan()  # the next driver finishes what is left


def test_a_task_stages_nothing_through_a_link(table, victim):
    driver = life(table)
    driver.plan()
    folders = (table / "_krishiv/q1/staged").iterdir()
    (staged,) = (folder for folder in folders if not folder.name.endswith(".done"))
    staged.rmdir()
    staged.symlink_to(victim)
    with pytest.raises(LinkError, match="is a link"):
        driver.task(1, 0, rows(10, 10))


def test_a_staged_file_that_is_a_link_is_not_published(table, victim):
    driver = life(table)
    driver.plan()
    message = driver.task(1, 0, rows(10, 10))
    (file,) = table.glob("_krishiv/q1/staged/*/*.staged")
    file.unlink()
    file.symlink_to(victim / "precious.db")
    with pytest.raises(CommitUnknown, match="is a link, or no plain file"):
        driver.commit(1, [message])


def test_the_folder_of_the_table_may_be_reached_through_a_link(table, tmp_path):
    (tmp_path / "data").symlink_to(table.parent)
    life(tmp_path / "data" / "table").epoch(1, rows(10, 5))
    assert len(read(tmp_path / "data" / "table")) == 15


def test_state_of_a_source_is_not_kept_through_a_link(table, victim):
    from krishiv_spark.sources.parquet.offset_store import StateLocation, StreamState
    from krishiv_spark.storage import StoreUrl

    (table / "_krishiv_sources").mkdir()
    (table / "_krishiv_sources" / "s").symlink_to(victim)
    before = contents(victim)
    for path in victim.rglob("*"):
        os.utime(path, (1, 1))
    aged = contents(victim)
    state = StreamState(StateLocation(StoreUrl.parse(str(table)) / "_krishiv_sources"), "s")
    with pytest.raises(StorageError, match="is a link"):
        state.keep({"precious.db"})
    assert contents(victim) == aged
    for path in sorted(victim.rglob("*")):
        os.utime(path, ns=(before[str(path)][2],) * 2)


# --- what is no file of ours, or too large


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "link"])
@pytest.mark.parametrize("name", ["_krishiv/q1/log/{number}.json", "_krishiv/q1/epoch-log"])
def test_nobody_waits_for_what_is_no_plain_file(table, victim, kind, name):
    path = table / name.format(number=f"{3:020d}")
    make = {
        "fifo": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "link": lambda: path.symlink_to(victim / "precious.db"),
    }
    make[kind]()
    with pytest.raises(StorageError, match="is a link, or no plain file"):
        within(5, lambda: read(table))


def within(seconds, work):
    """Return the result of some work, or its error; fail if it takes longer."""
    found = []

    def run():
        try:
            found.append((work(), None))
        except Exception as error:  # noqa: BLE001  raised below
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it waits"
    value, error = found[0]
    if error is not None:
        raise error
    return value


def test_a_planner_waits_for_no_fifo_among_the_files(table):
    os.mkfifo(table / "a.parquet")
    os.mkfifo(table / "b")
    within(20, lambda: life(table).epoch(1, rows(10, 5)))
    within(20, lambda: life(table, "q3", OutputMode.REPLACE).epoch(0, rows(20, 5)))


def test_a_huge_entry_or_pointer_is_not_read_into_memory(table):
    entry = table / "_krishiv/q1/log" / f"{3:020d}.json"
    with entry.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(StorageError, match=r"has 1099511627776 bytes, and more than 268435456"):
        read(table)
    entry.unlink()
    with (table / "_krishiv/q1/epoch-log").open("wb") as file:
        file.truncate(2**20)
    with pytest.raises(StorageError, match="and more than 65536"):
        read(table)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"a\0b", b"\x1b[31mred"])
def test_a_damaged_pointer_is_an_error_to_readers_and_replaced_by_its_query(table, text):
    (table / "_krishiv/q1/epoch-log").write_bytes(text)
    with pytest.raises(LogError, match="epoch-log is damaged"):
        read(table)
    life(table).epoch(1, rows(10, 5))
    assert len(read(table)) == 15


# --- pointers


def point(table, location, query="batch-evil"):
    folder = table / "_krishiv" / query
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "epoch-log").write_text(location)


@pytest.mark.parametrize("location", ["s3://elsewhere/log", "webhdfs://127.0.0.1:1/log", "nfs:x"])
def test_a_pointer_out_of_the_store_is_left_alone_and_said_once(
    table, location, caplog, monkeypatch
):
    monkeypatch.setattr("krishiv_spark.runtime.once._given", set())
    point(table, location)
    (table / "_krishiv/batch-evil/staged/1").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        life(table).epoch(1, rows(10, 5))
        life(table).epoch(2, rows(15, 5))
    said = [r.message for r in caplog.records if "in another store than the table" in r.message]
    assert len(said) == 1
    assert location in said[0]
    assert len(read(table)) == 20
    vacuum(table)
    assert (table / "_krishiv/batch-evil/staged/1").exists()


# In a new process, since a fork of one that has asked a store may not ask it.
DIES = """
import sys
from test_forged_logs import job, leave_dead
leave_dead(sys.argv[1], sys.argv[2])
"""


def leave_dead(table, logs):
    """Run a job again and again until it dies between two of its renames."""
    dead = job(Path(table), epochLog=logs)
    for step in range(200):
        assert dies_at(step, lambda: dead.epoch(0, rows(10, 10)), after=True)
        if len(visible_names(Path(table))) > 1:
            break


@pytest.mark.long  # starts a server of S3
def test_a_job_whose_log_an_option_places_in_a_store_is_finished_with_that_option(table, s3):
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", DIES, str(table), f"{s3}/logs"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=300)
    before = visible_names(table)
    life(table, "q2").epoch(0, rows(100, 1))  # without the option: left alone
    assert len(visible_names(table)) == len(before) + 1
    life(table, "q3", epochLog=f"{s3}/logs").epoch(0, rows(101, 1))
    assert sorted(read(table)) == [*range(20), 100, 101]


@pytest.mark.long  # dies at each call until a job has published
def test_a_batch_job_may_keep_its_log_out_of_the_folder(table, tmp_path):
    dead = job(table, epochLog=str(tmp_path / "logs"))
    for step in range(200):
        assert dies_at(step, lambda: dead.epoch(0, rows(10, 10)), after=True)
        if len(visible_names(table)) > 1:
            break
    assert [*table.glob("_krishiv/batch-*/log")] == []
    before = {*(tmp_path / "logs").iterdir()}
    job(table, epochLog=str(tmp_path / "logs")).epoch(0, rows(20, 10))
    assert sorted(read(table)) == [*range(30)]
    assert {*(tmp_path / "logs").iterdir()} <= before  # its own is gone


@pytest.mark.long  # dies at each call until a job has published
def test_what_is_found_out_by_a_pointer_is_of_its_table_alone(table, tmp_path):
    """Or the intent of a job would count as finished in a table where nobody has finished it."""
    real = tmp_path / "real"
    dead = job(real, epochLog=str(tmp_path / "logs"))
    for step in range(200):
        assert dies_at(step, lambda: dead.epoch(0, rows(0, 10)), after=True)
        left = [*real.glob("_krishiv/batch-*/staged/*/*.staged")]
        if visible_names(real) or (left and [*tmp_path.glob("logs/batch-*/*2.json")]):
            break
    for log in (tmp_path / "logs").glob("batch-*"):
        point(table, str(log), log.name)
    life(table).epoch(1, rows(10, 5))
    job(real, epochLog=str(tmp_path / "logs")).epoch(0, rows(10, 10))
    assert sorted(read(real)) == [*range(20)]


def test_a_private_log_of_another_user_is_passed_over_by_readers(table, tmp_path, monkeypatch):
    life(table, "q2", epochLog=str(tmp_path / "logs")).epoch(0, rows(10, 10))
    opened = os.stat

    def refusing(path, *given, **named):
        if str(path).startswith(str(tmp_path / "logs")):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(os, "stat", refusing)
    assert len(read(table)) == 20


# --- modes


def modes(folder):
    found = [folder, *folder.rglob("*")]
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in found}


@pytest.mark.parametrize("umask", ["0", "22", "77"])
def test_a_log_in_a_checkpoint_is_private_under_any_umask(tmp_path, umask):
    (tmp_path / "checkpoint").mkdir(mode=0o755)
    for place in ("checkpoint/krishiv", "scratch/krishiv/batch-1", "logs/deep/q1"):
        make_log(tmp_path / place, umask)
        found = modes(tmp_path / place)
        assert found.pop((tmp_path / place).name) == "0o700"
        assert set(found.values()) == {"0o600"}
    for made in ("scratch", "scratch/krishiv", "logs", "logs/deep"):
        assert oct(stat.S_IMODE((tmp_path / made).stat().st_mode)) == "0o700", made


def make_log(path, umask):
    before = os.umask(int(umask, 8))
    try:
        log = open_log(str(path))
        log.begin()
        log._journal.replace("x.json", b"")
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("given", "umask", "folder", "file"),
    [
        (0o755, "22", "0o755", "0o644"),
        (0o755, "0", "0o755", "0o644"),
        (0o775, "2", "0o775", "0o644"),
        (0o775, "0", "0o775", "0o644"),
        (0o777, "0", "0o775", "0o644"),
        (0o750, "0", "0o750", "0o640"),
        (0o700, "0", "0o700", "0o600"),
        (0o775, "77", "0o700", "0o600"),
    ],
)
def test_a_log_in_a_table_is_as_open_as_the_table_and_no_more(tmp_path, given, umask, folder, file):
    for table, log in (("table", "_krishiv/q1/log"), ("logs", "q1")):
        (tmp_path / table).mkdir()
        (tmp_path / table).chmod(given)
        make_log(tmp_path / table / log, umask)
        found = modes(tmp_path / table / log.partition("/")[0])
        assert {mode for name, mode in found.items() if "." not in name} == {folder}
        assert {mode for name, mode in found.items() if "." in name} == {file}


def test_modes_of_folders_that_are_there_stay(tmp_path):
    (tmp_path / "krishiv").mkdir()
    (tmp_path / "krishiv").chmod(0o2770)
    make_log(tmp_path / "krishiv", "0")
    assert stat.S_IMODE((tmp_path / "krishiv").stat().st_mode) == 0o2770


def test_a_folder_that_is_the_users_own_may_have_links(tmp_path):
    make_log(tmp_path / "kept", "22")
    (tmp_path / "checkpoint" / "krishiv").mkdir(parents=True)
    for path in (tmp_path / "kept").iterdir():
        (tmp_path / "checkpoint" / "krishiv" / path.name).symlink_to(path)
    assert open_log(str(tmp_path / "checkpoint" / "krishiv")).state().number == 1
