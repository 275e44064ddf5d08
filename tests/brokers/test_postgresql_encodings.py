"""Texts of PostgreSQL where neither the database nor the client's encoding is UTF8."""

import contextlib
import shutil
from dataclasses import dataclass

import psycopg
import pyarrow as pa
import pytest
from pg_onlooker import Database
from pg_pool import open_pooled
from postgres import PASSWORD, USER

from krishiv_spark.errors import StorageError
from krishiv_spark.postgresql.connection import open_transaction
from krishiv_spark.postgresql.names import quote_text
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.logged_writer import LogView
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.table_route import PostgresqlRoute
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter
from krishiv_spark.sources.postgresql.options import PostgresqlSourceOptions
from krishiv_spark.sources.postgresql.reader import PostgresqlReader

pytestmark = pytest.mark.long  # servers with databases of other encodings

QUERY = "8503b910-b624-45a4-85db-fcb79eac7740"
FORMAT = "krishiv-postgresql"
TABLE = '"commandé"'
ROWS = pa.table({"id": [1, 2], "prénom": ["é", None], "mots": [["ü", "\\"], []]})
WANTED = [(1, "é", ["ü", "\\"]), (2, None, [])]


@dataclass(frozen=True)
class Place:
    """A database, as the package and as an onlooker with UTF8 reach it."""

    database: Database
    name: str
    url: str

    def options(self, **more):
        return {"url": self.url, "password": PASSWORD, "table": TABLE, **more}

    def run(self, statement):
        with psycopg.connect(
            self.database.url.replace("/postgres", f"/{self.name}"),
            password=PASSWORD,
            autocommit=True,
            client_encoding="UTF8",
        ) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []


def create_latin(database):
    database.run("DROP DATABASE IF EXISTS latin WITH (FORCE)")
    database.run(
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    return "latin"


def create_plain(database, encoding="UTF8"):
    database.run("DROP DATABASE IF EXISTS plain WITH (FORCE)")
    database.run(
        f"CREATE DATABASE plain ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' "
        "TEMPLATE template0"
    )
    return "plain"


@pytest.fixture(params=["database", "bytes", "role", "variable", "setting", "pool"])
def place(request, server, monkeypatch):
    """Each way by which the encoding of a client is not UTF8."""
    database, way = server.database, request.param
    with contextlib.ExitStack() as stack:
        if way == "database":
            name = create_latin(database)
        else:
            name = create_plain(database, "SQL_ASCII" if way == "bytes" else "UTF8")
        url = database.url.replace("/postgres", f"/{name}")
        if way in {"role", "pool"}:
            database.run(f"ALTER ROLE {USER} SET client_encoding = 'LATIN1'")
            stack.callback(database.run, f"ALTER ROLE {USER} RESET client_encoding")
        if way == "variable":
            monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
        if way == "setting":
            url += "?client_encoding=LATIN1"
        if way == "pool":
            program = shutil.which("pgbouncer")
            if program is None:
                pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
            url = stack.enter_context(open_pooled(program, database, name))
        yield Place(database, name, url)


def make_writer(place, schema, **options):
    given = PostgresqlSinkOptions.parse(place.options(**options), FORMAT)
    return PostgresqlWriter(given, schema, OutputMode.APPEND)


def stage(writer, rows, epoch=0):
    writer.check()
    task = Task(QUERY, epoch, 0, attempt=0)
    return writer.stage(iter(rows.to_batches()), task, writer.plan(None))


def write(place, rows, epoch=0, **options):
    writer = make_writer(place, rows.schema, **options)
    writer.committer().publish(Epoch(QUERY, epoch), [stage(writer, rows, epoch)])


def write_by_fan_out(place, rows):
    given = PostgresqlSinkOptions.parse(place.options(), FORMAT)
    route = PostgresqlRoute(given, rows.schema, OutputMode.APPEND)
    route.check()
    task = Task(QUERY, 0, 0, attempt=0, generation=1)
    staged = [route.stage(iter(rows.to_batches()), task, route.plan(None))]
    part, epoch = route.participant(LogView(lambda query: query)), Epoch(QUERY, 0, generation=1)
    part.finish(epoch, part.prepare(epoch, staged, ()))


def read(place):
    options = PostgresqlSourceOptions.parse(place.options(), FORMAT)
    reader = PostgresqlReader(options, None, streaming=False)
    tasks = reader.plan(reader.initial(), reader.latest(reader.initial(), None))
    return pa.Table.from_batches([b for task in tasks for b in reader.read(task)])


@pytest.mark.parametrize("way", ["append", "upsert", "fan-out"])
def test_texts_are_stored_as_they_are(place, way):
    if way == "fan-out":
        write_by_fan_out(place, ROWS)
    else:
        keyed = {"mode": "upsert", "keyColumns": "id"} if way == "upsert" else {}
        write(place, ROWS, **keyed)
        if keyed:
            write(place, ROWS, 1, **keyed)
    assert place.run(f"SELECT * FROM {TABLE} ORDER BY id") == WANTED
    assert read(place).sort_by("id").equals(ROWS)


def test_a_text_that_the_database_cannot_store_is_an_error_that_names_the_column(server):
    name = create_latin(server.database)
    place = Place(server.database, name, server.database.url.replace("/postgres", f"/{name}"))
    write(place, ROWS)
    for rows in (
        pa.table({"id": [3], "prénom": ["日"], "mots": pa.array([None], pa.list_(pa.string()))}),
        pa.table({"id": [3], "prénom": ["a"], "mots": [["日"]]}),
    ):
        column = "prénom" if rows["prénom"][0].as_py() == "日" else "mots"
        with pytest.raises(StorageError, match=rf"0xe6 0x97 0xa5.*column {column}.*ENCODING"):
            write(place, rows, 1)
    assert place.run(f"SELECT * FROM {TABLE} ORDER BY id") == WANTED


def test_literals_keep_their_backslashes_where_a_database_reads_them_as_escapes(server):
    name = create_plain(server.database)
    server.database.run(f"ALTER DATABASE {name} SET standard_conforming_strings = off")
    place = Place(server.database, name, server.database.url.replace("/postgres", f"/{name}"))
    given = PostgresqlSinkOptions.parse(place.options(), FORMAT)
    text = "a\\nb"
    for reads in (False, True):
        with open_transaction(given, "read a literal", reads=reads) as transaction:
            assert transaction.first(f"SELECT {quote_text(text)}") == (text,)
