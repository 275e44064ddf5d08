"""Tables that the PostgreSQL sink refuses or treats with care: partitions, children, domains."""

import re
import time
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from krishiv_spark.errors import CommitRejected, OptionError, SchemaError
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.logged_writer import LogView
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.table_route import PostgresqlRoute
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter

pytestmark = pytest.mark.long  # a server

QUERY = "8503b910-b624-45a4-85db-fcb79eac7740"
FORMAT = "krishiv-postgresql"
ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})
KEYED = {"mode": "upsert", "keyColumns": "id"}


def make_writer(database, schema=ROWS.schema, *, kind=PostgresqlWriter, **options):
    output = options.pop("output", OutputMode.APPEND)
    streaming = options.pop("streaming", True)
    given = database.options(**{"table": "orders", "lockTimeout": "500 ms", **options})
    parsed = PostgresqlSinkOptions.parse(given, FORMAT)
    return kind(parsed, schema, output, streaming=streaming)


FIRST = Task(QUERY, 0, 0, attempt=0)


def stage(writer, rows, task=FIRST):
    writer.check()
    return writer.stage(iter(rows.to_batches()), task, writer.plan(None))


def write(database, rows, epoch=0, **options):
    writer = make_writer(database, rows.schema, **options)
    staged = stage(writer, rows, Task(QUERY, epoch, 0, attempt=0))
    writer.committer().publish(Epoch(QUERY, epoch), [staged])


def refuse(database, message, error=OptionError, schema=ROWS.schema, **options):
    for check in ("check", "check_start"):
        with pytest.raises(error, match=message):
            getattr(make_writer(database, schema, **options), check)()


# --- names of staging tables

LARGE = 20240131235959123


def test_a_staging_table_of_a_large_number_outlives_the_sweep_of_another_query(database):
    writer = make_writer(database)
    staged = stage(writer, ROWS, Task("app", LARGE, 12, attempt=0))
    write(database, ROWS)  # another query, which sweeps
    writer.committer().publish(Epoch("app", LARGE), [staged])
    assert database.run("SELECT count(*) FROM orders") == [(4,)]


@pytest.mark.parametrize("number", [0, LARGE, 2**63 - 1])
@pytest.mark.parametrize("partition", [0, 12, 2**31 - 1])
def test_the_names_of_staging_tables_are_whole(database, number, partition):
    names = set()
    for kind in (PostgresqlWriter, PostgresqlRoute):
        generation = None if kind is PostgresqlWriter else number
        writer = make_writer(database, kind=kind)
        task = Task("app", number, partition, attempt=0, generation=generation)
        made = [stage(writer, ROWS, replace(task, nonce=f"{n:012x}")) for n in (16**10, 2 * 16**10)]
        names |= {each.name if generation is not None else each.name.name for each in made}
    found = database.run("SELECT relname FROM pg_class WHERE relname LIKE 'krishiv_%\\_%\\_%'")
    assert {name for (name,) in found if name.count("_") > 2} == names
    assert len(names) == 4
    assert all(int(name.split("_")[3]) == number for name in names)
    now = time.time()
    assert all(now - 60 <= int(name.rpartition("_")[2], 16) <= now for name in names)


def test_a_name_of_an_earlier_version_that_was_cut_is_not_taken_for_an_old_one(database):
    old = f"krishiv_s_da05d34c7951_0_0_8ff70cfa1cc2_{int(time.time()) - 200_000:x}"
    cut = f"krishiv_s_da05d34c7951_{LARGE}_12_8ff70cfa1cc2_{int(time.time()):x}"[:63]
    for name in (old, cut):
        database.run(f"CREATE TABLE {name} (id bigint)")
    write(database, ROWS)
    left = database.run("SELECT relname FROM pg_class WHERE relname LIKE 'krishiv_s_%'")
    assert left == [(cut,)]


# --- partitions

PARTED = """
CREATE TABLE orders (id bigint, name text) PARTITION BY LIST (id);
CREATE TABLE first PARTITION OF orders FOR VALUES IN (1);
"""
FOREIGN = """
CREATE EXTENSION IF NOT EXISTS postgres_fdw WITH SCHEMA pg_catalog;
DROP SERVER IF EXISTS nowhere CASCADE;
CREATE SERVER nowhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1');
CREATE TABLE middle PARTITION OF orders FOR VALUES IN (2, 3) PARTITION BY LIST (id);
CREATE FOREIGN TABLE far PARTITION OF middle FOR VALUES IN (2) SERVER nowhere;
"""


def test_a_table_with_a_foreign_partition_is_refused(database):
    database.run(PARTED + FOREIGN)
    refuse(database, r"orders has the partition far, a foreign table, whose rows")


def test_a_foreign_partition_that_is_attached_before_the_commit_is_refused(database):
    database.run(PARTED)
    writer = make_writer(database)
    staged = stage(writer, ROWS.slice(0, 1))
    database.run(FOREIGN)
    with pytest.raises(CommitRejected, match=r"has got the partition far, a foreign table"):
        writer.committer().publish(Epoch(QUERY, 0), [staged])
    assert database.run("SELECT * FROM first") == []


REFERRED = """
CREATE TABLE orders (part int, id bigint, name text, PRIMARY KEY (part, id), UNIQUE (part, name))
    PARTITION BY LIST (part);
CREATE TABLE first PARTITION OF orders FOR VALUES IN (1);
CREATE TABLE parts (part int, o bigint,
                    FOREIGN KEY (part, o) REFERENCES first (part, id) ON DELETE CASCADE);
INSERT INTO orders VALUES (1, 1, 'a'), (1, 2, 'b');
INSERT INTO parts VALUES (1, 1), (1, 2);
"""


def test_rows_to_which_others_refer_by_a_partition_are_not_written_again(database):
    database.run(REFERRED)
    rows = pa.table({"part": pa.array([1, 1], pa.int32()), "id": [1, 2], "name": ["b", "a"]})
    with pytest.raises(CommitRejected, match="duplicate key value violates unique constraint"):
        write(database, rows, mode="upsert", keyColumns="part,id")
    assert database.run("SELECT * FROM parts ORDER BY o") == [(1, 1), (1, 2)]
    database.run("DROP TABLE parts")
    write(database, rows, mode="upsert", keyColumns="part,id")
    assert database.run("SELECT name FROM orders ORDER BY id") == [("b",), ("a",)]


# --- tables that a crash of the server empties


@pytest.mark.parametrize("created", ["table", "partition"])
def test_an_unlogged_table_is_refused_unless_nobody_counts_on_its_epochs(database, created):
    if created == "table":
        database.run("CREATE UNLOGGED TABLE orders (id bigint, name text)")
        name = "orders"
    else:
        database.run(PARTED + "CREATE UNLOGGED TABLE other PARTITION OF orders FOR VALUES IN (2)")
        name = "other"
    message = f"{name} is UNLOGGED, .*ALTER TABLE {name} SET LOGGED"
    refuse(database, message)
    refuse(database, message, kind=PostgresqlRoute)
    make_writer(database, streaming=False).check()
    database.run(f"ALTER TABLE {name} SET LOGGED")
    make_writer(database).check()


def test_unlogged_marks_are_refused_since_epochs_would_be_repeated(database):
    write(database, ROWS)
    database.run("ALTER TABLE krishiv_epochs SET UNLOGGED")
    refuse(database, "krishiv_epochs is UNLOGGED, .*ALTER TABLE krishiv_epochs SET LOGGED")


# --- tables with children

CHILDREN = """
CREATE TABLE orders (id bigint PRIMARY KEY, name text);
CREATE TABLE special (note text) INHERITS (orders);
INSERT INTO special VALUES (1, 'old', 'n');
"""


def test_changes_of_a_table_with_children_are_refused(database):
    database.run(CHILDREN)
    message = r"orders has the child special, .*ALTER TABLE special NO INHERIT"
    refuse(database, message, **KEYED)
    refuse(database, message, output=OutputMode.REPLACE)
    refuse(database, message, output=OutputMode.REPLACE, kind=PostgresqlRoute, truncate="true")
    write(database, ROWS.slice(1))
    assert database.run("SELECT id FROM orders ORDER BY id") == [(1,), (2,)]
    writer = make_writer(database, **KEYED)
    with pytest.raises(OptionError, match=message):
        writer.plan(None)


# --- columns


def test_a_column_of_a_domain_over_numeric_keeps_its_domain(database):
    database.run("CREATE DOMAIN price AS numeric(5,2) CHECK (VALUE > 0)")
    database.run("CREATE TABLE orders (id price)")
    wide = pa.table({"id": pa.array([Decimal("123456.78")], pa.decimal128(12, 2))})
    with pytest.raises(CommitRejected, match="numeric field overflow"):
        write(database, wide, schemaEvolution="widen")
    finer = pa.schema([("id", pa.decimal128(12, 4))])
    refuse(database, "'id' is decimal.*is price", SchemaError, finer, schemaEvolution="widen")
    found = database.run(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'orders'::regclass AND attname = 'id'"
    )
    assert found == [("price",)]


@pytest.mark.parametrize("kind", [PostgresqlWriter, PostgresqlRoute])
@pytest.mark.parametrize(
    ("name", "exists"),
    [("_krishiv_row", True), ("_krishiv_delete", False), ("_KRISHIV_ROW", True)],
)
def test_a_column_with_a_name_of_the_sink_is_refused_in_each_mode(database, kind, name, exists):
    if exists:  # in lower case
        database.run(f"CREATE TABLE orders (id bigint, {name} bigint DEFAULT 7)")
    schema = pa.schema([("id", pa.int64()), (name, pa.int64())])
    shown = re.escape("'_krishiv_")
    refuse(
        database, f"(?i)column {shown}.*rename it", (OptionError, SchemaError), schema, kind=kind
    )


def test_a_fan_out_stores_each_column(database):
    route = make_writer(database, kind=PostgresqlRoute)
    staged = [stage(route, ROWS, Task(QUERY, 0, 0, attempt=0, generation=1))]
    part, epoch = route.participant(LogView(lambda query: query)), Epoch(QUERY, 0, generation=1)
    part.finish(epoch, part.prepare(epoch, staged, ()))
    assert database.run("SELECT * FROM orders ORDER BY id") == [(1, "a"), (2, "b")]


# --- rights


@pytest.mark.parametrize("lacks", [None, "SELECT", "UPDATE", "DELETE"])
def test_an_upsert_needs_these_rights_on_the_table(database, lacks):
    database.run("CREATE TABLE orders (id bigint PRIMARY KEY, name text)")
    database.run("DROP OWNED BY writer; DROP ROLE writer" if has_role(database) else "SELECT 1")
    rights = ", ".join({"SELECT", "INSERT", "UPDATE", "DELETE"} - {lacks})
    database.run("CREATE ROLE writer LOGIN PASSWORD 'w'")
    database.run(f"GRANT {rights} ON orders TO writer; GRANT ALL ON SCHEMA public TO writer")
    rows = pa.table({"op": ["u", "d"], "id": [1, 2], "name": ["a", None]})
    url = database.url.replace("krishiv@", "writer@")
    given = {**KEYED, "opColumn": "op", "url": url, "password": "w"}
    if lacks is None:
        write(database, rows, **given)
        assert database.run("SELECT * FROM orders") == [(1, "a")]
    else:
        with pytest.raises(CommitRejected, match="permission denied for table orders"):
            write(database, rows, **given)


def has_role(database):
    return bool(database.run("SELECT 1 FROM pg_roles WHERE rolname = 'writer'"))
