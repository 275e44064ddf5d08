"""Tables of Parquet files in buckets: what is lost, what it costs, what users get wrong."""

import re
import shutil
import time
from collections import Counter

import pyarrow as pa
import pytest
from click.testing import CliRunner
from parquet_reading import batches, reader
from replays import Stream, count_range, refused, said, table_rows
from sink_life import SCHEMA, Job, Life, rows
from spark_starts import make_checkpoint, start
from store_tables import make_onlooker
from store_users import new_token

from krishiv_spark.cli import main
from krishiv_spark.errors import CommitUnknown, Fenced, OptionError, StorageError
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import Claim, open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.writer import FanoutWriter
from krishiv_spark.sinks.operating import Operator
from krishiv_spark.sinks.parquet import store_table as store_sink
from krishiv_spark.sinks.parquet.disk_table import DiskParticipant
from krishiv_spark.sinks.parquet.store_table import UploadParticipant
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.storage import Storage, StoreUrl, s3
from krishiv_spark.storage.clients import StoreClient
from krishiv_spark.storage.objects import ObjectFolder
from servers.stores import ACCOUNT, KEY

KINDS = ["s3", "versity", "azure", "gcs"]


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch):
    monkeypatch.setattr(s3, "_SETTLED_S", 0.2)


@pytest.fixture
def aged(monkeypatch):
    """As if each upload were older than a day."""
    monkeypatch.setattr(store_sink, "_EXPIRES_AFTER_MS", -1)


class Table:
    def __init__(self, url, store):
        self.url = url
        self.options = {"path": url, **store.options}
        self.uploads = Storage.of(store.options).uploads(url)
        self.onlooker = make_onlooker(url, store.options)

    def life(self, query="q1", mode=OutputMode.APPEND, **options):
        return Life(ParquetWriter, {**self.options, **options}, query, mode)

    def job(self, mode=OutputMode.APPEND):
        return Job(ParquetWriter, self.options, mode)

    @property
    def storage(self):
        return {name: value for name, value in self.options.items() if name != "path"}

    def vacuum(self, *words):
        options = [word for pair in self.storage.items() for word in ("-o", "=".join(pair))]
        command = ["parquet", "vacuum", self.options["path"], *options, *words]
        return CliRunner().invoke(main, command)

    def die_in_commit(self, driver, messages, monkeypatch, completed=0):
        """Commit, and die when so many files were completed."""
        kind, done = type(self.uploads), []
        complete = kind.complete

        def dies(uploads, upload):
            if len(done) == completed:
                raise KeyboardInterrupt
            done.append(upload)
            return complete(uploads, upload)

        with monkeypatch.context() as patched:
            patched.setattr(kind, "complete", dies)
            patched.setattr(store_sink, "map_in_parallel", lambda call, items: [*map(call, items)])
            with pytest.raises(KeyboardInterrupt):
                driver.commit(0, messages)


def in_groups(*kinds):
    return [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in kinds]


that_list = pytest.mark.parametrize("table", in_groups("s3", "versity", "gcs"), indirect=True)


@pytest.fixture(params=in_groups(*KINDS))
def table(request, servers, tmp_path):
    store = servers(request.param)
    return Table(f"{store.url}/{tmp_path.name}", store)


def staged(driver, number=0, *batches):
    driver.plan()
    return [driver.task(number, i, batch) for i, batch in enumerate(batches)]


def test_an_epoch_is_invisible_until_it_is_committed(table):
    driver = table.life(partitionBy="day")
    messages = staged(driver, 0, rows(0, 10), rows(10, 10))
    assert list(table.onlooker.keys()) == []
    driver.commit(0, messages)
    assert table.onlooker.ids() == list(range(20))
    assert table.onlooker.pending() == []


def test_a_stale_driver_is_fenced_and_the_table_stays_exact(table):
    stale, fresh = table.life(), table.life()
    held_back = staged(stale, 0, rows(0, 10))
    fresh.epoch(0, rows(0, 10))
    with pytest.raises(Fenced):
        stale.commit(0, held_back)
    assert table.onlooker.ids() == list(range(10))


def test_a_sweep_leaves_what_others_have_staged(table):
    one, other = table.life("one"), table.life("other")
    messages = staged(one, 0, rows(0, 10))
    staged(other, 0, rows(50, 10))
    other.epoch(0, rows(10, 10))
    one.commit(0, messages)
    assert table.onlooker.ids() == list(range(20))
    assert list(table.uploads.pending()) == []


def test_a_driver_that_was_taken_over_from_sweeps_nothing(table, monkeypatch):
    driver, fresh = table.life(), table.life()
    pending_of, messages = store_sink.find_pending_uploads, []

    def overtaken(*args):
        found = list(pending_of(*args))
        monkeypatch.setattr(store_sink, "find_pending_uploads", pending_of)
        messages.extend(staged(fresh, 0, rows(0, 10)))
        return [*found, *pending_of(*args)]  # a store whose list is slow

    monkeypatch.setattr(store_sink, "find_pending_uploads", overtaken)
    driver.plan()
    fresh.commit(0, messages)
    assert table.onlooker.ids() == list(range(10))


def test_a_replace_shows_the_newest_epoch_of_its_own_query(table):
    table.life("other").epoch(0, rows(0, 5))
    whole = table.life("whole", OutputMode.REPLACE)
    whole.epoch(0, rows(100, 10))
    whole.epoch(1, rows(5, 10))
    assert table.onlooker.ids() == list(range(15))


def test_a_job_that_died_after_its_intent_is_finished_by_the_next_writer(table, monkeypatch):
    job = table.job()
    messages = staged(job, 0, rows(0, 10), rows(10, 10))
    table.die_in_commit(job, messages, monkeypatch, completed=1)
    assert len(list(table.onlooker.keys())) == 1
    table.life().epoch(0, rows(20, 5))
    assert table.onlooker.ids() == list(range(25))


def test_a_job_that_dies_while_another_one_overwrites_does_not_come_back(table, monkeypatch):
    first, second = (table.job(OutputMode.REPLACE) for _ in "ab")
    died, won = (staged(job, 0, rows(n, 10)) for job, n in ((first, 100), (second, 0)))
    table.die_in_commit(first, died, monkeypatch)
    second.commit(0, won)
    table.job().epoch(0, rows(10, 5))
    assert table.onlooker.ids() == list(range(15))


@pytest.mark.parametrize("listed", [True, False])
def test_of_two_overwrites_that_overlap_one_is_there(table, monkeypatch, listed):
    first, second = (table.job(OutputMode.REPLACE) for _ in "ab")
    early, late = (staged(job, 0, rows(n, 10)) for job, n in ((first, 0), (second, 100)))
    prepare = UploadParticipant.prepare

    def overtaken(self, *given):
        monkeypatch.setattr(UploadParticipant, "prepare", prepare)
        found = prepare(self, *given) if listed else None
        first.commit(0, early)
        return found or prepare(self, *given)

    monkeypatch.setattr(UploadParticipant, "prepare", overtaken)
    if listed:
        with pytest.raises(Fenced):
            second.commit(0, late)
    else:
        second.commit(0, late)
    assert table.onlooker.ids() == list(range(10) if listed else range(100, 110))


@pytest.mark.parametrize("removed", range(1, 5))
def test_a_job_that_dies_while_it_removes_its_log_is_in_nobodys_way(table, removed, monkeypatch):
    job, done = table.job(), []
    messages = staged(job, 0, rows(0, 10))
    remove = ObjectFolder._remove

    def dies(folder, name):
        remove(folder, name)
        done.append(name)
        if len(done) == removed:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ObjectFolder, "_remove", dies)
        with pytest.raises(KeyboardInterrupt):
            job.commit(0, messages)
    open_log.cache_clear()
    source = reader(table.url, schema=SCHEMA, **table.storage)
    assert [len(names) for names in batches(source)] == [1]
    assert table.vacuum("--older-than", "0 s").exit_code == 0
    assert not [key for key in table.onlooker.iter_files() if "batch-" in key]
    table.life().epoch(0, rows(10, 10))
    assert table.onlooker.ids() == list(range(20))


def test_a_finished_epoch_whose_files_were_removed_is_not_brought_back(table):
    driver = table.life()
    driver.epoch(0, rows(0, 10))
    for key in list(table.onlooker.keys()):
        table.onlooker.remove(key)
    table.life().epoch(0, rows(0, 10))  # Spark repeats it
    assert table.onlooker.ids() == []


def test_the_mark_of_a_log_that_is_gone_says_nothing_of_a_new_one(table, tmp_path, monkeypatch):
    """Its generations were higher, and those of the new one count from 1."""
    place = str(tmp_path / "logs")
    for number in range(3):
        table.life(epochLog=place).epoch(number, rows(10 * number, 10))
    shutil.rmtree(place)
    log = open_log(f"{place}/q1", "q1")
    taken = log.begin(Claim(query="q1"))
    participant = table.life(epochLog=place)._make().committer().participant
    participant.sweep("q1", taken.owner, clean=False)  # as 'log adopt' does
    log.adopt(taken, Claim(query="q1"))
    driver = table.life(epochLog=place)
    table.die_in_commit(driver, staged(driver, 0, rows(30, 10)), monkeypatch)
    open_log.cache_clear()  # the next driver is another process
    table.life(epochLog=place).epoch(0, rows(30, 10))
    assert table.onlooker.ids() == list(range(40))


# --- uploads that are lost


class Nowhere:
    """A checkpoint in which Spark has written down nothing."""

    def is_committed(self, _):
        return False


@pytest.mark.usefixtures("aged")
def test_an_epoch_whose_uploads_have_expired_is_staged_again(table, monkeypatch):
    driver = table.life()
    table.die_in_commit(driver, staged(driver, 0, rows(0, 10), rows(10, 10)), monkeypatch)
    table.onlooker.expire()
    table.life().epoch(0, rows(0, 10), rows(10, 10))
    assert table.onlooker.ids() == list(range(20))


@pytest.mark.usefixtures("aged")
@pytest.mark.parametrize(("how", "ids"), [("committed", 10), ("aborted", 20)])
def test_an_epoch_that_is_visible_in_part_is_for_the_operator(table, monkeypatch, how, ids):
    driver = table.life()
    messages = staged(driver, 0, rows(0, 10), rows(10, 10))
    table.die_in_commit(driver, messages, monkeypatch, completed=1)
    table.onlooker.expire()
    with pytest.raises(PlanningFailed, match=r"CommitUnknown: .*resolve --assume committed"):
        table.life().plan()
    committer = driver._make().committer()
    Operator(committer, "q1", Nowhere()).force_outcome(committed=how == "committed")
    table.life().epoch(0, rows(0, 10), rows(10, 10))
    assert len(table.onlooker.ids()) == ids


def test_young_uploads_that_are_gone_are_for_the_operator(table, monkeypatch):
    driver = table.life()
    table.die_in_commit(driver, staged(driver, 0, rows(0, 10)), monkeypatch)
    table.onlooker.expire()
    with pytest.raises(PlanningFailed, match=r"or the file was there and has been removed"):
        table.life().plan()
    assert table.onlooker.ids() == []


def test_what_is_left_of_an_epoch_in_doubt_is_kept_for_the_operator(table, monkeypatch):
    driver = table.life()
    messages = staged(driver, 0, rows(0, 10), rows(10, 10))
    table.die_in_commit(driver, messages, monkeypatch)
    (lost,) = messages[0].payload.files
    table.uploads.abort(lost.upload)
    with pytest.raises(PlanningFailed, match="CommitUnknown"):
        table.life().plan()
    committer = driver._make().committer()
    Operator(committer, "q1", Nowhere()).force_outcome(committed=True)
    assert table.onlooker.ids() == list(range(10, 20))


def test_a_driver_that_is_late_completes_nothing_that_was_taken_back(table, monkeypatch):
    driver = table.life()
    messages = staged(driver, 0, rows(0, 10), rows(10, 10))
    table.die_in_commit(driver, messages, monkeypatch)
    Operator(driver._make().committer(), "q1", Nowhere()).force_outcome(committed=False)
    late = [file.upload for message in messages for file in message.payload.files]
    assert [table.uploads.complete(upload) for upload in late] == [False, False]
    table.life().epoch(0, rows(0, 10), rows(10, 10))
    assert table.onlooker.ids() == list(range(20))


def test_a_commit_whose_store_fails_is_unknown_and_settled_by_the_next(table, monkeypatch):
    driver = table.life()
    messages = staged(driver, 0, rows(0, 10))
    with monkeypatch.context() as patched:
        patched.setattr(type(table.uploads), "complete", slow_down)
        with pytest.raises(CommitUnknown, match="not all of its"):
            driver.commit(0, messages)
    table.life().epoch(0, rows(0, 10))
    assert table.onlooker.ids() == list(range(10))


def slow_down(*_):
    raise StorageError("SlowDown")


# --- what it costs


@pytest.fixture
def asked(monkeypatch):
    """Return the requests to stores, by the verb and the part that is not the name of an object."""
    asked = Counter()

    def counting(kind):
        ask = kind.ask

        def counted(self, what, *rest):
            asked[re.sub(r"(s3a:|abfs:|gs:|\d{20}|[0-9a-f]{32}).*", "", what)] += 1
            return ask(self, what, *rest)

        monkeypatch.setattr(kind, "ask", counted)

    counting(StoreClient)
    return asked


def test_an_epoch_costs_few_requests_however_many_there_were(table, asked):
    driver = table.life()
    for number in range(2):  # the second plan is the first to find a file, which it looks into
        driver.epoch(number, rows(0, 10))
    costs = []
    for number in range(2, 5):
        asked.clear()
        driver.epoch(number, rows(0, 10), rows(10, 10))
        costs.append(asked.total())
    assert costs[0] == costs[-1]
    assert costs[-1] <= 12, asked


def test_a_commit_process_that_is_new_reads_nothing_of_the_log(table, asked):
    driver = table.life()
    for number in range(4):
        driver.epoch(number, rows(0, 10))
    driver.plan()
    messages = [driver.task(4, 0, rows(0, 10))]
    open_log.cache_clear()
    asked.clear()
    driver.commit(4, messages)
    assert not asked["read "], asked
    assert asked["list "] == 1, asked  # after the intent


# --- what goes


@that_list
def test_vacuum_aborts_old_uploads_and_leaves_what_an_intent_names(table, monkeypatch):
    named, lost = table.life("named"), table.life("lost")
    messages = staged(named, 0, rows(0, 10))
    table.die_in_commit(named, messages, monkeypatch)
    staged(lost, 0, rows(0, 10))
    command = ["parquet", "vacuum", table.url, "--older-than", "0 s"]
    for name, value in table.options.items():
        command += ["-o", f"{name}={value}"] if name != "path" else []
    shown = CliRunner().invoke(main, [*command, "--dry-run"], catch_exceptions=False).output
    assert "1 files" in shown, shown
    assert len(table.onlooker.pending()) == 2
    CliRunner().invoke(main, command, catch_exceptions=False)
    assert len(table.onlooker.pending()) == 1
    table.life("named").epoch(0, rows(0, 10))
    assert table.onlooker.ids() == list(range(10))


NUMBER = pa.struct([("id", pa.int64())])


def fan_of(table, **paths):
    """A fan-out into the table as the route `good`, and into other folders."""
    schema = pa.schema([(route, NUMBER) for route in ("good", *paths)])
    routes = {"good": table.url, **paths}
    formats = {f"route.{route}.format": "krishiv-parquet" for route in routes}
    targets = {f"route.{route}.path": path for route, path in routes.items()}
    given = {**formats, **targets, **table.storage, "epochLog": f"{table.url}-logs"}
    options = FanoutWriter.options_type.parse(given, "test")
    driver = Life(FanoutWriter, given, "q1", OutputMode.APPEND)
    driver._make = lambda: FanoutWriter(options, schema, OutputMode.APPEND)
    return driver, pa.record_batch(
        [pa.array([{"id": n} for n in range(10)], NUMBER)] * len(routes), schema=schema
    )


@pytest.mark.parametrize("age", ["young", "aged"])
def test_a_route_that_is_finished_is_not_checked_again(table, tmp_path, monkeypatch, request, age):
    """Its files may be removed or compacted before the other routes are finished."""
    driver, batch = fan_of(table, local=f"{tmp_path}/local")

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(DiskParticipant, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            driver.epoch(0, batch)
    assert table.onlooker.ids() == list(range(10))
    for key in list(table.onlooker.keys()):
        table.onlooker.remove(key)
    if age == "aged":
        request.getfixturevalue("aged")
    open_log.cache_clear()  # the next driver is another process
    driver.epoch(0, batch)
    assert table.onlooker.ids() == []
    assert table_rows(tmp_path / "local") == count_range(10)


@that_list
def test_vacuum_leaves_what_an_intent_of_a_fanout_names(table, monkeypatch):
    driver, batch = fan_of(table)
    table.die_in_commit(driver, staged(driver, 0, batch), monkeypatch)
    table.vacuum("--older-than", "0 s")
    driver.epoch(0, batch)
    assert table.onlooker.ids() == list(range(10))


@that_list
def test_vacuum_leaves_the_tables_in_a_folder_alone(table, monkeypatch):
    above = table.url
    table.options["path"] = f"{above}/orders"
    driver = table.life()
    table.die_in_commit(driver, staged(driver, 0, rows(0, 10)), monkeypatch)
    table.options["path"] = above
    table.vacuum("--older-than", "0 s")
    driver.epoch(0, rows(0, 10))
    assert len(table.onlooker.ids()) == 10


# --- what users get wrong


S3_WRONG = {
    "bucket": ({"path": "s3a://nowhere/table"}, "does not exist|NoSuchBucket"),
    "all": ({"path": "s3a://box"}, "a whole bucket"),
    "endpoint": ({"storage.s3.endpoint": "http://127.0.0.1:9"}, "127.0.0.1:9"),
    "column": ({"partitionBy": "nope"}, "names column 'nope'"),
}
OTHER_KEY = "F" + KEY[1:]


AZURE_WRONG = {
    "container": ({"path": f"abfs://nowhere@{ACCOUNT}.dfs.core.windows.net/t"}, "does not exist"),
    "all": ({"path": f"abfs://box@{ACCOUNT}.dfs.core.windows.net"}, "a whole bucket"),
    "endpoint": ({"storage.azure.endpoint": "http://127.0.0.1:9/x"}, "127.0.0.1:9"),
    "key": (
        {"storage.azure.accountKey": OTHER_KEY},
        "the account or its key is wrong|do not allow it",
    ),
    "no key": ({"storage.azure.accountKey": "hunter2-very-secret!"}, "cannot be written"),
    "to list": (new_token("racwd"), "cannot list .*do not allow it"),
    "to write": (new_token("rl"), "cannot write to .*do not allow it"),
    "to delete": (new_token("rlcw"), "cannot abort .*do not allow it"),
    "column": ({"partitionBy": "nope"}, "names column 'nope'"),
}
GCS_WRONG = {
    "bucket": ({"path": "gs://nowhere/table"}, "nowhere"),
    "all": ({"path": "gs://box"}, "a whole bucket"),
    "endpoint": ({"storage.gcs.endpoint": "http://127.0.0.1:9"}, "127.0.0.1:9"),
}
WRONG = [
    pytest.param(kind, *case, id=f"{kind}-{name}", marks=pytest.mark.xdist_group(kind))
    for kind, cases in {"s3": S3_WRONG, "azure": AZURE_WRONG, "gcs": GCS_WRONG}.items()
    for name, case in cases.items()
]


@pytest.mark.parametrize(("table", "changes", "says"), WRONG, indirect=["table"])
def test_bad_options_are_refused_before_any_row(table, changes, says):
    given = {key: value for key, value in {**table.options, **changes}.items() if value}
    driver, begun_s = Life(ParquetWriter, given, "q1", OutputMode.APPEND), time.monotonic()
    with pytest.raises(PlanningFailed, match=says) as caught:
        driver.plan()
    assert time.monotonic() - begun_s < 15
    assert "\n" not in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("hunter2", KEY, OTHER_KEY, "sig="))


@pytest.mark.parametrize("table", in_groups("azure"), indirect=True)
def test_a_shared_access_signature_is_enough(table):
    given = {key: value for key, value in {**table.options, **new_token("rlcwd")}.items() if value}
    driver = Life(ParquetWriter, given, "q1", OutputMode.APPEND)
    driver.epoch(0, rows(0, 10))
    driver.epoch(1, rows(10, 10))
    assert table.onlooker.ids() == list(range(20))


def test_other_partition_columns_than_those_that_are_there_are_refused(table):
    table.life(partitionBy="day").epoch(0, rows(0, 10))
    with pytest.raises(PlanningFailed, match="are partitioned by 'day'"):
        table.life("q2").plan()


def test_a_file_that_s3_cannot_copy_is_refused_before_any_moves(table, monkeypatch):
    table.life().epoch(0, rows(0, 10))
    folder = store_sink.StoreTable(StoreUrl.parse(table.url), Storage.of(table.storage))
    names = list(folder.visible())
    folder.check_movable(names)
    monkeypatch.setattr(store_sink, "_MOST_COPIED", 9)
    if folder.url.kind == "s3":
        with pytest.raises(OptionError, match="S3 copies at most 9 by one request"):
            folder.check_movable(names)
    else:
        folder.check_movable(names)


def test_a_vacuum_reads_the_time_where_no_reader_looks(table, monkeypatch):
    """On Azure, an upload that is aborted is an empty blob for a moment."""
    kind, opened = type(table.uploads), []
    start = kind.open

    def note(uploads, key):
        opened.append(key)
        return start(uploads, key)

    table.life().epoch(0, rows(0, 10))
    monkeypatch.setattr(kind, "open", note)
    assert table.vacuum("--older-than", "0 s").exit_code == 0
    assert opened
    assert all(key.startswith("_krishiv/") for key in opened)


def test_a_table_in_a_store_goes_back_for_a_replay_that_died_before_each_file(
    table, tmp_path, monkeypatch
):
    checkpoint = make_checkpoint(tmp_path / "c", -1)
    stream = Stream(ParquetWriter, checkpoint, **table.options)
    for epoch in range(5):
        stream.run(epoch)
    given = [word for name, text in table.options.items() for word in ("-o", f"{name}={text}")]
    original, left = ObjectFolder._remove, [0]

    def remove(self, name):
        left[0] -= 1
        if left[0] == 0:
            raise StorageError("it dies between copy and removal")
        original(self, name)

    monkeypatch.setattr(ObjectFolder, "_remove", remove)
    for step in (1, 2, 1):
        left[0] = step
        assert "it dies" in refused(checkpoint, "--from", "2", *given)
        assert start(checkpoint)[0] == "refused"
    said(checkpoint, *given)
    assert Counter(table.onlooker.ids()) == count_range(20)
    stream.run(2, 45)
    assert Counter(table.onlooker.ids()) == count_range(45)
