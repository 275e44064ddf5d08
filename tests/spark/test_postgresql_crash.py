"""A stream into PostgreSQL; its driver, its Python workers and the server are killed."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from database_life import COLUMNS, Database, to_rows
from killers import Killer
from pg_server import open_killable
from postgres import require_programs
from tables import make_input

FILES, ROWS = 60, 50


@pytest.fixture
def server():
    with open_killable(require_programs()) as server:
        yield server


@pytest.fixture
def job(server, tmp_path: Path) -> dict[str, object]:
    return {
        "source": str(tmp_path / "in"),
        "table": "",
        "checkpoint": str(tmp_path / "checkpoint"),
        "format": "krishiv-postgresql",
        "sink_options": server.database.options(table="rows"),
        "conf": {"spark.master": "local[2,8]"},  # a task whose worker was killed is tried again
    }


@pytest.mark.crash
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("files", "kills"),
    [(FILES, 3), pytest.param(4 * FILES, 30, marks=pytest.mark.long)],  # the same, for longer
)
def test_kills_of_driver_workers_and_server_lose_and_repeat_nothing(server, job, files, kills):
    make_input(Path(job["source"]), files, ROWS)
    more = {"server": server.restart}
    Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 2.5), more=more).run(kills)
    total = files * ROWS
    ((rows, distinct, added),) = server.database.run(
        "SELECT count(*), count(DISTINCT id), sum(id) FROM rows"
    )
    assert (rows, distinct, added) == (total, total, total * (total - 1) // 2)


@pytest.mark.crash
@pytest.mark.timeout(2400)
@pytest.mark.long  # the same commits, of rows that events of Debezium change
def test_kills_leave_a_mirror_equal_to_the_database(server, job, tmp_path):
    life = Database(seed=11, moves=True, renames=True)
    while len(life.records) < FILES * ROWS:
        life.step()
    (tmp_path / "in").mkdir()
    for n in range(FILES):
        rows = to_rows(life.records[n * ROWS : (n + 1) * ROWS], n * ROWS)
        pq.write_table(rows, tmp_path / "in" / f"{n:04}.parquet")
    effects = [effect for each in life.effects[: FILES * ROWS] for effect in each.items()]
    keyed = {"mode": "upsert", "changeFormat": "debezium", "keyColumns": "id"}
    job["sink_options"] |= {**keyed, "tableSchema": COLUMNS}
    more = {"server": server.restart}
    Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 2.5), more=more).run(6)
    expected = dict(effects)
    found = {row[0]: row for row in server.database.run("SELECT id, n, text FROM rows")}
    assert found == {
        key: (key, row["n"], row["text"]) for key, row in expected.items() if isinstance(row, dict)
    }
