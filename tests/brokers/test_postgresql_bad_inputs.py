"""Mistakes of users of krishiv-postgresql: the first line states the fault and its correction."""

import re

import pyarrow as pa
import pytest
from postgres import USER

from krishiv_spark.errors import KrishivError
from krishiv_spark.formats import PostgresqlDataSource
from krishiv_spark.sinks.base import OutputMode, Task

ROWS = pa.table({"id": [1, 2], "name": ["a", "b"], "at": pa.array([0, 1], pa.timestamp("us"))})
KEYED = {"mode": "upsert", "keyColumns": "id"}
TABLE = "CREATE TABLE orders (id bigint, name text, at timestamp)"

CASES = {
    "address of JDBC": ({"url": "jdbc:postgresql://db1/shop"}, "", r"it is an address of JDBC"),
    "no address": ({"url": "db1:5432"}, "", r"'url' = 'db1:5432': write a URI, as 'postgresql:"),
    "no server there": (
        {"url": "postgresql://127.0.0.1:1/postgres"},
        "",
        r"cannot create or read table orders in 127.0.0.1:1/postgres: connection failed",
    ),
    "wrong password": ({"password": "hunter3-secret"}, "", r"Check the options 'user' and 'passw"),
    "database that does not exist": (
        {"url": "{server}/nowhere"},
        "",
        r'database "nowhere" does not exist. Check the database in the option \'url\'',
    ),
    "setting that libpq does not know": (
        {"libpq.sslmod": "require"},
        "",
        r'invalid connection option "sslmod"',
    ),
    "TLS that the server lacks": (
        {"libpq.sslmode": "require"},
        "",
        r"server does not support SSL, but SSL was required",
    ),
    "misspelt option": ({"tabel": "orders"}, "", r"unknown option 'tabel'; did you mean 'table'"),
    "table with three parts": ({"table": "shop.public.orders"}, "", r"the database is a part of t"),
    "name that is too long": ({"table": "t" * 64}, "", r"has 64 bytes, .* cuts names off after 63"),
    "schema that does not exist": (
        {"table": "nowhere.orders"},
        "",
        r'schema "nowhere" does not exist',
    ),
    "table that must not be created": (
        {"createTable": "never"},
        "",
        r"table orders does not exist, and 'createTable' is 'never'",
    ),
    "view": ({}, "CREATE VIEW orders AS SELECT 1 AS id", r"public.orders is a view: name a table"),
    "table of the sink itself": (
        {"table": "krishiv_epochs"},
        "",
        r"has the committed epochs: name",
    ),
    "column that the table lacks": (
        {},
        "CREATE TABLE orders (id bigint, nam text, at timestamp)",
        r"has no column 'name'; did you mean 'nam'",
    ),
    "type that does not fit": (
        {},
        "CREATE TABLE orders (id bigint, name integer, at timestamp)",
        r"column 'name' is string, and the table's column is integer",
    ),
    "time without a zone": (
        {},
        "CREATE TABLE orders (id bigint, name text, at timestamptz)",
        r"column 'at' is timestamp\[us\], and the table's column is timestamp with time zone",
    ),
    "column that must have a value": (
        {},
        "CREATE TABLE orders (id bigint, name text, at timestamp, paid boolean NOT NULL)",
        r"the rows have no column 'paid', which is NOT NULL without a default",
    ),
    "generated column": (
        {},
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, name text, at timestamp)",
        r"column 'id' of table public.orders is GENERATED ALWAYS",
    ),
    "upsert without a key": ({"mode": "upsert"}, "", r"'mode' = 'upsert' needs the option 'keyCol"),
    "key without a mode": ({"keyColumns": "id"}, "", r"require 'mode' = 'upsert'"),
    "key that the rows lack": (
        {**KEYED, "keyColumns": "key"},
        "",
        r"'keyColumns' names 'key', but",
    ),
    "key for which other texts are equal": (
        {**KEYED, "keyColumns": "name"},
        "CREATE TABLE orders (id bigint, name char(5) PRIMARY KEY, at timestamp)",
        r"'name', whose column in table public.orders has a type \(char\) that takes different",
    ),
    "operation as a key": ({**KEYED, "opColumn": "id"}, "", r"'opColumn' = 'id' is also in"),
    "rule on the table": (
        {},
        TABLE + "; CREATE RULE r AS ON INSERT TO orders DO INSTEAD NOTHING",
        r"table public.orders has a rule DO INSTEAD",
    ),
    "type that cuts off": (
        {},
        "CREATE TABLE orders (id bigint, name bit, at timestamp)",
        r"column 'name' is string, .* change the column's type",
    ),
    "key without an index": (KEYED, TABLE, r"no unique index on id, .* CREATE UNIQUE INDEX ON"),
    "no right to write": (
        {"user": "reader", "password": "reader"},
        TABLE + "; CREATE ROLE reader LOGIN PASSWORD 'reader'; "
        "GRANT USAGE ON SCHEMA public TO reader",
        r"permission denied for schema public. Grant the user this right",
    ),
}
"""Wrong options, statements that are run before, and the expected line."""


def write(given):
    kind, options = PostgresqlDataSource.open_sink(given)
    writer = kind(options, ROWS.schema, OutputMode.APPEND)
    writer.check()
    writer.stage(iter(ROWS.to_batches()), Task("q", 0, 0, 0), writer.plan(None))


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_the_first_line_states_it_and_no_row_moves(database, case):
    wrong, before, line = CASES[case]
    if before:
        with database.connect() as connection:
            connection.execute(before)
    here = f"postgresql://{USER}@127.0.0.1:{database.port}"
    given = {**database.options(table="orders"), **wrong}
    given["url"] = given["url"].replace("{server}", here)
    if "user" in wrong:
        given["url"] = given["url"].replace(f"{USER}@", "")
    if "tabel" in given:
        del given["table"]
    with pytest.raises(KrishivError) as found:
        write(given)
    first, *rest = str(found.value).splitlines()
    assert re.search(line, first), first
    assert rest == []
    assert not {"hunter3-secret", "hunter2-very-secret"} & set(re.findall(r"[\w-]+", first))
    count = database.run("SELECT sum(reltuples) FROM pg_class WHERE relname LIKE 'krishiv_%'")
    assert (count[0][0] or 0) <= 0
