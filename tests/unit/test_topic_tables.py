"""A table for each topic: each epoch is in all tables that it has rows for, or in none."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from database_life import RECORDS
from iceberg_life import catalog_of
from registered_events import make_envelope, make_event, make_row, running_schema_server
from topic_tables_life import TopicLife, event

from krishiv_spark.changes.debezium import DebeziumDecoder
from krishiv_spark.cli import main
from krishiv_spark.errors import CommitRejected, CommitUnknown, OptionError, SchemaError
from krishiv_spark.formats import find_format
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log
from krishiv_spark.operate.inspection.query_status import inspect_table
from krishiv_spark.options.topic_names import check_pattern, name_by_topic
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.topic_participant import StagedTopics, route_of_topic
from krishiv_spark.sinks.iceberg.committer import IcebergCommitter
from krishiv_spark.spark.checkpoint import SparkCheckpoint


def test_each_topic_gets_a_table_with_the_columns_and_the_key_of_its_events(tmp_path):
    life = TopicLife(tmp_path)
    life.run(shop__public__customers=[event({"id": 1, "name": "a"}, 1)])
    life.run(
        shop__public__customers=[event({"id": 1, "name": "b"}, 3, "u")],
        shop__public__lines=[
            event({"order": 7, "line": 1, "amount": 5}, 4, keys=("order", "line")),
            event({"order": 7, "line": 2, "amount": 6}, 5, keys=("order", "line")),
        ],
    )
    life.run(
        together=True,
        shop__public__lines=[
            event({"order": 7, "line": 2, "amount": 8}, 6, "u", keys=("order", "line")),
            event({"order": 7, "line": 1, "amount": 5}, 7, "d", keys=("order", "line")),
        ],
        shop__public__customers=[event({"id": 2, "name": "c"}, 8)],
    )
    assert life.rows("lake.customers") == [(1, "b"), (2, "c")]
    assert life.rows("lake.lines") == [(7, 2, 8)]
    assert life.names() == ["lake.customers", "lake.lines"]


LONG = pytest.mark.long
ROWS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("topic", pa.string())])


def test_rows_are_added_to_the_table_that_their_column_topic_names(tmp_path):
    life = TopicLife(tmp_path, ROWS, table="lake.raw_${topic}")
    life.run(a__b=[{"id": 1, "text": "x"}], c=[{"id": 2, "text": "y"}, {"id": 3, "text": "z"}])
    life.run(together=True, c=[{"id": 4, "text": "y"}], a__b=[{"id": 5, "text": "z"}])
    assert life.rows("lake.raw_a_b") == [(1, "x"), (5, "z")]
    assert life.rows("lake.raw_c") == [(2, "y"), (3, "z"), (4, "y")]
    assert life.table("lake.raw_c").schema().column_names == ["id", "text"]


def test_rows_replace_those_of_their_key_in_the_table_of_their_topic(tmp_path):
    life = TopicLife(tmp_path, ROWS, mode="upsert", keyColumns="id")
    life.run(a=[{"id": 1, "text": "x"}], b=[{"id": 1, "text": "y"}])
    life.run(a=[{"id": 1, "text": "z"}])
    assert (life.rows("lake.a"), life.rows("lake.b")) == ([(1, "z")], [(1, "y")])


def test_rows_without_a_topic_are_refused(tmp_path):
    life = TopicLife(tmp_path, ROWS)
    life.start()
    rows = pa.RecordBatch.from_pylist([{"id": 1, "topic": "a"}, {"id": 2}], ROWS)
    with pytest.raises(SchemaError, match=r"1 of 2 rows have no topic"):
        life.task(0, 0, rows)


@pytest.mark.parametrize("survivors", [pytest.param(0, marks=LONG), 1, pytest.param(2, marks=LONG)])
def test_a_crash_between_two_tables_is_completed_by_the_next_start(
    tmp_path, monkeypatch, survivors
):
    life = TopicLife(tmp_path)
    life.run(a=[event({"id": 1, "name": "a"}, 1)], b=[event({"id": 7}, 2)])
    finish, finished = IcebergCommitter.finish, []

    def fail(committer, *given):
        if len(finished) == survivors:
            raise OSError("the store is away")
        finish(committer, *given)
        finished.append(given)

    events = {
        "a": [event({"id": 1, "name": "b"}, 3, "u"), event({"id": 2, "name": "c"}, 4)],
        "b": [event({"id": 7, "amount": 5}, 5, "u"), event({"id": 8, "amount": 6}, 6)],
        "c": [event({"id": 9}, 6)],
    }
    with monkeypatch.context() as broken:
        broken.setattr(IcebergCommitter, "finish", fail)
        with pytest.raises(CommitUnknown):
            life.run(**events)
    assert len(finished) == survivors
    life.plan()  # the next start
    wanted = ([(1, "b"), (2, "c")], [(7, 5), (8, 6)], [(9,)])

    def read():
        return life.rows("lake.a"), life.rows("lake.b"), life.rows("lake.c")

    assert read() == wanted
    life.run(**events)  # Spark repeats the epoch
    assert read() == wanted
    life.run(c=[event({"id": 10}, 7)])
    assert read() == (*wanted[:2], [(9,), (10,)])


def test_epochs_without_rows_keep_the_record_of_tables(tmp_path):
    life = TopicLife(tmp_path)
    life.run(a=[event({"id": 1}, 1)], b=[event({"id": 2}, 1)])
    catalog = catalog_of(tmp_path / "warehouse")
    schema = life.table("lake.a").schema()
    life.run(a=[])
    catalog.drop_table("lake.a")
    catalog.create_table("lake.a", schema)
    life.run(a=[])
    with pytest.raises(CommitRejected, match=r"lake.a of topic 'a' was removed and created again"):
        life.run(a=[event({"id": 4}, 3)])
    life = TopicLife(tmp_path, first=life.next)
    with pytest.raises(CommitRejected, match=r"lake.a of topic 'a' was removed and created again"):
        life.run(a=[event({"id": 4}, 3)])


def test_a_table_that_was_created_again_is_refused_when_it_gets_rows(tmp_path):
    life = TopicLife(tmp_path)
    life.run(a=[event({"id": 1}, 1)], b=[event({"id": 2}, 1)])
    catalog = catalog_of(tmp_path / "warehouse")
    schema = life.table("lake.a").schema()
    catalog.drop_table("lake.a")
    life.run(b=[event({"id": 3}, 2)])  # it has no rows for the table
    events = {"a": [event({"id": 4}, 3)], "b": [event({"id": 5}, 3)]}
    with pytest.raises(
        OptionError, match=r"topic 'a'; it has rows up to epoch 0: .*no table lake.a"
    ):
        life.run(**events)
    catalog.create_table("lake.a", schema)
    with pytest.raises(CommitRejected, match=r"lake.a of topic 'a' was removed and created again"):
        life.run(**events)
    assert life.rows("lake.b") == [(2,), (3,)]
    adopt(life, "--newest", "unpublished")
    life.run(**events)
    assert (life.rows("lake.a"), life.rows("lake.b")) == ([(4,)], [(2,), (3,), (5,)])


def test_a_table_that_is_created_again_after_the_intent_stops_the_query(tmp_path, monkeypatch):
    life = TopicLife(tmp_path)
    life.run(a=[event({"id": 1}, 1)], b=[event({"id": 2}, 1)])
    schema = life.table("lake.b").schema()

    def fail(*_):
        raise OSError("the store is away")

    events = {"a": [event({"id": 4}, 3)], "b": [event({"id": 5}, 3)]}
    with monkeypatch.context() as broken:
        broken.setattr(IcebergCommitter, "finish", fail)
        with pytest.raises(CommitUnknown):
            life.run(**events)
    catalog = catalog_of(tmp_path / "warehouse")
    catalog.drop_table("lake.b")
    catalog.create_table("lake.b", schema)
    with pytest.raises(PlanningFailed, match=r"was written to the previous table lake.b"):
        life.run(**events)


@pytest.mark.parametrize("together", [False, True])
def test_two_topics_of_one_table_are_refused(tmp_path, together):
    life = TopicLife(tmp_path)
    raised = OptionError if together else CommitRejected  # each task knows its own topics
    with pytest.raises(raised, match=r"topics 'x.a' and 'y.a' have one table, lake.a"):
        life.run(together=together, x__a=[event({"id": 1}, 1)], y__a=[event({"id": 1}, 1)])
    life.run(x__a=[event({"id": 1}, 1)])
    with pytest.raises(OptionError, match=r"topics 'x.a' and 'y.a' have one table, lake.a"):
        life.run(y__a=[event({"id": 1}, 1)])
    assert life.rows("lake.a") == [(1,)]


def test_tables_whose_names_were_swapped_are_refused(tmp_path):
    life = TopicLife(tmp_path)
    life.run(a=[event({"id": 1}, 1)], b=[event({"id": 2}, 1)])
    catalog = catalog_of(tmp_path / "warehouse")
    for old, new in (("a", "t"), ("b", "a"), ("t", "b")):
        catalog.rename_table(f"lake.{old}", f"lake.{new}")
    with pytest.raises(
        CommitRejected, match=r"lake.a of topic 'a' is now .* of topic 'b'.*restore their names"
    ):
        life.run(a=[event({"id": 3}, 2)])
    assert (life.rows("lake.a"), life.rows("lake.b")) == ([(2,)], [(1,)])


def test_topics_that_differ_in_case_have_a_table_each(tmp_path):
    life = TopicLife(tmp_path)
    life.run(A=[event({"id": 1}, 1)], a=[event({"id": 2}, 1)])
    assert (life.rows("lake.A"), life.rows("lake.a")) == ([(1,)], [(2,)])


def test_an_epoch_that_the_log_does_not_know_is_refused(tmp_path):
    life = TopicLife(tmp_path)
    life.run(a=[event({"id": 1}, 1)])
    copy = tmp_path / "copy"
    shutil.copytree(life.checkpoint, copy)
    life.run(a=[event({"id": 2}, 2)], b=[event({"id": 7}, 2)])
    shutil.rmtree(life.checkpoint)
    shutil.copytree(copy, life.checkpoint)
    older = TopicLife(tmp_path, first=1)
    older.run(c=[event({"id": 1}, 1)])
    with pytest.raises(CommitRejected, match=r"has epoch 1 of query .*, and no epoch by the epoch"):
        older.run(b=[event({"id": 8}, 2)])
    with pytest.raises(CommitRejected, match=r"has epoch 1 of query .*, and epoch 0 by the epoch"):
        older.run(a=[event({"id": 8}, 2)])


def test_tasks_must_agree_on_the_key_of_a_topic(tmp_path):
    life = TopicLife(tmp_path, tableSchema="id INT, other INT")
    row = {"id": 1, "other": 1}
    life.start()
    one = [*life.batches(0, {"a": [event(row, 1)]})]
    two = [*life.batches(0, {"a": [event(row, 1, keys=("other",))]})]
    messages = [life.task(0, n, batch) for n, batch in enumerate(one + two)]
    with pytest.raises(CommitRejected, match=r"keys of the columns other and id"):
        life.commit(0, messages)


def test_records_without_a_key_are_refused_unless_an_option_names_it(tmp_path):
    _, value = event({"id": 1}, 1)
    life = TopicLife(tmp_path)
    with pytest.raises(SchemaError, match=r"the records of topic 'a' have no keys with names"):
        life.run(a=[(b"5", value)])
    life = TopicLife(tmp_path, keyColumns="id")
    life.run(a=[(b"5", value)])
    assert life.rows("lake.a") == [(1,)]


def into_letters(place):
    return {"deadLetters.format": "krishiv-parquet", "deadLetters.path": str(place / "dead")}


def test_bad_records_of_each_topic_become_dead_letters(tmp_path):
    life = TopicLife(tmp_path, **into_letters(tmp_path))
    bad = (b'{"id": 3}', b'{"op": ')
    life.run(a=[event({"id": 1}, 1)], b=[event({"id": 2}, 1), bad])
    life.run(together=True, a=[bad, event({"id": 4}, 1)], b=[bad, bad, event({"id": 5}, 1)])
    life.run(a=[bad])  # no table has rows of it
    life.run(b=[event({"id": 6}, 1)])
    assert (life.rows("lake.a"), life.rows("lake.b")) == ([(1,), (4,)], [(2,), (5,), (6,)])
    letters = pq.read_table(tmp_path / "dead").to_pylist()
    assert sorted(letter["topic"] for letter in letters) == ["a", "a", "b", "b", "b"]
    catalog_of(tmp_path / "warehouse").drop_table("lake.a")
    with pytest.raises(
        OptionError, match=r"topic 'a'; it has rows up to epoch 1: .*no table lake.a"
    ):
        life.run(a=[event({"id": 7}, 1)])


def test_records_are_decoded_once_also_with_dead_letters(tmp_path, monkeypatch):
    counts = []
    find_columns = DebeziumDecoder.find_columns

    def count(decoder, values):
        counts.append(len(values))
        return find_columns(decoder, values)

    monkeypatch.setattr(DebeziumDecoder, "find_columns", count)
    life = TopicLife(tmp_path, **into_letters(tmp_path))
    rows = [event({"id": n}, n) for n in range(3)]
    life.run(together=True, a=[rows[0], (b'{"id": 9}', b"{"), rows[1]], b=[rows[2]])
    assert (life.rows("lake.a"), life.rows("lake.b")) == ([(0,), (1,)], [(2,)])
    assert sum(counts) == 4


def adopt(life, *more):
    pairs = [word for key, text in life.given.items() for word in ("-o", f"{key}={text}")]
    where = ["--format", "iceberg", "--checkpoint", str(life.checkpoint), *pairs[2:]]
    open_log.cache_clear()
    found = CliRunner().invoke(main, ["log", "adopt", *more, *where])
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("lake.${topic}", "lake.shop_public_Order-s"),
        ("${topic.1}_${topic.2}.x_${topic.last}", "shop_public.x_Order-s"),
        ("${topic.3}", "Order-s"),
    ],
)
def test_a_name_is_made_of_parts_of_the_topic(pattern, name):
    check_pattern(pattern)
    assert name_by_topic(pattern, "shop.public.Order-s") == name


@pytest.mark.parametrize(
    ("pattern", "topic", "match"),
    [
        ("lake.${topic.4}", "a.b.c", "its name has no part 4. Leave"),
        ("lake.${topic.2}", "a..c", "its name has no part 2. Leave"),
        ("lake.${topic.last}", "a.", "its name has no last part. Leave"),
    ],
)
def test_a_topic_without_that_part_has_no_table(tmp_path, pattern, topic, match):
    life = TopicLife(tmp_path, table=pattern)
    with pytest.raises(OptionError, match=match):
        life.run(**{topic.replace(".", "__"): [event({"id": 1}, 1)]})


@pytest.mark.parametrize(
    "pattern",
    [
        "lake.${topics}",
        "lake.${topic.0}",
        "lake.${topic.-1}",
        "lake.${id}",
        "${topic",
        "a.${${topic}}",
    ],
)
def test_other_expressions_are_refused(pattern):
    with pytest.raises(OptionError, match=r"write \$\{topic\} \(the whole name"):
        sink_of(table=pattern)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"location": "/x"}, r"'location' contradicts 'table' = 'lake.\${topic.last}'"),
        ({"txnAppId": "x", "txnVersion": "1"}, "'txnAppId' contradicts 'table'"),
        ({"queryId": "x"}, "'queryId' contradicts 'table'"),
    ],
)
def test_options_of_one_table_are_refused(options, match):
    with pytest.raises(OptionError, match=match):
        sink_of(**options)


def sink_of(**options):
    given = {"warehouse": "/w", "table": "lake.${topic.last}", **options}
    return find_format("krishiv-iceberg").open_sink(given)


def test_a_source_names_one_table():
    options = find_format("krishiv-iceberg").reader_type.options_type
    with pytest.raises(OptionError, match=r"as a name by topic, which is for writes"):
        options.parse({"warehouse": "/w", "table": "lake.${topic.last}"}, "krishiv-iceberg")


@pytest.mark.parametrize(
    ("schema", "streaming", "mode", "match"),
    [
        (ROWS, False, OutputMode.APPEND, "is for streams"),
        (ROWS, True, OutputMode.REPLACE, "needs the output mode append"),
        (ROWS.remove(2), True, OutputMode.APPEND, "needs a column 'topic' STRING"),
    ],
)
def test_other_writes_are_refused_before_a_row_moves(schema, streaming, mode, match):
    kind, options = sink_of()
    with pytest.raises((OptionError, SchemaError), match=match):
        kind(options, schema, mode, streaming=streaming).check()


@LONG  # the registry's client is imported
def test_records_in_avro_name_the_key_by_the_schema_of_their_keys(tmp_path):
    with running_schema_server() as server:
        keys = server.register(make_row({"order": "int", "line": "int"}, "Key"))
        values = server.register(make_envelope({"order": "int", "line": "int", "n": "int"}))

        def write(line, n):
            row = {"order": 1, "line": line}
            envelope = make_event("c", None, {**row, "n": n})
            return server.write(keys, row), server.write(values, envelope)

        life = TopicLife(tmp_path, **{"registry.url": server.url})
        life.run(shop__lines=[write(1, 5), write(2, 6)])
        life.run(shop__lines=[write(2, 7)])
    assert life.rows("lake.lines") == [(1, 1, 5), (1, 2, 7)]


def test_intents_and_names_of_routes_have_their_permanent_form():
    """Logs and tables contain them."""
    route = "teaa67cde70a0b74913e4"
    assert route_of_topic("shop.public.orders") == route
    table = {"topic": "shop.public.orders", "keys": ["id"]}
    known = {"shop.public.orders": {"target": "Iceberg table 1-2", "epoch": 7}}
    written = {"parts": {route: [{"table": "1-2"}]}, "tables": {route: table}}
    written["known"] = {"tables": known, "is_whole": True}
    assert StagedTopics.model_validate(written).model_dump(mode="json") == written


@LONG  # histories have tests of their own
def test_a_history_is_kept_for_each_topic(tmp_path):
    schema = RECORDS.append(pa.field("timestamp", pa.timestamp("us", "UTC")))
    options = {"mode": "scd2", "changeFormat": "debezium", "tableSchema": "id INT, name STRING"}
    life = TopicLife(tmp_path, schema, **options)
    for number, name in enumerate("xyz"):
        rows = {
            topic: [{**record(event({"id": 1, "name": name}, number)), "offset": number}]
            for topic in ("a", "b")[: 1 + number % 2]
        }
        life.run(**rows)
    for table, names in (("lake.a", ["x", "y", "z"]), ("lake.b", ["y"])):
        found = life.table(table).scan().to_arrow().to_pylist()
        assert sorted(row["name"] for row in found) == names
        assert [row["name"] for row in found if row["is_current"]] == names[-1:]


def record(pair):
    return {"key": pair[0], "value": pair[1], "partition": 0, "timestamp": 0}


def test_a_start_is_checked_without_an_effect(tmp_path):
    life = TopicLife(tmp_path)

    def check_start():
        checkpoint = SparkCheckpoint(str(life.checkpoint))
        open_log.cache_clear()
        StreamWrite(life._make(), "q1", checkpoint).check_start()
        StreamWrite(life._make(), None, checkpoint).check_start()

    check_start()
    assert not (tmp_path / "warehouse").exists()
    life.run(a=[event({"id": 1}, 1)])
    check_start()
    other = TopicLife(tmp_path, table="other.${topic.last}", first=1)
    with pytest.raises(PlanningFailed, match=r"were written to tables by topic .*lake"):
        other.run(a=[event({"id": 1}, 1)])
    assert inspect_table(life.given, "q1") is None
    assert life.names() == ["lake.a"]


@pytest.mark.long
def test_a_fan_out_has_tables_by_topic_beside_an_archive(tmp_path):
    """As a route, the tables share the epoch log of the whole."""
    life = TopicLife(tmp_path)
    given = {f"route.mirror.{key}": text for key, text in life.given.items() if key[0] != "c"}
    given |= {"route.mirror.changeFormat": "debezium", "route.mirror.format": "krishiv-iceberg"}
    given |= {"route.raw.format": "krishiv-parquet", "route.raw.path": str(tmp_path / "raw")}
    given["checkpointLocation"] = life.given["checkpointLocation"]
    kind, options = find_format("krishiv-fanout").open_sink(given)
    columns = pa.schema([(name, pa.struct(list(RECORDS))) for name in ("mirror", "raw")])
    life._make = lambda: kind(options, columns, OutputMode.APPEND)
    for number, topics in enumerate([("a", "b"), ("c",), ("a",)]):
        rows = {topic: [event({"id": number}, number)] for topic in topics}
        batches = [batch.to_struct_array() for batch in life.batches(number, rows)]
        life.start()
        routed = [pa.record_batch([one, one], schema=columns) for one in batches]
        life.commit(number, [life.task(number, n, each) for n, each in enumerate(routed)])
        (life.checkpoint / "commits" / str(number)).write_text("v1\n{}")
        life.next += 1
    assert life.rows("lake.a") == [(0,), (2,)]
    assert (life.rows("lake.b"), life.rows("lake.c")) == ([(0,)], [(1,)])
    assert pq.read_table(tmp_path / "raw").num_rows == 4
