"""The Kafka sink under Spark: columns, batches, both kinds of delivery, bad input, security."""

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka_topics import LIMITS, Onlooker, make_topic
from patience import PATIENCE
from pyspark.errors import PySparkException

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import ACLS, open_cluster
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaWriter

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NUMBERS = ("cast(id AS string) AS key", "to_json(struct(id)) AS value")


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True) as found:
        yield found


@pytest.fixture(scope="module")
def onlooker(cluster):
    onlooker = Onlooker(cluster.bootstrap)
    yield onlooker
    onlooker.close()


@pytest.fixture
def topic(cluster):
    name = f"t-{uuid.uuid4().hex}"
    make_topic(cluster.bootstrap, name, partitions=3)
    return name


def write(cluster, frame, **options):
    given = {"kafka.bootstrap.servers": cluster.bootstrap, **options}
    frame.write.format("krishiv-kafka").options(**given).mode("append").save()


def stream(cluster, rows, checkpoint, **options):
    """Write a stream until nothing is left."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "checkpointLocation": checkpoint}
    query = (
        rows.writeStream.format("krishiv-kafka")
        .options(**{**given, **options})
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    return query


def numbers(spark, tmp_path: Path, rows: int = 100):
    """A stream of numbers, from files."""
    folder = str(tmp_path / "numbers")
    if not os.path.exists(folder):
        spark.range(rows).write.parquet(folder)
    return spark.readStream.schema("id long").parquet(folder)


@pytest.mark.core
def test_a_batch_with_every_column(spark, cluster, onlooker, topic):
    frame = spark.sql(
        f"SELECT '{topic}' AS topic, 'k' AS key, cast('v' AS binary) AS value, 2 AS partition, "
        "timestamp'2013-01-01T10:00:00Z' AS timestamp, "
        "array(named_struct('key', 'h', 'value', cast('x' AS binary))) AS headers"
    )
    write(cluster, frame)
    (record,) = onlooker.records(topic)
    assert (record.key, record.value, record.partition) == (b"k", b"v", 2)
    assert (record.timestamp, list(record.headers)) == (1357034400000, [("h", b"x")])


@pytest.mark.once
def test_rows_go_to_the_topics_that_they_name(spark, cluster, onlooker, topic):
    other = f"{topic}-other"
    make_topic(cluster.bootstrap, other)
    rows = spark.range(10).selectExpr(
        f"if(id < 4, '{topic}', '{other}') AS topic", "cast(id AS string) AS value"
    )
    write(cluster, rows)
    assert (len(onlooker.records(topic)), len(onlooker.records(other))) == (4, 6)
    write(cluster, rows, topic=topic)
    assert len(onlooker.records(topic)) == 14


@pytest.mark.once
def test_keys_fall_where_java_puts_them(spark, cluster, onlooker, topic):
    from kafka.partitioner import murmur2

    write(cluster, spark.range(50).selectExpr(*NUMBERS), topic=topic)
    for record in onlooker.records(topic):
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 3


@pytest.mark.core
def test_a_stream_and_its_next_run(spark, cluster, onlooker, topic, checkpoint, tmp_path):
    rows = numbers(spark, tmp_path)
    stream(cluster, rows.selectExpr("to_json(struct(id)) AS value"), checkpoint, topic=topic)
    spark.range(100, 150).write.mode("append").parquet(str(tmp_path / "numbers"))
    stream(cluster, rows.selectExpr("to_json(struct(id)) AS value"), checkpoint, topic=topic)
    found = sorted(json.loads(record.value)["id"] for record in onlooker.records(topic))
    assert found == list(range(150))


@pytest.mark.once
def test_batches_with_the_options_of_a_stream_are_jobs_of_their_own(
    spark, cluster, onlooker, topic, checkpoint, tmp_path
):
    """Before, they took the checkpoint's log: they wrote nothing, and ended the stream."""
    options = {"topic": topic, "checkpointLocation": checkpoint}
    rows = numbers(spark, tmp_path).selectExpr("to_json(struct(id)) AS value")
    stream(cluster, rows, checkpoint, topic=topic)
    for _ in range(2):
        write(cluster, spark.range(1000, 1005).selectExpr(*NUMBERS), **options)
    spark.range(100, 150).write.mode("append").parquet(str(tmp_path / "numbers"))
    stream(cluster, rows, checkpoint, topic=topic)
    assert len(onlooker.records(topic)) == 150 + 2 * 5


SLOW = "if(id < 3000, value, concat(value, nvl(reflect('java.lang.Thread', 'sleep', 600000L), '')))"


@pytest.mark.once
def test_a_query_that_is_stopped_in_mid_batch_holds_nobody_up(
    spark, cluster, onlooker, topic, checkpoint, tmp_path
):
    """Its one task has told nobody of its transaction."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    spark.range(0, 3001, 1, 1).write.parquet(str(tmp_path / "numbers"))
    rows = numbers(spark, tmp_path).selectExpr("id", "repeat('x', 60) AS value")
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "checkpointLocation": checkpoint}
    query = (
        rows.selectExpr(f"{SLOW} AS value")
        .writeStream.format("krishiv-kafka")
        .options(**given, topic=topic, **{"kafka.batch.size": "200"})
        .start()
    )
    try:
        until(lambda: open_ids(cluster, query.id) or query.exception())
        assert open_ids(cluster, query.id)
    finally:
        query.stop()
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    until(lambda: not open_ids(cluster, query.id))
    assert onlooker.committed(topic) == []


def open_ids(cluster, query: str) -> list[str]:
    client = open_client(KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap}))
    return list(transactions.list_open_transactions(client, f"krishiv.{query}."))


def until(condition) -> None:
    """Wait for a third of the time after which the broker itself would abort."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_at_least_once(spark, cluster, onlooker, topic, checkpoint, tmp_path):
    plain = {"topic": topic, "delivery": "at-least-once"}
    stream(cluster, numbers(spark, tmp_path).selectExpr(*NUMBERS), checkpoint, **plain)
    write(cluster, spark.range(5).selectExpr(*NUMBERS), **plain)
    assert len(onlooker.records(topic)) == 105
    records = ["query-id.json", "target.json"]
    assert sorted(os.listdir(f"{checkpoint}/krishiv")) == records, "there is no epoch log"


@pytest.mark.long
def test_output_mode_complete_writes_the_whole_result_each_time(
    spark, cluster, onlooker, topic, checkpoint, tmp_path
):
    counts = numbers(spark, tmp_path).groupBy().count().selectExpr("cast(count AS string) AS value")
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic}
    writer = counts.writeStream.format("krishiv-kafka").options(**given).outputMode("complete")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    assert [record.value for record in onlooker.records(topic)][-1] == b"100"


@pytest.mark.once
@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [  # one that is refused in planning, and one in a task; tests/brokers has the others
        (["'x' AS value"], {"topics": "x"}, "did you mean 'topic'"),
        (["'x' AS value", "7 AS partition"], {}, "partitions 0 to 2"),
    ],
)
def test_errors_reach_the_user(spark, cluster, onlooker, topic, columns, options, said):
    with pytest.raises(PySparkException, match=said):
        write(cluster, spark.range(1).selectExpr(*columns), topic=topic, **options)
    assert onlooker.records(topic) == []


@pytest.mark.once
def test_a_topic_is_not_overwritten(spark, cluster, topic):
    writer = spark.range(1).selectExpr("'x' AS value").write.format("krishiv-kafka")
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic}
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.options(**given).mode("overwrite").save()


@pytest.mark.once
def test_the_command_line_shows_and_ends_what_a_dead_driver_left(cluster, onlooker, tmp_path):
    make_topic(cluster.bootstrap, "left")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "query-that-died"}))
    left_by(cluster, checkpoint)
    where = ("--bootstrap", cluster.bootstrap)
    assert "krishiv.query-that-died.0." in command("list", *where)
    shown = command("show", *where, "--checkpoint", str(checkpoint))
    assert "-> commit" in shown
    assert "-> abort" in shown
    assert command("resolve", *where, "--checkpoint", str(checkpoint), "--dry-run") == shown
    assert onlooker.committed("left") == []
    command("resolve", *where, "--checkpoint", str(checkpoint))
    assert [record.value for record in onlooker.records("left")] == [b"named"]
    assert "no transaction is open" in command("list", *where)


@pytest.mark.once
def test_the_command_line_ends_what_a_dead_job_left(cluster, onlooker, tmp_path):
    make_topic(cluster.bootstrap, "left-by-a-job")
    writer = dead_job(cluster, "left-by-a-job", tmp_path / "logs")
    owns = writer.committer().begin(Epoch("batch-dead", 0))
    task = Task("batch-dead", 0, 0, 0, generation=owns.generation)
    rows = pa.record_batch({"value": ["lost"]})
    writer.stage(iter([rows]), task, writer.plan(owns))
    where = ("--bootstrap", cluster.bootstrap)
    assert "krishiv.batch-dead.0." in command("list", *where, "--query", "batch-dead")
    command("abort", *where, "--query", "batch-dead")
    assert "no transaction is open" in command("list", *where, "--query", "batch-dead")
    assert onlooker.records("left-by-a-job") == []


def left_by(cluster, checkpoint) -> None:
    """Leave transactions open as a driver that dies after its intent: a named one and another."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "left"}
    options = KafkaSinkOptions.parse({**given, "checkpointLocation": str(checkpoint)}, "test")
    writer = KafkaWriter(options, pa.schema([("value", pa.string())]), OutputMode.APPEND)
    owns = writer.committer().begin(Epoch("query-that-died", 0))
    staged = []
    for number, value in enumerate(("named", "lost")):
        rows = pa.record_batch({"value": [value]})
        task = Task("query-that-died", 0, number, number, generation=owns.generation)
        staged.append(writer.stage(iter([rows]), task, writer.plan(owns)))
    dumped = [staged[0].model_dump(mode="json")]
    writer.committer().log("query-that-died").intend(owns.generation, 0, dumped)


def dead_job(cluster, topic, logs) -> KafkaWriter:
    """The writer of a batch job."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic, "epochLog": str(logs)}
    options = KafkaSinkOptions.parse(given, "test")
    schema = pa.schema([("value", pa.string())])
    return KafkaWriter(options, schema, OutputMode.APPEND, streaming=False)


def command(*arguments: str) -> str:
    program = "from krishiv_spark.cli import main; main()"
    line = [sys.executable, "-W", "ignore", "-c", program, "kafka", "transactions", *arguments]
    run = subprocess.run(line, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


# --- security


@pytest.fixture(scope="module")
def guarded():
    with open_cluster(secure=True, settings=ACLS) as found:
        make_topic(found.bootstrap, "guarded")
        make_topic(found.bootstrap, "forbidden")
        yield found


def allow(cluster, kind: ResourceType, name: str, *operations: ACLOperation) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap, **LIMITS)
    admin.create_acls(
        [
            ACL(
                principal=f"User:{cluster.secure.user}",
                host="*",
                operation=operation,
                permission_type=ACLPermissionType.ALLOW,
                resource_pattern=ResourcePattern(kind, name),
            )
            for operation in operations
        ]
    )
    admin.close()


@pytest.fixture(scope="module")
def allowed(guarded):
    both = (ACLOperation.DESCRIBE, ACLOperation.WRITE)
    allow(guarded, ResourceType.TOPIC, "guarded", *both, ACLOperation.READ)
    allow(guarded, ResourceType.TRANSACTIONAL_ID, "*", *both)
    return guarded


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
@pytest.mark.long
def test_a_guarded_cluster(spark, allowed, checkpoint, tmp_path, mechanism, capfd):
    given = allowed.secure.options(mechanism)
    rows = numbers(spark, tmp_path).selectExpr("cast(id AS string) AS value")
    query = stream(allowed, rows, checkpoint, topic="guarded", **given)
    read = spark.read.format("krishiv-kafka").options(**given, subscribe="guarded").load()
    assert read.count() % 100 == 0
    read.explain(extended=True)
    said = "".join(capfd.readouterr()) + str([p.json for p in query.recentProgress])
    files = (path for path in Path(checkpoint).rglob("*") if path.is_file())
    kept = b"".join(path.read_bytes() for path in files)
    assert allowed.secure.password not in said
    assert allowed.secure.password.encode() not in kept


@pytest.mark.once
def test_what_is_not_allowed_says_so_and_shows_no_password(spark, allowed):
    given = allowed.secure.options()
    frame = spark.range(1).selectExpr("'x' AS value").write.format("krishiv-kafka")
    with pytest.raises(PySparkException, match="TopicAuthorizationFailed") as failed:
        frame.options(**given, topic="forbidden").mode("append").save()
    assert allowed.secure.password not in str(failed.value)


@pytest.mark.once
def test_a_wrong_password_fails_at_once_and_is_not_shown(spark, allowed):
    given = allowed.secure.options()
    wrong = given["kafka.sasl.jaas.config"].replace(allowed.secure.password, "wr0ng-password")
    frame = spark.range(1).selectExpr("'x' AS value").write.format("krishiv-kafka")
    with pytest.raises(PySparkException, match="cannot reach the cluster") as failed:
        frame.options(**{**given, "kafka.sasl.jaas.config": wrong, "topic": "guarded"}).mode(
            "append"
        ).save()
    assert "wr0ng-password" not in str(failed.value)


@pytest.mark.once
def test_the_plan_of_a_frame_shows_no_password(spark, allowed):
    assert pyspark.__version__ >= "4.0"
    given = allowed.secure.options()
    read = spark.read.format("krishiv-kafka").options(**given, subscribe="guarded").load()
    plan = read._jdf.queryExecution().toString()
    assert allowed.secure.password not in plan
