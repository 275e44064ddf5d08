"""Tables of MariaDB, their mirrors and histories through Debezium and Kafka; Connect is killed."""

import random
from pathlib import Path

import pytest
from changing_tables import MARKED
from debezium_messages import await_key, await_streamed_offset
from drivers import Driver
from mariadb import DATABASE, has_mariadb, open_mariadb
from mariadb_rows import TABLES, make_rows, make_transactions, read_rows
from mirrors import assert_mirror_equals, history_name, make_job
from table_histories import assert_current_equals

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.dev import open_cluster
from servers.debezium import mariadb_source, running_debezium

TRANSACTIONS = 400

pytestmark = [
    pytest.mark.crash,
    pytest.mark.long,  # starts four systems
    pytest.mark.timeout(2400),
]


@pytest.fixture
def server():
    if not has_mariadb():
        pytest.skip("MariaDB is not installed (Debian: mariadb-server-core, mariadb-client-core)")
    try:
        mariadb_source("", "").bring_jars()
    except KrishivError as error:
        pytest.skip(f"Debezium: {str(error).splitlines()[0]}")
    with open_mariadb() as found:
        yield found


def test_mirrors_equal_their_database(server, tmp_path):
    for table in TABLES:
        server.execute(table.create_statement())
    server.execute("\n".join(make_rows(1, range(0, 120, 2))))
    topics = {table.name: f"srv.{DATABASE}.{table.name}" for table in TABLES}
    with open_cluster(ours=True) as cluster:
        change(server, cluster.bootstrap, topics, tmp_path)
        job = make_job(cluster.bootstrap, tmp_path, TABLES, topics, TABLES)
        Path(job["drained"]).touch()
        with Driver("mirror_copy.py", job) as driver:
            driver.wait_for("DONE")
    for table in TABLES:
        rows, warehouse = read_rows(server, table), tmp_path / "warehouse"
        assert_mirror_equals(warehouse, table, rows)
        assert_current_equals(warehouse, history_name(table), table, rows, "binlog")


def change(server, bootstrap: str, topics: dict[str, str], folder: Path) -> None:
    """Change rows after the snapshot, and wait until the topics have all changes."""
    source = mariadb_source(server.uri, bootstrap)
    connect = folder / "connect"
    connect.mkdir()
    transactions = list(make_transactions(random.randrange(2**32), TRANSACTIONS))
    with running_debezium(connect, bootstrap, source) as worker:
        for table in TABLES:
            await_key(bootstrap, topics[table.name], table.key_columns(0))
        server.execute("\n".join(transactions[::2]))
        await_streamed_offset(bootstrap)
        worker.restart()
        server.execute("\n".join([*transactions[1::2], *make_rows(2, range(MARKED, MARKED + 1))]))
        for table in TABLES:
            await_key(bootstrap, topics[table.name], table.key_columns(MARKED))
