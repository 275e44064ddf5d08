"""``krishiv-postgresql`` as a sink, under the kit; plain psycopg reads what is in the table."""

from dataclasses import replace

import pytest
from database_life import COLUMNS, make_change_rows
from keyed_rows import KEYED_ROWS
from pg_onlooker import make_sink

from krishiv_spark.formats import PostgresqlDataSource
from krishiv_spark.testing import SinkConformance
from krishiv_spark.testing.processes.write_roles import in_foreach_batch


# Their processes sleep while they lock a mark, and each driver after them waits for it.
@pytest.mark.long_cases(
    "test_an_unknown_outcome_is_looked_up",
    "test_a_stale_driver_cannot_publish",
    "test_a_stale_driver_finds_the_commit_of_a_dead_one",
    "test_a_rolled_back_checkpoint_is_refused",
    "test_death_while_recovering",
    "test_lost_attempts_are_swept",
    "test_nothing_stays_staged",
    "test_values_are_kept",
)
@pytest.mark.core_cases
class TestPostgresqlSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _database(self, database):
        self.database = database

    def sink(self, folder):
        return make_sink(self.database, folder)


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


@pytest.mark.variant  # the same marks, with events of Debezium
class TestPostgresqlMirrors(TestPostgresqlSink):
    random_sequences = 10

    def sink(self, folder):
        made = super().sink(folder)
        keyed = {"mode": "upsert", "keyColumns": "id", "changeFormat": "debezium"}
        options = {**made.options, **keyed, "tableSchema": COLUMNS}
        return replace(made, options=options, special_doubles=False, **make_change_rows())
