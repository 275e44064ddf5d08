"""Jobs whose file was copied, whose outputs were renamed, and whose time is too short."""

import json
import shutil
import sys
import threading
from contextlib import contextmanager

import pytest
from iceberg_life import ids
from patience import PATIENCE, await_that
from pg_server import open_killable
from postgres import require_programs
from slow_steps import write_slow_step
from tables import look, make_input

from krishiv_spark import jobs, queries
from krishiv_spark.errors import CheckpointMismatch, QueryFailed
from krishiv_spark.jobs.output_targets import describe_target_of_output

ROWS = 10
INPUT = (
    "inputs: [{{name: src, format: krishiv-parquet, isStream: true, options: {{path: {0}/in}}}}]\n"
)
UPDATE = "keys: [id], outputMode: update"
ENDS = "streaming: {{checkpointLocation: {0}/ck, batchMode: true{1}}}\n"


class Jobs:
    """Runs one job file after another in one folder."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.said = spark, folder, []

    def runner(self, **given):
        self.said = []
        return jobs.JobRunner(self.spark, self.said.append, **given)

    def load(self, outputs, *, ends=ENDS, steps="", more="", name="job"):
        file = self.folder / f"{name}.yaml"
        written = INPUT.format(self.folder) + steps + f"outputs: [{', '.join(outputs)}]\n"
        file.write_text(written + ends.format(self.folder, more))
        return jobs.load(file)

    def run(self, *outputs, new_targets=(), **given):
        runner = self.runner(new_targets=new_targets)
        runner.run(self.load(outputs, **given))
        return runner

    def parquet(self, name, table="t", view="src"):
        options = f"{{path: {self.folder}/{table}}}"
        return f"{{name: {name}, view: {view}, format: krishiv-parquet, options: {options}}}"

    def iceberg(self, name, table, view="src", more=""):
        options = f"{{warehouse: {self.folder}/wh, table: {table}}}"
        return f"{{name: {name}, view: {view}, format: krishiv-iceberg, options: {options}{more}}}"

    def sparks(self, name, table):
        options = f"{{path: {self.folder}/{table}}}"
        return f"{{name: {name}, view: src, format: parquet, options: {options}}}"


@pytest.fixture
def here(spark, tmp_path):
    make_input(tmp_path / "in", 1, ROWS)
    return Jobs(spark, tmp_path)


def more_rows(here):
    make_input(here.folder / "in", 1, ROWS, first_file=1)


# --- a job file that was copied

LOW = "steps: [{name: v, sql: 'select * from src where id < 5'}]\n"
HIGH = "steps: [{name: v, sql: 'select * from src where id >= 5'}]\n"


def test_a_copied_job_file_with_another_table_is_refused_before_spark_starts_it(here):
    here.run(here.iceberg("out", "db.good", "v"), steps=LOW)
    copied = here.iceberg("out", "db.bad", "v")
    with pytest.raises(QueryFailed, match=r"db\.good \(Iceberg table .*db\.bad, which is"):
        here.run(copied, steps=HIGH, name="copied")
    here.run(copied, steps=HIGH, new_targets=["out"])
    more_rows(here)
    here.run(copied, steps=HIGH)
    assert ids(here.folder / "wh", "db.good") == list(range(5))
    assert ids(here.folder / "wh", "db.bad") == list(range(10, 20))


@pytest.mark.parametrize("more", [", forEachBatchMode: true", ""])
def test_other_tables_of_functions_and_of_sparks_formats_are_refused(here, more):
    """No sink is asked there before the start."""
    if more:
        outputs = [here.iceberg("a", "db.a"), here.sparks("b", "b")]
        others = [here.iceberg("a", "db.z"), here.sparks("b", "b")]
        moved = [here.iceberg("a", "db.a"), here.sparks("b", "z")]
    else:
        update = f", {UPDATE}"
        outputs = [here.iceberg("a", "db.a", more=update), here.sparks("b", "b")]
        others = [here.iceberg("a", "db.z", more=update), here.sparks("b", "b")]
        moved = [outputs[0], here.sparks("b", "z")]
    here.run(*outputs, more=more)
    for wrong in (others, moved):
        with pytest.raises(CheckpointMismatch, match=r"has written to .*/?[ab].*, and would now"):
            here.run(*wrong, more=more)
    more_rows(here)
    here.run(*outputs, more=more)
    assert ids(here.folder / "wh", "db.a") == list(range(20))
    here.run(*others, more=more, new_targets=["job.a"])
    here.run(*others, more=more)


@pytest.mark.parametrize(
    "options",
    [
        "path: {0}/wh, table: db.t",
        "warehouse: {0}/wh, Table: db.t",
        "warehouse: {0}/wh, PATH: db.t",
        "iceberg: {{table: db.t, warehouse: {0}/wh}}",
    ],
)
def test_updates_are_written_to_the_table_that_the_file_names(here, options):
    given = f"options: {{{options.format(here.folder)}}}"
    output = f"{{name: a, view: src, format: krishiv-iceberg, {given}, {UPDATE}}}"
    here.run(output)
    assert ids(here.folder / "wh", "db.t") == list(range(ROWS))
    described = describe_target_of_output(here.load([output]).jobs[0].outputs[0])
    plain = here.iceberg("a", "db.t")
    assert described.is_same(describe_target_of_output(here.load([plain]).jobs[0].outputs[0]))


def test_updates_are_written_to_the_table_of_a_database(here):
    with open_killable(require_programs()) as server:
        database = server.database
        database.run("CREATE TABLE counts (id bigint PRIMARY KEY, day text, amount bigint)")
        options = json.dumps(database.options(table="counts"))
        output = f"{{name: a, view: src, format: krishiv-postgresql, options: {options}, {UPDATE}}}"
        here.run(output)
        more_rows(here)
        here.run(output)
        ((rows, distinct),) = database.run("SELECT count(*), count(DISTINCT id) FROM counts")
        assert (rows, distinct) == (2 * ROWS, 2 * ROWS)


def test_queries_from_python_are_checked_by_checkpoint_log_and_target(here):
    """And a check changes nothing."""

    def writer(table, checkpoint="ck"):
        source = here.spark.readStream.format("krishiv-parquet")
        rows = source.option("path", f"{here.folder}/in").load()
        to = rows.writeStream.format("krishiv-parquet").option("path", f"{here.folder}/{table}")
        return to.option("checkpointLocation", f"{here.folder}/{checkpoint}").trigger(
            availableNow=True
        )

    queries.start(writer("t")).await_termination()
    queries.check(writer("t"))
    before = snapshot(here.folder)
    with pytest.raises(QueryFailed, match=r"has written to krishiv-parquet .*/t .*now write to"):
        queries.check(writer("other"))
    shutil.copytree(here.folder / "ck", here.folder / "old")
    more_rows(here)
    queries.start(writer("t")).await_termination()
    with pytest.raises(QueryFailed, match="rolled back or restored from an older copy"):
        queries.check(writer("t", "old"))
    shutil.rmtree(here.folder / "old")
    (here.folder / "ck/metadata").unlink()
    with pytest.raises(QueryFailed, match="its file 'metadata' is lost"):
        queries.check(writer("t"))
    assert before.keys() - snapshot(here.folder).keys() == {"ck/metadata"}
    assert not (here.folder / "other").exists()


def snapshot(folder):
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- an output that was renamed


def test_a_renamed_output_is_refused_and_goes_on_in_its_renamed_folder(here):
    here.run(here.parquet("orders"))
    with pytest.raises(
        CheckpointMismatch, match=r"'order' is new, .* the target of output 'orders'"
    ):
        here.run(here.parquet("order"))
    assert look(here.folder / "t")[:2] == (ROWS, ROWS)
    (here.folder / "ck/orders").rename(here.folder / "ck/order")
    more_rows(here)
    here.run(here.parquet("order"))
    assert look(here.folder / "t")[:2] == (2 * ROWS,) * 2


@pytest.mark.long
def test_a_renamed_output_may_write_all_rows_again_if_that_is_accepted(here):
    here.run(here.parquet("orders"))
    here.run(here.parquet("order"), new_targets=["order"])
    assert look(here.folder / "t")[:2] == (2 * ROWS, ROWS)
    here.run(here.parquet("order"))


@pytest.mark.long
def test_outputs_are_added_and_removed_without_a_question(here):
    here.run(here.parquet("a"))
    here.run(here.parquet("a"), here.parquet("b", "b"))
    here.run(here.parquet("b", "b"))
    here.run(here.parquet("b", "b"), here.parquet("c", "c"))
    here.run(here.parquet("a"), here.parquet("c", "c"), name="another-job-of-the-same-root")
    for table in ("t", "b", "c"):
        assert look(here.folder / table)[:2] == (ROWS, ROWS)


@pytest.mark.long
def test_two_outputs_that_change_their_names_are_refused(here):
    here.run(here.parquet("a", "x"), here.parquet("b", "y"))
    with pytest.raises(QueryFailed, match="which is another target"):
        here.run(here.parquet("a", "y"), here.parquet("b", "x"))


# --- a time that is too short

SHORT = "streaming: {{checkpointLocation: {0}/ck}}\ngraceTime: 1s\n"


@contextmanager
def slow_step(here, monkeypatch):
    write_slow_step(here.folder, 60)
    monkeypatch.syspath_prepend(str(here.folder))
    yield "steps: [{name: v, python: 'slowstep:slow', inputs: [src]}]\n"
    sys.modules.pop("slowstep", None)


def test_an_epoch_that_a_job_gives_up_is_said_and_noted(here, monkeypatch):
    """As at a time limit; this one comes when the epoch is under way, on a busy machine too."""
    runner = here.runner()
    with slow_step(here, monkeypatch) as steps:
        loaded = here.load([here.parquet("out", view="v")], steps=steps, ends=SHORT)
        thread = threading.Thread(target=runner.run, args=[loaded])
        thread.start()
        await_that((here.folder / "ck/out/offsets/0").exists)
        runner.stop.set()
        thread.join(PATIENCE)
    (line,) = [line for line in here.said if "aborted" in line]
    assert "job.out: epoch 0 was aborted after 1 s ('graceTime'); the next start repeats it" in line
    assert runner.unfinished == ["job.out: completed no epoch"]
    assert look(here.folder / "t")[0] == 0
    runner = here.run(here.parquet("out"))
    assert runner.unfinished == []
    assert look(here.folder / "t")[:2] == (ROWS, ROWS)


def test_a_query_from_python_tells_that_it_gave_an_epoch_up(here, monkeypatch, caplog):
    with slow_step(here, monkeypatch):
        import slowstep

        source = here.spark.readStream.format("krishiv-parquet")
        rows = slowstep.slow(source.option("path", f"{here.folder}/in").load())
        to = rows.writeStream.format("krishiv-parquet").option("path", f"{here.folder}/t")
        query = queries.start(to.option("checkpointLocation", f"{here.folder}/ck"))
        await_that((here.folder / "ck/offsets/0").exists)
        query.stop_when(timeout=0, grace=1)
        query.await_termination(PATIENCE)
    await_that(lambda: "an epoch was aborted after 1 s" in caplog.text)
    assert (query.given_up, query.made_no_progress) == (True, True)


def test_jobs_that_a_signal_leaves_out_are_named(here):
    runner = here.runner()
    runner.stop.set()
    runner.run(here.load([here.parquet("out")]))
    assert runner.unfinished == here.said == ["job: was not started"]
