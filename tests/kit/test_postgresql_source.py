"""``krishiv-postgresql`` as a source, under the kit: plain psycopg adds the rows."""

import pyarrow as pa
import pytest
from pg_onlooker import SEEN, Onlooker

from krishiv_spark.formats import PostgresqlDataSource
from krishiv_spark.testing import OUTSIDE, ROW_SCHEMA, SourceConformance, SourceUnderTest

TYPES = {
    pa.bool_(): "boolean",
    pa.int64(): "bigint",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.timestamp("us"): "timestamp",
    pa.date32(): "date",
    pa.binary(): "bytea",
}


def declared(kind):
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"{declared(kind.value_type)}[]"
    return TYPES[kind]


@pytest.mark.core_cases
class TestPostgresqlSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _database(self, database):
        self.database = database

    def source(self, folder):
        onlooker = Onlooker.of(self.database, folder)
        columns = ", ".join(f'"{field.name}" {declared(field.type)}' for field in ROW_SCHEMA)
        self.database.run(f"CREATE TABLE {onlooker.table} ({columns})")

        def add(rows):
            marks = ", ".join(["%s"] * len(ROW_SCHEMA))
            with self.database.connect(autocommit=False) as connection:
                insert = f"INSERT INTO {onlooker.table} VALUES ({marks})"
                connection.cursor().executemany(insert, rows)

        calls = ("psycopg:connect", "psycopg:Connection.execute")
        return SourceUnderTest(
            source=PostgresqlDataSource,
            options=self.database.options(table=onlooker.table),
            add=add,
            special_doubles=True,
            small_tasks={"partitionColumn": ROW_SCHEMA.names[0], "numPartitions": "3"},
            outside={**OUTSIDE, **{call: SEEN[call] for call in calls}},
        )
