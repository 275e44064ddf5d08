"""Jobs from files on real Spark: published workflows, triggers, save modes, kinds of outputs."""

import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest
import yaml
from iceberg_life import table_of
from kafka_topics import Onlooker, fill, make_topic, produce
from patience import PATIENCE, await_that
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tables import look, make_input

import krishiv_spark
from krishiv_spark import jobs
from krishiv_spark.errors import OptionError, QueryFailed
from krishiv_spark.formats import ConsoleDataSource
from krishiv_spark.jobs.runner import restore_active_session
from krishiv_spark.kafka.dev import open_cluster

FILES = Path(__file__).parents[1] / "support" / "spark" / "job_files"
COUNT, ROWS = 4, 10
TOTAL = COUNT * ROWS


class Runner:
    """Runs job files in a session that the tests share, and hears what is said."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.said = spark, folder, []

    def load(self, text, **variables):
        file = self.folder / "job.yaml"
        file.write_text(text)
        given = {"FOLDER": str(self.folder), **variables}
        return jobs.load(file, depots=FILES / "depots.yaml", variables=used(text, given))

    def made(self, **more):
        return jobs.JobRunner(self.spark, self.said.append, **more)

    def run(self, text, **variables):
        self.made().run(self.load(text, **variables))

    @contextmanager
    def running(self, text, **variables):
        """In a thread, until the block ends; then in good order."""
        loaded, runner, failed = self.load(text, **variables), self.made(), []

        def run():
            try:
                runner.run(loaded)
            except Exception as error:  # noqa: BLE001  looked at below
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield lambda fact: await_that(lambda: fact() or failed)
        finally:
            runner.stop.set()
            thread.join(PATIENCE)
        assert not failed


def used(text, given):
    depots = (FILES / "depots.yaml").read_text()
    return {name: value for name, value in given.items() if f"${{{name}" in text + depots}


@pytest.fixture
def runner(spark, tmp_path):
    return Runner(spark, tmp_path)


@pytest.fixture
def rows(tmp_path):
    make_input(tmp_path / "in", COUNT, ROWS)
    return tmp_path / "in"


@pytest.fixture(scope="module")
def cluster():
    with open_cluster() as cluster:
        yield cluster


STREAM = """
name: copy
inputs:
  - name: rows
    format: krishiv-parquet
    isStream: true
    options: {path: "${FOLDER}/in", maxFilesPerTrigger: 1}
outputs:
  - name: rows
    format: krishiv-parquet
    options: {path: "${FOLDER}/out"}
"""


def streaming(**keys):
    given = {"checkpointLocation": "${FOLDER}/checkpoint", **keys}
    return f"streaming: {given}\n".replace("True", "true")


def test_what_a_depot_takes_from_a_file_is_in_no_plan(runner, rows, tmp_path, capsys):
    (tmp_path / "key").write_text("hunter2")
    (tmp_path / "depots.yaml").write_text(
        "depots: {lake: {format: krishiv-parquet, folder: /, options: "
        f"{{storage.azure.accountKey: {{file: {tmp_path}/key}}}}}}}}"
    )
    text = STREAM.replace(
        'format: krishiv-parquet\n    isStream: true\n    options: {path: "${FOLDER}/in", max',
        f"dataset: dataos://lake{rows}\n    isStream: true\n    options: {{max",
    ).replace("${FOLDER}", str(tmp_path))
    (tmp_path / "job.yaml").write_text(
        text + streaming(batchMode=True).replace("${FOLDER}", str(tmp_path))
    )
    loaded = jobs.load(tmp_path / "job.yaml", depots=tmp_path / "depots.yaml")
    with restore_active_session(runner.spark):
        runner.made().prepare(loaded.jobs[0]).table("rows").explain(extended=True)
    plan = capsys.readouterr().out
    assert f"${{file:{tmp_path}/key}}" in plan
    assert "hunter2" not in plan
    runner.made().run(loaded)
    assert look(tmp_path / "out")[:2] == (TOTAL, TOTAL)


# --- workflows


def test_a_published_workflow_goes_on_where_it_was(runner, cluster, tmp_path):
    """Unchanged: batches of a topic, by SQL in a sequence, into a table with properties."""
    make_topic(cluster.bootstrap, "orders")
    fill(cluster.bootstrap, "orders", 30)
    text = (FILES / "workflow.yaml").read_text().replace("600 seconds", "1 seconds")
    with (
        closing(Onlooker(cluster.bootstrap)),
        runner.running(text, BROKER=cluster.bootstrap) as see,
    ):
        see(lambda: len(amounts(tmp_path)) == 30)
    fill(cluster.bootstrap, "orders", 20, first=30)
    with runner.running(text, BROKER=cluster.bootstrap) as see:
        see(lambda: len(amounts(tmp_path)) >= 50)
    assert sorted(amounts(tmp_path)) == list(range(50))
    table = orders(tmp_path)
    assert table.properties["write.metadata.previous-versions-max"] == "10"
    assert any("plan of orders_out" in line for line in runner.said)


def orders(folder):
    return table_of(folder / "warehouse", "shop.orders")


def amounts(folder):
    if not (folder / "warehouse" / "shop" / "orders").exists():
        return []
    return orders(folder).scan().to_arrow()["amount"].to_pylist()


# --- triggers


@pytest.mark.parametrize(
    ("keys", "files_at_once"),
    [
        ({"triggerMode": "Once"}, COUNT),
        ({"triggerMode": "AvailableNow"}, 1),
        ({"batchMode": True}, 1),
    ],
)
def test_a_job_that_ends_has_read_everything(runner, rows, tmp_path, keys, files_at_once):
    runner.run(STREAM + streaming(**keys))
    assert look(tmp_path / "out")[:2] == (TOTAL, TOTAL)
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2):
        epochs = {path.name for path in (tmp_path / "checkpoint/rows/commits").glob("[0-9]*")}
        assert len(epochs) == COUNT // files_at_once
    make_input(tmp_path / "more", COUNT + 1, ROWS)
    (tmp_path / "more" / f"{COUNT:05d}.parquet").rename(rows / "more.parquet")
    runner.run(STREAM + streaming(**keys))
    assert look(tmp_path / "out")[:2] == (TOTAL + ROWS,) * 2


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    "keys",
    [{"triggerMode": "ProcessingTime", "triggerDuration": "200 ms"}, {"triggerMode": "Continuous"}],
)
def test_a_job_that_goes_on_is_stopped_when_no_row_comes(runner, tmp_path, keys):
    runner.run(STREAM + streaming(**keys) + "stopAfterIdle: 1 second\n")
    assert look(tmp_path / "out")[:2] == (TOTAL, TOTAL)
    told = [line for line in runner.said if "no continuous processing" in line]
    assert len(told) == (keys["triggerMode"] == "Continuous")


@pytest.mark.usefixtures("rows")
def test_whoever_ran_a_job_finds_his_own_formats_again(spark, runner, tmp_path):
    """Spark looks for them in the active session of the thread, which a job's was."""

    class OfOneSession(ConsoleDataSource):
        @classmethod
        def name(cls):
            return "of-one-session"

    def start(name):
        to = spark.readStream.format("rate").load().writeStream.format("of-one-session")
        to.option("checkpointLocation", str(tmp_path / name)).start().stop()

    spark.dataSource.register(OfOneSession)
    loaded = runner.load(STREAM + streaming(batchMode=True))
    runner.made().check(*loaded.jobs)
    start("checked")
    runner.made().run(loaded)
    start("ran")
    runner.made().run(replace(loaded, side_by_side=True))
    start("ran side by side")
    assert SparkSession.getActiveSession() is spark


@pytest.mark.usefixtures("rows")
def test_continuous_is_refused_if_asked_to(runner):
    loaded = runner.load(STREAM + streaming(triggerMode="Continuous"))
    with pytest.raises(OptionError, match="no continuous processing"):
        runner.made(strict=True).run(loaded)


@pytest.mark.usefixtures("rows")
def test_a_job_ends_when_its_time_is_up(runner):
    runner.run(STREAM + streaming() + "timeout: 1 second\n")
    assert runner.said[-1] == "copy: ended"


# --- inputs


JSON = """
inputs:
  - name: events
    format: kafkajson
    isStream: true
    {how}
    options:
      kafka: {{bootstrap.servers: "${{BROKER}}"}}
      subscribe: {topic}
      startingOffsets: earliest
steps:
  - name: flat
    sql: SELECT CAST(key AS STRING) AS who, id, name, offset FROM events
outputs:
  - name: flat
    format: krishiv-parquet
    options: {{path: "${{FOLDER}}/out"}}
"""


@pytest.mark.parametrize(
    ("topic", "how"),
    [("given", "schema: id BIGINT, name STRING"), ("sampled", "sampleValues: 100")],
)
def test_json_of_a_topic_has_kafkas_columns_and_its_own(runner, cluster, tmp_path, topic, how):
    make_topic(cluster.bootstrap, topic)
    values = [b'{"id": %d, "name": "n%d"}' % (n, n) for n in range(10)]
    produce(cluster.bootstrap, topic, values, key=b"k")
    text = JSON.format(how=how, topic=topic) + streaming(batchMode=True)
    runner.run(text, BROKER=cluster.bootstrap)
    found = read(tmp_path / "out", "who, id, name")
    assert sorted(found) == [("k", n, f"n{n}") for n in range(10)]


DEAD_LETTERS = """
inputs:
  - name: events
    format: kafkajson
    isStream: true
    schema: id BIGINT, m MAP<STRING, INT>
    options:
      kafka: {{bootstrap.servers: "${{BROKER}}"}}
      subscribe: {topic}
      startingOffsets: earliest
      badRecords: divert
      nullValues: drop
steps:
  - name: good
    sql: SELECT id, m['a'] AS a FROM events WHERE _error IS NULL
  - name: dead
    sql: SELECT CAST(_raw AS STRING) AS raw, _error, offset FROM events WHERE _error IS NOT NULL
outputs:
  - name: good
    format: krishiv-parquet
    options: {{path: "${{FOLDER}}/good"}}
  - name: dead
    format: krishiv-parquet
    options: {{path: "${{FOLDER}}/dead"}}
"""


def test_bad_values_of_a_topic_become_dead_letters_with_a_reason(runner, cluster, tmp_path):
    make_topic(cluster.bootstrap, "letters")
    values = [b'{"id": 1, "m": {"a": 2}}', b"oops", b"null", None, b'{"ID": 3}']
    produce(cluster.bootstrap, "letters", values, key=b"k")
    text = DEAD_LETTERS.format(topic="letters") + streaming(batchMode=True)
    runner.run(text, BROKER=cluster.bootstrap)
    assert read(tmp_path / "good") == [(1, 2)]
    other_case = "the JSON value has none of the schema's fields, but 'id' in another case"
    assert sorted(read(tmp_path / "dead")) == [
        ("null", "the JSON value is null instead of an object", 2),
        ("oops", "the JSON value is not valid JSON: Expecting value, at character 0", 1),
        ('{"ID": 3}', other_case, 4),
    ]


def read(folder, columns="*"):
    import duckdb

    return duckdb.sql(f"SELECT {columns} FROM read_parquet('{folder}/**/*.parquet')").fetchall()


# --- steps and outputs


MANY = """
name: many
spark: {spark.sql.shuffle.partitions: 2}
inputs:
  - name: rows
    format: krishiv-parquet
    isStream: true
    options: {path: "${FOLDER}/in", maxFilesPerTrigger: 1}
  - name: days
    format: json
    schema: day STRING, weight BIGINT
    options: {path: "${FOLDER}/days.json"}
steps:
  - sequence:
      - name: doubled
        python: job_steps:doubled
        inputs: [rows]
        arguments: {times: 3}
      - name: joined
        sql: SELECT r.*, d.weight FROM doubled r JOIN days d ON r.day = d.day
  - name: per_day
    sql: SELECT day, count(*) AS n, sum(amount) AS total FROM joined GROUP BY day
outputs:
  - name: joined
    format: krishiv-parquet
    partitionBy: day
    options: {path: "${FOLDER}/joined"}
  - name: totals
    view: per_day
    format: iceberg
    outputMode: update
    keys: [day]
    options: {warehouse: "${FOLDER}/warehouse", path: db.rows}
  - name: newest
    view: per_day
    format: krishiv-memory
    outputMode: complete
    options: {path: "${NAME}"}
"""


@pytest.mark.usefixtures("rows")
def test_every_output_is_a_query_of_its_own(runner, tmp_path):
    days = [f'{{"day": "2013-01-0{n}", "weight": {n}}}\n' for n in (1, 2, 3)]
    (tmp_path / "days.json").write_text("".join(days))
    name = f"newest of {tmp_path.name}"
    for _ in range(2):  # the second time there is nothing left to do
        runner.run(MANY + streaming(batchMode=True), NAME=name)
    assert look(tmp_path / "joined")[:2] == (TOTAL, TOTAL)
    assert sum(amount for (amount,) in read(tmp_path / "joined", "amount")) == 3 * 7 * sum(
        range(TOTAL)
    )
    held = table_of(tmp_path / "warehouse").scan().to_arrow().to_pylist()
    memory = krishiv_spark.memory_table(name).to_pylist()
    for found in (held, memory):
        assert sum(one["n"] for one in found) == TOTAL
        assert sum(one["total"] for one in found) == 3 * 7 * sum(range(TOTAL))
    krishiv_spark.memory_clear(name)


def test_duplicates_within_the_watermark_go(runner, tmp_path):
    make_input(tmp_path / "in", 2, ROWS)
    text = STREAM.replace(
        '    options: {path: "${FOLDER}/in"',
        '    deduplicate: day\n    options: {path: "${FOLDER}/in"',
    )  # fmt: skip
    runner.run(text + streaming(batchMode=True))
    assert look(tmp_path / "out")[0] == 3


@pytest.mark.usefixtures("rows")
def test_all_outputs_of_a_batch_are_written_once_each(runner, tmp_path):
    text = STREAM.replace("name: copy", "name: batches") + (
        "  - name: table\n    view: rows\n    format: iceberg\n"
        '    options: {warehouse: "${FOLDER}/warehouse", path: db.rows}\n'
    )
    text += streaming(batchMode=True, forEachBatchMode=True)
    for _ in range(2):
        runner.run(text)
    assert look(tmp_path / "out")[:2] == (TOTAL, TOTAL)
    assert sorted(table_of(tmp_path / "warehouse").scan().to_arrow()["id"].to_pylist()) == list(
        range(TOTAL)
    )


@pytest.mark.usefixtures("rows")
def test_switching_to_batches_does_not_read_everything_again(runner, tmp_path):
    runner.run(STREAM + streaming(batchMode=True))
    with pytest.raises(OptionError, match="before 'forEachBatchMode' was switched on"):
        runner.run(STREAM + streaming(batchMode=True, forEachBatchMode=True))
    assert look(tmp_path / "out")[:2] == (TOTAL, TOTAL)


@pytest.mark.usefixtures("rows")
def test_what_is_no_stream_cannot_be_written_as_one(runner):
    static = "  - {name: fixed, format: krishiv-parquet, options: {path: '${FOLDER}/in'}}\noutputs:"
    text = STREAM.replace("outputs:", static).replace("- name: rows\n    format: krishiv-parquet\n"
                          '    options: {path: "${FOLDER}/out', "- name: fixed\n    format: "
                          'krishiv-parquet\n    options: {path: "${FOLDER}/out')  # fmt: skip
    with pytest.raises(OptionError, match="the rows of 'fixed' are no stream"):
        runner.run(text + streaming())


# --- batches


BATCH = """
inputs:
  - {name: rows, format: krishiv-parquet, options: {path: "${FOLDER}/in"}}
outputs:
  - name: rows
    saveMode: {mode}
    {target}
"""
TARGETS = {
    "parquet": 'format: krishiv-parquet\n    options: {path: "${FOLDER}/out"}',
    "iceberg": 'format: iceberg\n    options: {warehouse: "${FOLDER}/wh", path: db.rows}',
    "memory": 'format: krishiv-memory\n    options: {path: "rows of ${FOLDER}"}',
}


def count_in(target, folder):
    if target == "parquet":
        return look(folder / "out")[0]
    if target == "iceberg":
        return table_of(folder / "wh").scan().count()
    return krishiv_spark.memory_table(f"rows of {folder}").num_rows


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("target", TARGETS)
def test_save_modes(runner, tmp_path, target):
    def write(mode):
        runner.run(BATCH.replace("{mode}", mode).replace("{target}", TARGETS[target]))
        return count_in(target, tmp_path)

    assert write("errorIfExists") == TOTAL
    with pytest.raises(OptionError, match="exists already"):
        write("ErrorIfExists")
    assert write("ignore") == TOTAL
    assert "is skipped, because the target exists" in runner.said[-2]
    assert write("append") == 2 * TOTAL
    assert write("overwrite") == TOTAL
    if target == "memory":
        krishiv_spark.memory_clear(f"rows of {tmp_path}")


# --- what is shown first


@pytest.mark.usefixtures("rows")
def test_a_preview_moves_no_stream(runner, tmp_path):
    runner.run(STREAM + streaming(batchMode=True) + "showPreviewLines: 2\nexplain: true\n")
    assert look(tmp_path / "out")[:2] == (TOTAL, TOTAL)
    said = "\n".join(runner.said)
    assert "copy: rows, from the first 1000 rows" in said
    assert "only showing top 2 rows" in said
    assert "copy: plan of rows" in said


def test_a_source_that_only_streams_has_no_preview(runner):
    text = STREAM.replace('options: {path: "${FOLDER}/in", maxFilesPerTrigger: 1}', "options: {}")
    text = text.replace("format: krishiv-parquet\n    isStream", "format: rate\n    isStream", 1)
    runner.run(text + streaming() + "showPreviewLines: 2\ntimeout: 1 second\n")
    assert any("cannot be shown" in line for line in runner.said)


# --- failures


@pytest.mark.usefixtures("rows")
def test_a_job_that_fails_says_why_and_the_next_one_does_not_start(runner, tmp_path):
    one = yaml.safe_load(STREAM + streaming())
    bad = {**one, "name": "bad", "steps": [{"name": "bad", "sql": BAD}]}
    bad["outputs"] = [{**one["outputs"][0], "name": "bad"}]
    text = yaml.safe_dump({"jobs": [bad, one]}, sort_keys=False)
    with pytest.raises(QueryFailed, match="no such order"):
        runner.run(text)
    assert look(tmp_path / "out")[0] == 0


@pytest.mark.usefixtures("rows")
def test_jobs_side_by_side_have_views_of_their_own_and_end_together(runner, tmp_path):
    """Until one of them fails: then the others end in good order, and the error is told."""
    good = yaml.safe_load(STREAM + streaming())
    bad = {**good, "name": "bad", "steps": [{"name": "bad", "sql": BAD}]}
    bad["outputs"] = [{**good["outputs"][0], "name": "bad", "options": {"path": "${FOLDER}/bad"}}]
    text = yaml.safe_dump({"order": "sideBySide", "jobs": [good, bad]}, sort_keys=False)
    with pytest.raises(QueryFailed, match="no such order"):
        runner.run(text)
    seen, distinct, _ = look(tmp_path / "out")
    assert (seen, seen % ROWS) == (distinct, 0)
    assert look(tmp_path / "bad")[0] == 0


BAD = "SELECT *, raise_error('no such order') AS x FROM rows"


@pytest.mark.usefixtures("rows")
def test_sql_that_spark_refuses_is_refused_before_a_row_moves(runner, tmp_path):
    steps = "steps: [{name: bad, sql: SELECT nothing FROM rows}]\n"
    with pytest.raises(PySparkException, match="nothing"):
        runner.run(STREAM + steps + streaming())
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("job_steps:tripled", "cannot be had"),
        ("no_such_module:f", "cannot be had"),
        ("builtins:repr", "has returned str"),
    ],
)
def test_a_function_that_makes_no_frame_is_named(runner, function, said):
    steps = f"steps: [{{name: made, python: '{function}', inputs: [rows]}}]\n"
    with pytest.raises(OptionError, match=f"step 'made': .*{said}"):
        runner.run(STREAM + steps + streaming())
