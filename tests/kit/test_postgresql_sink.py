"""``krishiv-postgresql`` as a sink, under the kit; plain psycopg reads what is in the table."""

from dataclasses import replace

import pytest
from keyed_rows import KEYED_ROWS
from pg_onlooker import SEEN, Onlooker

from krishiv_spark.formats import PostgresqlDataSource
from krishiv_spark.testing import OUTSIDE, SinkConformance, SinkUnderTest
from krishiv_spark.testing.processes.write_roles import in_foreach_batch


# Their processes sleep while they lock a mark, and each driver after them waits for it.
@pytest.mark.long_cases(
    "test_an_unknown_outcome_is_looked_up", "test_a_stale_driver_cannot_publish"
)
@pytest.mark.core_cases
class TestPostgresqlSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _database(self, database):
        self.database = database

    def sink(self, folder):
        onlooker = Onlooker.of(self.database, folder)
        return SinkUnderTest(
            source=PostgresqlDataSource,
            options=onlooker.options(),
            oracle=onlooker.rows,
            leftovers=onlooker.staged,
            backup=onlooker.back_up,
            special_doubles=True,
            outside={**OUTSIDE, **SEEN},
        )


@pytest.mark.variant  # the same epochs, as batch jobs with numbers
class TestPostgresqlSinkInForeachBatch(TestPostgresqlSink):
    random_sequences = 10

    def sink(self, folder):
        return replace(super().sink(folder), source=in_foreach_batch(PostgresqlDataSource))


@pytest.mark.variant  # the same marks, with changes of rows
class TestPostgresqlUpserts(TestPostgresqlSink):
    random_sequences = 20

    def sink(self, folder):
        made = super().sink(folder)
        keyed = {"mode": "upsert", "keyColumns": "id", "opColumn": "op", "orderColumn": "number"}

        def rows():
            return [{**row, "op": "u"} for row in made.oracle()]  # it is not in the table

        return replace(made, options={**made.options, **keyed}, oracle=rows, **KEYED_ROWS)
