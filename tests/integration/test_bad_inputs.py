"""What users get wrong: the first line says what, which value and what to do, and nothing is lost.

With ``KRISHIV_BAD_INPUTS`` = a file, that gets the table of it: case, seconds, first line.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from bad_inputs import (
    ROWS,
    SECRET,
    Case,
    Desk,
    broken_footer,
    changed_offset,
    damaged_log,
    file_at_target,
    log_taken_away,
    rolled_back,
)

from krishiv_spark.kafka.dev import ACLS, open_cluster
from krishiv_spark.kafka.dev.secure import make_secure

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NOBODY = "127.0.0.1:1"
HEADING = re.compile(r"\s*An exception was thrown from the Python worker[^\n]*\n\s*")
"""What Spark itself puts before the error of a task."""
SOON_S = 25
"""Ten seconds, and what Spark's processes take to start on a busy machine."""


def session_checkpoint(desk):
    desk.spark.conf.set("spark.sql.streaming.checkpointLocation", str(desk.folder / "session"))
    return lambda: desk.spark.conf.unset("spark.sql.streaming.checkpointLocation")


def elsewhere(desk):
    return {"path": str(desk.folder / "elsewhere")}


CASES = [
    # --- names, units, modes
    Case(
        "misspelt option of a source",
        r"unknown option 'maxfilepertrigger'; did you mean 'maxFilesPerTrigger'",
        read={"maxFilePerTrigger": 1},
    ),
    Case(
        "time without a unit",
        r"'watermarkDelay' = '10': '10' needs a unit of time",
        read={"watermarkDelay": "10"},
    ),
    Case(
        "number that is none",
        r"'maxFilesPerTrigger' = 'many': a whole number is needed",
        read={"maxFilesPerTrigger": "many"},
    ),
    Case(
        "unit of size that is none",
        r"'maxPartitionBytes' = '12 parsecs': .* unit of size: b, k, m, g or t",
        read={"maxPartitionBytes": "12 parsecs"},
    ),
    Case(
        "start that does not exist",
        r"'startingOffsets' = 'newest': there are earliest, latest",
        read={"startingOffsets": "newest"},
    ),
    Case(
        "misspelt option of a sink",
        r"unknown option 'partitonby'; did you mean 'partitionBy'",
        write={"partitonBy": "day"},
    ),
    Case(
        "codec that does not exist",
        r"'compression' = 'zip': did you mean 'gzip'\? There are snappy",
        batch=True,
        write={"compression": "zip"},
    ),
    Case("save mode that Spark refuses", r"(?i)errorIfExists", batch=True, mode="error"),
    Case(
        "output mode that Spark refuses",
        r"krishiv-parquet does not support Update mode",
        mode="update",
    ),
    Case(
        "number of rows that is none",
        r"'numRows' = 'few': a whole number is needed",
        sink="console",
        write={"numRows": "few"},
    ),
    Case(
        "mode of a table that does not exist",
        r"'mode' = 'merge': there are append, upsert",
        sink="iceberg",
        batch=True,
        write={"mode": "merge"},
    ),
    Case(
        "what happens when full, misspelt",
        r"'onFull' = 'dropOld': did you mean 'dropOldest'",
        sink="memory",
        write={"onFull": "dropOld"},
    ),
    # --- what is missing, or contradicts
    Case("no path", r"option 'path' is required", batch=True, read={"path": None}),
    Case(
        "late rows without an event time",
        r"'lateRows' = 'flag'.* needs an event time",
        read={"lateRows": "flag"},
    ),
    Case(
        "checkpoint that only the session knows",
        r"give the checkpoint with \.option\('checkpointLocation'",
        write={"checkpointLocation": None},
        harm=session_checkpoint,
    ),
    Case(
        "upsert without a key",
        r"'mode' = 'upsert' needs .*'keyColumns'",
        sink="iceberg",
        batch=True,
        write={"mode": "upsert"},
    ),
    Case(
        "upsert of a whole result",
        r"'mode' = 'upsert'.*'keyColumns'",
        sink="memory",
        write={"mode": "upsert"},
    ),
    Case(
        "result without a name",
        r"a batch write needs a name: \.save\('clicks'\) or option 'name'",
        sink="memory",
        batch=True,
        write={"path": None},
    ),
    Case("memory source without a name", r"name", source="memory", read={"path": None}),
    Case(
        "two snapshots at once",
        r"'snapshot-id'.*'tag'|'tag'.*'snapshot-id'",
        source="iceberg",
        batch=True,
        read={"snapshot-id": 1, "tag": "x"},
    ),
    Case(
        "route without a format",
        r"route.*good.*format",
        sink="fanout",
        write={"route.good.format": None},
    ),
    Case(
        "misspelt option of a route",
        r"did you mean '(route\.good\.)?partitionBy'",
        sink="fanout",
        write={"route.good.partitonBy": "day"},
    ),
    # --- columns and types
    Case(
        "event time that is no column",
        r"'eventTime' names column 'when', .* (id|day)",
        read={"eventTime": "when"},
    ),
    Case(
        "event time that is no time",
        r"'eventTime'.*'id'.*int64.*an event time is",
        read={"eventTime": "id"},
    ),
    Case("columns that are not there", r"'idd'.*id", batch=True, read={"columns": "idd"}),
    Case(
        "schema that does not fit a file",
        r"0\.parquet: column 'day' of type string does not fit int32: .*cast it in the query",
        batch=True,
        schema="id LONG, day INT",
    ),
    Case(
        "partition by no column",
        r"'partitionBy' names .*'month'.*day",
        write={"partitionBy": "month"},
    ),
    Case(
        "other partitions than the table's", r"partition", write={"partitionBy": "day"}, begun=True
    ),
    Case(
        "other types than the folder's",
        r"column 'id' is string, but int64",
        batch=True,
        begun=True,
        columns=("cast(id AS string) AS id", "day"),
    ),
    Case(
        "other types than the table's",
        r"rows do not fit table db\.rows: .*id",
        sink="iceberg",
        batch=True,
        begun=True,
        columns=("cast(id AS string) AS id", "day"),
    ),
    Case(
        "more columns than the table's",
        r"rows do not fit table db\.rows: .*more.*schemaEvolution",
        sink="iceberg",
        begun=True,
        columns=("*", "1 AS more"),
    ),
    Case(
        "type that Parquet has not",
        r"column 'pause' is an interval",
        batch=True,
        columns=("*", "interval 1 day AS pause"),
    ),
    # --- places
    Case("path that is not there", r"nowhere", batch=True, read={"path": "/nowhere/at/all"}),
    Case("file where the folder has to be", r"out cannot be made: ", harm=file_at_target),
    Case(
        "table that is not there",
        r"there is no table db\.tt in catalog 'krishiv'; did you mean 'db\.t'",
        source="iceberg",
        read={"table": "db.tt"},
    ),
    Case(
        "snapshot that is not there",
        r"option 'snapshot-id' names snapshot 4711, which table .* does not have",
        source="iceberg",
        batch=True,
        read={"snapshot-id": 4711},
    ),
    Case(
        "warehouse that is not there",
        r"no .*catalog.*nowhere",
        source="iceberg",
        batch=True,
        read={"warehouse": "/nowhere"},
    ),
    Case(
        "REST catalog where nobody listens",
        rf"cannot open the catalog .*: nobody listens at http://{NOBODY}: correct 'catalog\.uri'",
        sink="iceberg",
        batch=True,
        write={"catalog.uri": f"http://{NOBODY}", "catalog.token": SECRET},
        within_s=SOON_S,
    ),
    Case(
        "store where nobody listens",
        rf"nobody listens at http://{NOBODY}: correct 'storage\.s3\.endpoint'",
        write={
            "path": "s3://box/out",
            "storage.s3.endpoint": f"http://{NOBODY}",
            "storage.s3.accessKeyId": "k",
            "storage.s3.secretAccessKey": SECRET,
            "storage.s3.region": "us-east-1",
        },
        within_s=SOON_S,
    ),
    # --- what is damaged
    Case(
        "damaged file",
        r"in/0\.parquet cannot be read as Parquet: .*: give one with \.schema",
        batch=True,
        harm=broken_footer,
    ),
    Case(
        "offset of a newer version", r"upgrade krishiv-spark", begun=True, harm=changed_offset(v=99)
    ),
    Case("damaged offset", r"damaged parquet offset", begun=True, harm=changed_offset(files=7)),
    Case(
        "offset of another source",
        r"a checkpoint belongs to one query with one source",
        begun=True,
        harm=changed_offset(kind="memory"),
    ),
    Case("damaged entry of the log", r"\.json.* is damaged", begun=True, harm=damaged_log),
    Case("epoch log that is gone", r"its epoch log .*is empty", begun=True, harm=log_taken_away),
    Case(
        "checkpoint that was rolled back",
        r"CheckpointMismatch: .*holds",
        begun=True,
        harm=rolled_back,
    ),
    Case(
        "another folder under an old checkpoint",
        r"epochs went to .*elsewhere|its epoch log",
        begun=True,
        write=elsewhere,
    ),
]


# --- with a cluster


def another_authority(desk):
    other = make_secure(desk.folder / "other", desk.cluster.secure.bootstrap)
    return {**desk.cluster.secure.options(), "kafka.ssl.truststore.location": str(other.authority)}


def wrong_password(desk):
    given = desk.cluster.secure.options()
    login = given["kafka.sasl.jaas.config"].replace(desk.cluster.secure.password, SECRET)
    return {**given, "kafka.sasl.jaas.config": login}


def guarded(desk):
    return desk.cluster.secure.options()


def no_topic(desk):
    return {"topic": f"{desk.name}-outt"}


REASON = (
    rf"Kafka at {NOBODY}: cannot reach the cluster: {NOBODY}: nobody listens there "
    r".*'kafka\.bootstrap\.servers'"
)
SERVERS = {"kafka.bootstrap.servers": NOBODY}
KAFKA = [
    Case(
        "setting of a login that is not used",
        r"'kafka\.sasl\.password' needs 'kafka\.security\.protocol' = SASL",
        sink="kafka",
        batch=True,
        write={
            "kafka.bootstrap.servers": NOBODY,
            "topic": "t",
            "kafka.sasl.username": "u",
            "kafka.sasl.password": SECRET,
        },
    ),
    Case(
        "misspelt broker",
        r"unknown option 'kafka\.bootstrap\.server'; did you mean 'kafka\.bootstrap\.servers'",
        source="kafka",
        read={"kafka.bootstrap.server": "b:9092", "kafka.bootstrap.servers": None},
    ),
    Case(
        "no topic",
        r"give one of the options 'subscribe', 'subscribePattern' and 'assign'; given: none",
        source="kafka",
        read={"subscribe": None},
    ),
    Case(
        "topic and partitions at once",
        r"'subscribe'.*'assign'",
        source="kafka",
        read={"assign": '{"t": [0]}'},
    ),
    Case(
        "offsets that are no JSON",
        r"'startingOffsets' = '\{\"t\": 0'",
        source="kafka",
        read={"startingOffsets": '{"t": 0'},
    ),
    Case(
        "topic that is not there",
        r"does not exist|there is no topic",
        source="kafka",
        batch=True,
        read={"subscribe": "nowhere"},
        within_s=SOON_S,
    ),
    Case("broker where nobody listens", REASON, source="kafka", read=SERVERS, within_s=SOON_S),
    Case(
        "certificate of another authority",
        r"its certificate is not trusted .*'kafka\.ssl\.truststore\.location'",
        source="kafka",
        read=another_authority,
        within_s=SOON_S,
    ),
    Case(
        "wrong password",
        r"AuthenticationFailed.*the login of user 'krishiv' is refused: see its password",
        source="kafka",
        read=wrong_password,
        within_s=SOON_S,
    ),
    Case(
        "topic that may not be read",
        r"TopicAuthorizationFailed.*the user needs the ACL",
        source="kafka",
        batch=True,
        read=guarded,
        within_s=SOON_S,
    ),
    Case(
        "delivery that does not exist",
        r"'delivery' = 'once': there are exactly-once, at-least-once",
        sink="kafka",
        write={"delivery": "once"},
    ),
    Case(
        "rows without a value",
        r"column 'id' has no place in a record: .*to_json",
        sink="kafka",
        columns=("id", "day"),
    ),
    Case(
        "key that is a number",
        r"column 'key' is int64, but has to be string or binary: cast it",
        sink="kafka",
        batch=True,
        columns=("id AS key", "day AS value"),
    ),
    Case(
        "topic that is to be overwritten",
        r"a topic cannot be overwritten: use mode\('append'\)",
        sink="kafka",
        batch=True,
        mode="overwrite",
    ),
    Case(
        "target topic that is not there",
        r"it does not exist, and the brokers do not make it .*: create it",
        sink="kafka",
        write=no_topic,
        within_s=SOON_S,
    ),
    Case(
        "sink's broker where nobody listens", REASON, sink="kafka", write=SERVERS, within_s=SOON_S
    ),
    Case(
        "sink's certificate of another authority",
        r"its certificate is not trusted .*'kafka\.ssl\.truststore\.location'",
        sink="kafka",
        write=another_authority,
        within_s=SOON_S,
    ),
    Case(
        "sink's wrong password",
        r"the login of user 'krishiv' is refused: see its password",
        sink="kafka",
        write=wrong_password,
        within_s=SOON_S,
    ),
    Case(
        "topic that may not be written",
        r"TopicAuthorizationFailed.*the user needs the ACL",
        sink="kafka",
        write=guarded,
        within_s=SOON_S,
    ),
]


@pytest.fixture(scope="module")
def cluster():
    settings = {**ACLS, "auto.create.topics.enable": "false"}
    with open_cluster(secure=True, settings=settings) as found:
        yield found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_first_line_says_it_and_nothing_is_lost(spark, tmp_path, case):
    examine(Desk(spark, tmp_path), case)


@pytest.mark.parametrize("case", KAFKA, ids=lambda case: case.name)
def test_so_it_does_of_kafka(spark, tmp_path, cluster, case):
    examine(Desk(spark, tmp_path, cluster), case)


def examine(desk: Desk, case: Case) -> None:
    desk.add_orders(case.source)
    if case.begun:
        desk.run(case.mended())
        desk.add_orders(case.source)
    mend = case.harm(desk)
    held, files = desk.ids(case.sink), desk.files()
    text, took_s = desk.refusal(case)
    first = HEADING.sub("", text).partition("\n")[0]
    note(case, took_s, first)
    if sys.version_info >= (3, 11):  # before, there are no notes of errors
        assert re.search(case.says, first), text
    assert re.search(case.says, text), text
    assert "krishiv_spark." not in first or "Traceback" in text.removeprefix(first)
    assert SECRET not in text
    if "password" not in case.name:
        assert "see its password" not in first, "which nobody has looked at"
    assert took_s < case.within_s
    assert desk.ids(case.sink) == held
    assert desk.files() == files
    mend()
    desk.run(case.mended())
    goes_on(desk, case)


def goes_on(desk: Desk, case: Case) -> None:
    """The mended query has brought each row once; a batch brings all that there is."""
    found = desk.ids(case.sink)
    wanted = list(range(desk.rows))
    if case.batch and case.begun:
        wanted = sorted([*range(ROWS), *wanted])
    assert found is None or found == wanted


def note(case: Case, seconds: float, first: str) -> None:
    if target := os.environ.get("KRISHIV_BAD_INPUTS"):
        kind = f"{case.source} to {case.sink}, {'batch' if case.batch else 'stream'}"
        with Path(target).open("a") as file:
            file.write(f"| {case.name} | {kind} | {seconds:.1f} | {first} |\n")
