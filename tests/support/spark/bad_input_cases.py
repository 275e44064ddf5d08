"""The table of what users get wrong; `test_bad_inputs` tries each."""

from bad_inputs import (
    SECRET,
    Case,
    broken_footer,
    changed_offset,
    damaged_log,
    file_at_target,
    remove_epoch_log,
    roll_back_checkpoint,
)

from krishiv_spark.kafka.dev.secure import make_secure

NOBODY = "127.0.0.1:1"
SOON_S = 25
"""Ten seconds, and what Spark's processes take to start on a busy machine."""


def session_checkpoint(desk):
    desk.spark.conf.set("spark.sql.streaming.checkpointLocation", str(desk.folder / "session"))
    return lambda: desk.spark.conf.unset("spark.sql.streaming.checkpointLocation")


def elsewhere(desk):
    return {"path": str(desk.folder / "elsewhere")}


GROUPS: dict[str, list[Case]] = {
    "Names, units, modes": [
        Case(
            "misspelt option of a source",
            r"unknown option 'maxfilepertrigger'; did you mean 'maxFilesPerTrigger'",
            read={"maxFilePerTrigger": 1},
            cure="write the name that the line has",
        ),
        Case(
            "time without a unit",
            r"'watermarkDelay' = '10': '10' needs a unit of time",
            read={"watermarkDelay": "10"},
            cure="`10 seconds`, `10m`",
        ),
        Case(
            "number that is none",
            r"'maxFilesPerTrigger' = 'many': write a whole number",
            read={"maxFilesPerTrigger": "many"},
            cure="a whole number",
        ),
        Case(
            "unit of size that is none",
            r"'maxPartitionBytes' = '12 parsecs': .* unit of size: b, k, m, g or t",
            read={"maxPartitionBytes": "12 parsecs"},
            cure="`12m`, `12 MiB`",
        ),
        Case(
            "start that does not exist",
            r"'startingOffsets' = 'newest': there are earliest, latest",
            read={"startingOffsets": "newest"},
            cure="one of those that the line has",
        ),
        Case(
            "misspelt option of a sink",
            r"unknown option 'partitonby'; did you mean 'partitionBy'",
            write={"partitonBy": "day"},
            cure="write the name that the line has",
        ),
        Case(
            "codec that does not exist",
            r"'compression' = 'zip': did you mean 'gzip'\? There are snappy",
            batch=True,
            write={"compression": "zip"},
            cure="one of those that the line has",
        ),
        Case(
            "save mode that Spark refuses",
            r"(?i)errorIfExists",
            batch=True,
            mode="error",
            cure='`mode("append")` or `mode("overwrite")`',
            varies=True,
        ),
        Case(
            "output mode that Spark refuses",
            r"krishiv-parquet does not support Update mode",
            mode="update",
            cure='`outputMode("append")`, `"complete"`, or `foreachBatch`',
            varies=True,
        ),
        Case(
            "number of rows that is none",
            r"'numRows' = 'few': write a whole number",
            sink="console",
            write={"numRows": "few"},
            cure="a whole number",
        ),
        Case(
            "mode of a table that does not exist",
            r"'mode' = 'merge': there are append, upsert, scd2",
            sink="iceberg",
            batch=True,
            write={"mode": "merge"},
            cure="`append` or `upsert`",
        ),
        Case(
            "what happens when full, misspelt",
            r"'onFull' = 'dropOld': did you mean 'dropOldest'",
            sink="memory",
            write={"onFull": "dropOld"},
            cure="write the value that the line has",
        ),
    ],
    "What is missing, or contradicts": [
        Case(
            "no path",
            r"option 'path' is required",
            batch=True,
            read={"path": None},
            cure='`.load("/data/in")`',
        ),
        Case(
            "late rows without an event time",
            r"'lateRows' = 'flag'.* needs an event time",
            read={"lateRows": "flag"},
            cure="name the column: `eventTime`",
        ),
        Case(
            "checkpoint that only the session knows",
            r"give the checkpoint with \.option\('checkpointLocation'",
            write={"checkpointLocation": None},
            harm=session_checkpoint,
            cure='`.option("checkpointLocation", …)` on the writer',
        ),
        Case(
            "upsert without a key",
            r"'mode' = 'upsert' needs .*'keyColumns'",
            sink="iceberg",
            batch=True,
            write={"mode": "upsert"},
            cure="name the columns: `keyColumns`",
        ),
        Case(
            "upsert of a whole result",
            r"'mode' = 'upsert'.*'keyColumns'",
            sink="memory",
            write={"mode": "upsert"},
            cure="name the columns: `keyColumns`",
        ),
        Case(
            "result without a name",
            r"a batch write needs a name: \.save\('clicks'\) or option 'name'",
            sink="memory",
            batch=True,
            write={"path": None},
            cure='`.save("clicks")`',
        ),
        Case(
            "memory source without a name",
            r"name",
            source="memory",
            read={"path": None},
            cure='`.load("clicks")`',
        ),
        Case(
            "two snapshots at once",
            r"'snapshot-id'.*'tag'|'tag'.*'snapshot-id'",
            source="iceberg",
            batch=True,
            read={"snapshot-id": 1, "tag": "x"},
            cure="one of the two",
        ),
        Case(
            "route without a format",
            r"route.*good.*format",
            sink="fanout",
            write={"route.good.format": None},
            cure="`route.good.format`",
        ),
        Case(
            "misspelt option of a route",
            r"did you mean '(route\.good\.)?partitionBy'",
            sink="fanout",
            write={"route.good.partitonBy": "day"},
            cure="write the name that the line has",
        ),
    ],
    "Columns and types": [
        Case(
            "event time that is no column",
            r"'eventTime' names column 'when', .* (id|day)",
            read={"eventTime": "when"},
            cure="a column that is there",
        ),
        Case(
            "event time that is no time",
            r"'eventTime'.*'id'.*int64.*an event time must be",
            read={"eventTime": "id"},
            cure="a column of times, or a cast before",
        ),
        Case(
            "columns that are not there",
            r"'idd'.*id",
            batch=True,
            read={"columns": "idd"},
            cure="columns that are there",
        ),
        Case(
            "schema that does not fit a file",
            r"0\.parquet: column 'day' of type string does not fit int32: .*cast it in the query",
            batch=True,
            schema="id LONG, day INT",
            cure="the type of the file, and a cast in the query",
        ),
        Case(
            "partition by no column",
            r"'partitionBy' names .*'month'.*day",
            write={"partitionBy": "month"},
            cure="a column that is there",
        ),
        Case(
            "other partitions than the table's",
            r"partition",
            write={"partitionBy": "day"},
            begun=True,
            cure="those of the table, or another folder",
        ),
        Case(
            "other types than the folder's",
            r"column 'id' is string, but int64",
            batch=True,
            begun=True,
            columns=("cast(id AS string) AS id", "day"),
            cure="cast the column back, or another folder",
        ),
        Case(
            "other types than the table's",
            r"rows do not fit table db\.rows: .*id",
            sink="iceberg",
            batch=True,
            begun=True,
            columns=("cast(id AS string) AS id", "day"),
            cure="cast the column back",
        ),
        Case(
            "more columns than the table's",
            r"rows do not fit table db\.rows: .*more.*schemaEvolution",
            sink="iceberg",
            begun=True,
            columns=("*", "1 AS more"),
            cure="`schemaEvolution`, or leave the column out",
        ),
        Case(
            "type that Parquet has not",
            r"column 'pause' is an interval",
            batch=True,
            columns=("*", "interval 1 day AS pause"),
            cure="cast it, or leave it out",
        ),
    ],
    "Places": [
        Case(
            "path that is not there",
            r"nowhere",
            batch=True,
            read={"path": "/nowhere/at/all"},
            cure="a path that is there, and `.schema(…)` for one that will be",
        ),
        Case(
            "file where the folder has to be",
            r"out cannot be created: ",
            harm=file_at_target,
            cure="move the file away",
            varies=True,
        ),
        Case(
            "table that is not there",
            r"there is no table db\.tt in catalog 'krishiv'; did you mean 'db\.t'",
            source="iceberg",
            read={"table": "db.tt"},
            cure="the name that the line has",
        ),
        Case(
            "snapshot that is not there",
            r"option 'snapshot-id' names snapshot 4711, which table .* does not have",
            source="iceberg",
            batch=True,
            read={"snapshot-id": 4711},
            cure="a snapshot of the table, or none",
        ),
        Case(
            "warehouse that is not there",
            r"no .*catalog.*nowhere",
            source="iceberg",
            batch=True,
            read={"warehouse": "/nowhere"},
            cure="the folder that has `catalog.db`",
        ),
        Case(
            "REST catalog where nobody listens",
            r"cannot open the catalog .*: "
            rf"no server listens at http://{NOBODY}: correct 'catalog\.uri'",
            sink="iceberg",
            batch=True,
            write={"catalog.uri": f"http://{NOBODY}", "catalog.token": SECRET},
            within_s=SOON_S,
            cure="correct the option that the line has",
        ),
        Case(
            "store where nobody listens",
            rf"no server listens at http://{NOBODY}: correct 'storage\.s3\.endpoint'",
            write={
                "path": "s3://box/out",
                "storage.s3.endpoint": f"http://{NOBODY}",
                "storage.s3.accessKeyId": "k",
                "storage.s3.secretAccessKey": SECRET,
                "storage.s3.region": "us-east-1",
            },
            within_s=SOON_S,
            cure="correct the option that the line has",
        ),
    ],
    "What is damaged": [
        Case(
            "damaged file",
            r"in/0\.parquet cannot be read as Parquet: .*: set one with \.schema",
            batch=True,
            harm=broken_footer,
            cure="put the file back, or `badFiles` = `skip`",
            varies=True,
        ),
        Case(
            "offset of a newer version",
            r"upgrade krishiv-spark",
            begun=True,
            harm=changed_offset(v=99),
            cure="the newer release, on all machines",
        ),
        Case(
            "damaged offset",
            r"damaged parquet offset",
            begun=True,
            harm=changed_offset(files=7),
            cure="put `offsets/` back as it was",
            varies=True,
        ),
        Case(
            "offset of another source",
            r"a checkpoint belongs to one query with one source",
            begun=True,
            harm=changed_offset(kind="memory"),
            cure="a checkpoint for each query",
            varies=True,
        ),
        Case(
            "damaged entry of the log",
            r"\.json.* is damaged",
            begun=True,
            harm=damaged_log,
            cure="put the entry back from a copy",
            varies=True,
        ),
        Case(
            "epoch log that is gone",
            r"its epoch log .*is empty",
            begun=True,
            harm=remove_epoch_log,
            cure="put the log back",
        ),
        Case(
            "checkpoint that was rolled back",
            r"CheckpointMismatch: .*the sink has",
            begun=True,
            harm=roll_back_checkpoint,
            cure="put the newest checkpoint back",
            varies=True,
        ),
        Case(
            "another folder under an old checkpoint",
            r"epochs were written to .*elsewhere|its epoch log",
            begun=True,
            write=elsewhere,
            cure="the old folder, or a new checkpoint",
        ),
    ],
}


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
    rf"Kafka at {NOBODY}: cannot reach the cluster: {NOBODY}: no server listens there "
    r".*'kafka\.bootstrap\.servers'"
)
SERVERS = {"kafka.bootstrap.servers": NOBODY}
GROUPS["Kafka"] = [
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
        cure="`kafka.security.protocol` = `SASL_SSL`, or no login",
    ),
    Case(
        "misspelt broker",
        r"unknown option 'kafka\.bootstrap\.server'; did you mean 'kafka\.bootstrap\.servers'",
        source="kafka",
        read={"kafka.bootstrap.server": "b:9092", "kafka.bootstrap.servers": None},
        cure="write the name that the line has",
    ),
    Case(
        "no topic",
        r"set one of the options 'subscribe', 'subscribePattern' and 'assign'; given: none",
        source="kafka",
        read={"subscribe": None},
        cure="`subscribe`, `subscribePattern` or `assign`",
    ),
    Case(
        "form of values without a registry",
        r"option 'valueFormat' = 'protobuf' needs the option 'registry\.url'",
        source="kafka",
        read={"valueFormat": "protobuf"},
        cure="`registry.url`: the address of the schema registry",
    ),
    Case(
        "schema registry that is not there",
        r"the schema registry http://127\.0\.0\.1:1 was asked for version latest of the subject",
        source="kafka",
        read={
            "valueFormat": "json-schema",
            "registry.url": f"http://{NOBODY}",
            "registry.timeout": "1s",
        },
        cure="the right address; without `registry.timeout` a query waits half a minute",
        varies=True,
    ),
    Case(
        "topic and partitions at once",
        r"'subscribe'.*'assign'",
        source="kafka",
        read={"assign": '{"t": [0]}'},
        cure="one of the two",
    ),
    Case(
        "offsets that are no JSON",
        r"'startingOffsets' = '\{\"t\": 0'",
        source="kafka",
        read={"startingOffsets": '{"t": 0'},
        cure='`{"t": {"0": 5}}`',
    ),
    Case(
        "topic that is not there",
        r"does not exist|there is no topic",
        source="kafka",
        batch=True,
        read={"subscribe": "nowhere"},
        within_s=SOON_S,
        cure="the name of one, or make it",
    ),
    Case(
        "broker where nobody listens",
        REASON,
        source="kafka",
        read=SERVERS,
        within_s=SOON_S,
        cure="correct the option that the line has",
        varies=True,
    ),
    Case(
        "certificate of another authority",
        r"its certificate is not trusted .*'kafka\.ssl\.truststore\.location'",
        source="kafka",
        read=another_authority,
        within_s=SOON_S,
        cure="the authority's certificate in the option that the line has",
        varies=True,
    ),
    Case(
        "wrong password",
        r"AuthenticationFailed.*the login of user 'krishiv' is refused: see its password",
        source="kafka",
        read=wrong_password,
        within_s=SOON_S,
        cure="the password",
    ),
    Case(
        "topic that may not be read",
        r"TopicAuthorizationFailed.*the user needs the ACL",
        source="kafka",
        batch=True,
        read=guarded,
        within_s=SOON_S,
        cure="give the user the right that the line has",
    ),
    Case(
        "delivery that does not exist",
        r"'delivery' = 'once': there are exactly-once, at-least-once",
        sink="kafka",
        write={"delivery": "once"},
        cure="one of those that the line has",
    ),
    Case(
        "rows without a value",
        r"column 'id' cannot be part of a record: .*to_json",
        sink="kafka",
        columns=("id", "day"),
        cure="`to_json(struct(*)) AS value`",
    ),
    Case(
        "key that is a number",
        r"column 'key' is int64, but must be string or binary: cast it",
        sink="kafka",
        batch=True,
        columns=("id AS key", "day AS value"),
        cure="`cast(id AS string) AS key`",
    ),
    Case(
        "topic that is to be overwritten",
        r"a topic cannot be overwritten: use mode\('append'\)",
        sink="kafka",
        batch=True,
        mode="overwrite",
        cure='`mode("append")`',
    ),
    Case(
        "target topic that is not there",
        r"it does not exist, and the brokers do not create it .*: create it",
        sink="kafka",
        write=no_topic,
        within_s=SOON_S,
        cure="make the topic, or correct its name",
    ),
    Case(
        "sink's broker where nobody listens",
        REASON,
        sink="kafka",
        write=SERVERS,
        within_s=SOON_S,
        cure="correct the option that the line has",
        varies=True,
    ),
    Case(
        "sink's certificate of another authority",
        r"its certificate is not trusted .*'kafka\.ssl\.truststore\.location'",
        sink="kafka",
        write=another_authority,
        within_s=SOON_S,
        cure="the authority's certificate in the option that the line has",
        varies=True,
    ),
    Case(
        "sink's wrong password",
        r"the login of user 'krishiv' is refused: see its password",
        sink="kafka",
        write=wrong_password,
        within_s=SOON_S,
        cure="the password",
    ),
    Case(
        "topic that may not be written",
        r"TopicAuthorizationFailed.*the user needs the ACL",
        sink="kafka",
        write=guarded,
        within_s=SOON_S,
        cure="give the user the right that the line has",
    ),
]

CASES = [case for group, cases in GROUPS.items() if group != "Kafka" for case in cases]
KAFKA = GROUPS["Kafka"]
