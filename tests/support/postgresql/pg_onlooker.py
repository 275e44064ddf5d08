"""Tables of PostgreSQL in a schema for each sequence of the kit, read without the package."""

import hashlib
import subprocess
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from postgres import PASSWORD, USER, require_programs
from psycopg.rows import dict_row

from krishiv_spark.formats import PostgresqlDataSource
from krishiv_spark.testing import OUTSIDE, SinkUnderTest

SEEN = {
    "psycopg:connect": psycopg.OperationalError,
    "psycopg:Connection.execute": psycopg.OperationalError,
    "psycopg:Connection.commit": psycopg.OperationalError,
    "psycopg:Cursor.copy": psycopg.OperationalError,
    "psycopg:Copy.write": psycopg.OperationalError,
}
"""The calls of the driver that the kit makes fail."""

STAGED = ("krishiv_s_", "krishiv_l_")


@dataclass(frozen=True)
class Database:
    """A server on loopback.

    Attributes:
        port: Its port.
    """

    port: int

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def options(self, **more) -> dict[str, str]:
        return {"url": self.url, "password": PASSWORD, **more}

    def connect(self, *, autocommit=True, **more) -> psycopg.Connection:
        return psycopg.connect(self.url, password=PASSWORD, autocommit=autocommit, **more)

    def run(self, statement, values=None) -> list[tuple]:
        with self.connect() as connection:
            found = connection.execute(statement, values)
            return found.fetchall() if found.description else []


@dataclass(frozen=True)
class Onlooker:
    """A schema of its own, and what is visible in it."""

    database: Database
    schema: str

    @classmethod
    def of(cls, database: Database, folder) -> "Onlooker":
        schema = f"k{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
        with database.connect() as connection:
            connection.execute(
                f"SET client_min_messages = error; DROP SCHEMA IF EXISTS {schema} CASCADE"
            )
            connection.execute(f"CREATE SCHEMA {schema}")
        return cls(database, schema)

    @property
    def table(self) -> str:
        return f'{self.schema}."My ""Table"'

    def options(self, **more) -> dict[str, str]:
        return self.database.options(
            table=self.table, lockTimeout="500 ms", commitTimeout="1 s", **more
        )

    def rows(self) -> list[dict]:
        if self.database.run("SELECT to_regclass(%s)", [self.table]) == [(None,)]:
            return []
        with self.database.connect(row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {self.table}").fetchall()

    def staged(self) -> list[str]:
        found = self.database.run(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'",
            [self.schema],
        )
        return [name for (name,) in found if name.startswith(STAGED)]

    def back_up(self):
        """Copy the schema as an operator does, with pg_dump."""
        programs = require_programs()
        made = subprocess.run(
            [programs / "pg_dump", "-n", self.schema, self.database.url],
            env={"PGPASSWORD": PASSWORD},
            capture_output=True,
            check=True,
        )

        def restore() -> None:
            self.database.run(f"DROP SCHEMA {self.schema} CASCADE")
            subprocess.run(
                [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", self.database.url],
                env={"PGPASSWORD": PASSWORD},
                input=made.stdout,
                capture_output=True,
                check=True,
            )

        return restore


def make_sink(database: Database, folder) -> SinkUnderTest:
    """The sink, into a new schema."""
    onlooker = Onlooker.of(database, folder)
    return SinkUnderTest(
        source=PostgresqlDataSource,
        options=onlooker.options(),
        oracle=onlooker.rows,
        leftovers=onlooker.staged,
        backup=onlooker.back_up,
        special_doubles=True,
        outside={**OUTSIDE, **SEEN},
    )


class RowsOfPostgresql:
    """A side of a fan-out whose rows are in a table of PostgreSQL."""

    kind, sweeps = pa.struct([("id", pa.int64()), ("text", pa.string())]), True
    backup = None  # of one of the two targets is enough

    def __init__(self, folder, database: Database) -> None:
        self.onlooker = Onlooker.of(database, folder)
        self.options = {"format": "krishiv-postgresql", **self.onlooker.options()}

    @staticmethod  # it travels to other processes
    def row(number):
        return {"id": number, "text": f"rów {number}"}

    def seen(self):
        return [row["id"] for row in self.onlooker.rows()]

    def waiting(self):
        return self.onlooker.staged()
