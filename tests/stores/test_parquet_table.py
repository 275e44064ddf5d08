"""Tables of Parquet files in buckets: what is lost, what it costs, what users get wrong."""

import re
from collections import Counter

import pytest
from click.testing import CliRunner
from sink_life import Job, Life, rows
from store_tables import onlooker

from krishiv_spark.cli import main
from krishiv_spark.errors import CommitUnknown, Fenced, StorageError
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.operating import Operator
from krishiv_spark.sinks.parquet import completing, unfinished
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.storage import s3, s3_uploads
from krishiv_spark.storage.objects import Bucket

KINDS = ["s3", "versity"]


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch):
    monkeypatch.setattr(s3_uploads, "_SETTLED_S", 0.2)


@pytest.fixture
def aged(monkeypatch):
    """As if each upload were older than a day."""
    monkeypatch.setattr(completing, "_EXPIRES_AFTER_MS", -1)


class Table:
    def __init__(self, url, store):
        self.url = url
        self.options = {"path": url, **store.options}
        self.onlooker = onlooker(url, store.options)

    def life(self, query="q1", mode=OutputMode.APPEND, **options):
        return Life(ParquetWriter, {**self.options, **options}, query, mode)

    def job(self, mode=OutputMode.APPEND):
        return Job(ParquetWriter, self.options, mode)


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS])
def table(request, servers, tmp_path):
    store = servers(request.param)
    return Table(f"{store.url}/{tmp_path.name}", store)


def die_in_commit(driver, messages, monkeypatch, completed=0):
    """Commit, and die when so many files were completed."""
    complete, done = s3_uploads.S3Uploads.complete, []

    def dies(uploads, upload):
        if len(done) == completed:
            raise KeyboardInterrupt
        done.append(upload)
        return complete(uploads, upload)

    with monkeypatch.context() as patched:
        patched.setattr(s3_uploads.S3Uploads, "complete", dies)
        patched.setattr(completing, "side_by_side", lambda call, items: [*map(call, items)])
        with pytest.raises(KeyboardInterrupt):
            driver.commit(0, messages)


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
    assert table.onlooker.pending() == []


def test_a_driver_that_was_taken_over_from_sweeps_nothing(table, monkeypatch):
    driver, fresh = table.life(), table.life()
    pending_of, messages = unfinished.pending_of, []

    def overtaken(*args):
        found = list(pending_of(*args))
        monkeypatch.setattr(unfinished, "pending_of", pending_of)
        messages.extend(staged(fresh, 0, rows(0, 10)))
        return [*found, *pending_of(*args)]  # a store whose list is slow

    monkeypatch.setattr(unfinished, "pending_of", overtaken)
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
    die_in_commit(job, messages, monkeypatch, completed=1)
    assert len(list(table.onlooker.keys())) == 1
    table.life().epoch(0, rows(20, 5))
    assert table.onlooker.ids() == list(range(25))


def test_a_finished_epoch_whose_files_were_removed_is_not_brought_back(table):
    driver = table.life()
    driver.epoch(0, rows(0, 10))
    for key in list(table.onlooker.keys()):
        table.onlooker.remove(key)
    table.life().epoch(0, rows(0, 10))  # Spark repeats it
    assert table.onlooker.ids() == []


# --- uploads that are lost


class Nowhere:
    """A checkpoint in which Spark has written down nothing."""

    def is_committed(self, _):
        return False


@pytest.mark.usefixtures("aged")
def test_an_epoch_whose_uploads_have_expired_is_staged_again(table, monkeypatch):
    driver = table.life()
    die_in_commit(driver, staged(driver, 0, rows(0, 10), rows(10, 10)), monkeypatch)
    table.onlooker.expire()
    table.life().epoch(0, rows(0, 10), rows(10, 10))
    assert table.onlooker.ids() == list(range(20))


@pytest.mark.usefixtures("aged")
@pytest.mark.parametrize(("how", "ids"), [("committed", 10), ("aborted", 20)])
def test_an_epoch_that_is_visible_in_part_is_for_the_operator(table, monkeypatch, how, ids):
    driver = table.life()
    messages = staged(driver, 0, rows(0, 10), rows(10, 10))
    die_in_commit(driver, messages, monkeypatch, completed=1)
    table.onlooker.expire()
    with pytest.raises(PlanningFailed, match=r"CommitUnknown: .*resolve --assume committed"):
        table.life().plan()
    committer = driver._make().committer()
    Operator(committer, "q1", Nowhere()).assume(committed=how == "committed")
    table.life().epoch(0, rows(0, 10), rows(10, 10))
    assert len(table.onlooker.ids()) == ids


def test_young_uploads_that_are_gone_are_for_the_operator(table, monkeypatch):
    driver = table.life()
    die_in_commit(driver, staged(driver, 0, rows(0, 10)), monkeypatch)
    table.onlooker.expire()
    with pytest.raises(PlanningFailed, match=r"or the file was there and has been removed"):
        table.life().plan()
    assert table.onlooker.ids() == []


def test_what_is_left_of_an_epoch_in_doubt_is_kept_for_the_operator(table, monkeypatch):
    driver = table.life()
    messages = staged(driver, 0, rows(0, 10), rows(10, 10))
    die_in_commit(driver, messages, monkeypatch)
    (lost,) = messages[0].payload.files
    driver._make()._kind.table.uploads.abort(lost.upload)
    with pytest.raises(PlanningFailed, match="CommitUnknown"):
        table.life().plan()
    committer = driver._make().committer()
    Operator(committer, "q1", Nowhere()).assume(committed=True)
    assert table.onlooker.ids() == list(range(10, 20))


def test_a_commit_whose_store_fails_is_unknown_and_settled_by_the_next(table, monkeypatch):
    driver = table.life()
    messages = staged(driver, 0, rows(0, 10))
    with monkeypatch.context() as patched:
        patched.setattr(s3_uploads.S3Uploads, "complete", slow_down)
        with pytest.raises(CommitUnknown, match="not all of its"):
            driver.commit(0, messages)
    table.life().epoch(0, rows(0, 10))
    assert table.onlooker.ids() == list(range(10))


def slow_down(*_):
    raise StorageError("SlowDown")


# --- what it costs


def test_an_epoch_costs_few_requests_however_many_there_were(table, monkeypatch):
    asked = Counter()

    def counting(kind):
        ask = kind.ask

        def counted(self, what, function):
            asked[re.sub(r"(s3a:|\d{20}|[0-9a-f]{32}).*", "", what)] += 1
            return ask(self, what, function)

        monkeypatch.setattr(kind, "ask", counted)

    driver = table.life()
    driver.epoch(0, rows(0, 10))
    counting(Bucket)
    counting(s3.S3Client)
    costs = []
    for number in range(1, 4):
        asked.clear()
        driver.epoch(number, rows(0, 10), rows(10, 10))
        costs.append(asked.total())
    assert costs[0] == costs[-1]
    assert costs[-1] <= 15, asked


# --- what goes


def test_vacuum_aborts_old_uploads_and_leaves_what_an_intent_names(table, monkeypatch):
    named, lost = table.life("named"), table.life("lost")
    messages = staged(named, 0, rows(0, 10))
    die_in_commit(named, messages, monkeypatch)
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


# --- what users get wrong


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"path": "s3a://nowhere/table"}, "does not exist|NoSuchBucket"),
        ({"path": "s3a://box"}, "all of a bucket"),
        ({"storage.s3.endpoint": "http://127.0.0.1:9"}, "127.0.0.1:9"),
        ({"partitionBy": "nope"}, "names column 'nope'"),
    ],
)
def test_bad_options_are_refused_before_any_row(table, changes, says):
    driver = Life(ParquetWriter, {**table.options, **changes}, "q1", OutputMode.APPEND)
    with pytest.raises(PlanningFailed, match=says) as caught:
        driver.plan()
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_other_partition_columns_than_those_that_are_there_are_refused(table):
    table.life(partitionBy="day").epoch(0, rows(0, 10))
    with pytest.raises(PlanningFailed, match="are partitioned by 'day'"):
        table.life("q2").plan()
