"""Tables of PostgreSQL, mirrored from events in Avro whose schemas are in a registry."""

import io
import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import fastavro
import pytest
from changing_rows import SERVER_SETTINGS, Workload, connect, read_rows
from changing_tables import MARKED, TABLES
from debezium_messages import await_key, await_streamed_offset, topic_of
from drivers import Driver
from mirrors import assert_mirror_equals, make_job
from postgres import open_postgres, require_programs
from registries import registry  # noqa: F401  a fixture

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.dev import open_cluster
from servers.debezium import postgres_source, running_debezium

TRANSACTIONS = 300
CREATED = [table for table in TABLES if "numeric" not in table.columns.values()]
"""Tables that get the columns of their declared mirrors from the events, too."""
LINES, THINGS = (table for table in CREATED if table.name in ("lines", "things"))

pytestmark = [
    pytest.mark.crash,
    pytest.mark.long,  # starts five systems
    pytest.mark.timeout(2400),
]


@pytest.fixture
def uri():
    programs = require_programs()
    try:
        postgres_source("").bring_jars(avro=True)
    except KrishivError as error:
        pytest.skip(f"Debezium: {str(error).splitlines()[0]}")
    with open_postgres(programs, **SERVER_SETTINGS) as found:
        yield found


def test_mirrors_of_events_in_avro_equal_their_database(uri, registry, tmp_path):  # noqa: F811
    workload = Workload(uri, random.randrange(2**32))
    workload.prepare()
    topics = {table.name: topic_of(table) for table in TABLES}
    with open_cluster(ours=True) as cluster:
        change(workload, uri, registry, cluster.bootstrap, tmp_path)
        job = make_job(cluster.bootstrap, tmp_path, TABLES, topics)
        for mirror in job["mirrors"]:
            # The schema of each event contains the units.
            mirror["options"].pop("timeUnits", None)
            mirror["options"]["registry.url"] = registry.url
        run(job)
        created = make_job(cluster.bootstrap, tmp_path / "created", CREATED, topics)
        for mirror in created["mirrors"]:
            more = {"schemaEvolution": "widen", "truncateEvents": "apply"}
            mirror["options"] |= {"registry.url": registry.url, **more}
            del mirror["options"]["tableSchema"]
            mirror["options"].pop("timeUnits", None)
        run(created)
        for table in TABLES:
            assert_mirror_equals(tmp_path / "warehouse", table, read_rows(table, uri))
        for table in CREATED:
            assert_mirror_equals(tmp_path / "created/warehouse", table, read_rows(table, uri))
        alter(uri, cluster.bootstrap, make_key_reader(registry), tmp_path / "connect", registry)
        run(created)
    lines = replace(LINES, columns={**LINES.columns, "small": "bigint", "more": "text"})
    for table in (lines, THINGS):
        assert_mirror_equals(tmp_path / "created/warehouse", table, read_rows(table, uri))


def run(job):
    Path(job["drained"]).parent.mkdir(exist_ok=True)
    Path(job["drained"]).touch()
    with Driver("mirror_copy.py", job) as driver:
        driver.wait_for("DONE")


def make_source(uri):
    """Return a connector that sends the event of a TRUNCATE, too."""
    source = postgres_source(uri)
    return replace(source, settings={**source.settings, "skipped.operations": "none"})


def alter(uri, bootstrap, read, folder, registry):  # noqa: F811
    """Change the columns of a table, and truncate another one; change rows before and after."""
    lines, things = LINES.name, THINGS.name
    with running_debezium(folder, bootstrap, make_source(uri), registry=registry.url):
        with connect(uri) as connection, connection.cursor() as cursor:
            for statement in (
                f"UPDATE {lines} SET small = 1 WHERE number % 3 = 0",
                f"ALTER TABLE {lines} ADD COLUMN more text, ALTER COLUMN small TYPE bigint",
                f"UPDATE {lines} SET small = number + 10000000000, more = number::text",
                f"UPDATE {lines} SET more = 'the last' WHERE number = {MARKED}",
                f"UPDATE {things} SET raw = 'before'",
                f"TRUNCATE {things}",
                f"INSERT INTO {things} (id, raw) VALUES (1, 'after'), ({MARKED}, 'after')",
            ):
                cursor.execute(statement)
                connection.commit()
        for table in (LINES, THINGS):
            await_key(bootstrap, topic_of(table), table.key_columns(MARKED), read, count=5)


def change(workload, uri, registry, bootstrap: str, folder: Path) -> None:  # noqa: F811
    """Change rows after the snapshot, and wait until the topics have all changes."""
    connect_folder = folder / "connect"
    connect_folder.mkdir()
    read = make_key_reader(registry)
    source = make_source(uri)
    with running_debezium(connect_folder, bootstrap, source, registry=registry.url) as worker:
        for table in TABLES:
            await_key(bootstrap, topic_of(table), table.key_columns(0), read)
        count = iter(range(TRANSACTIONS))
        workload.run(lambda: next(count, None) is None, pause=0.001)
        await_streamed_offset(bootstrap)
        worker.restart()
        with connect(uri) as connection, connection.cursor() as cursor:
            for table in TABLES:
                column = next(iter(table.columns))
                cursor.execute(f"UPDATE {table.name} SET {column} = NULL")
                # The rows of a statement are in no order: the last event is that of another one.
                keys = (f"{name} = CAST(%s AS {sql})" for name, sql in table.keys.items())
                change = f"UPDATE {table.name} SET {column} = NULL WHERE {' AND '.join(keys)}"
                cursor.execute(change, table.key(MARKED))
            connection.commit()
        for table in TABLES:
            await_key(bootstrap, topic_of(table), table.key_columns(MARKED), read, count=3)


def make_key_reader(registry):  # noqa: F811
    """Return a reader of keys in Avro that does not use the package."""

    @cache
    def find(schema_id):
        return fastavro.parse_schema(json.loads(registry.client.get_schema(schema_id).schema_str))

    def read(key):
        schema = find(int.from_bytes(key[1:5], "big"))
        return fastavro.schemaless_reader(io.BytesIO(key[5:]), schema)

    return read
