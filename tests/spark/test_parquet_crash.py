"""A stream from Parquet to Parquet; its driver and its Python workers are killed."""

from pathlib import Path

import pytest
from killers import Killer
from lookers import DiskLooker
from tables import look, make_input

FILES, ROWS = 90, 50


@pytest.fixture
def job(tmp_path: Path) -> dict[str, object]:
    return {
        "source": str(tmp_path / "in"),
        "table": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "conf": {"spark.master": "local[2,8]"},  # a task whose worker was killed is tried again
    }


@pytest.mark.core
@pytest.mark.crash
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("files", "kills"),
    [(FILES, 4), pytest.param(3 * FILES, 16, marks=pytest.mark.long)],  # the same, for longer
)
def test_kills_of_driver_and_workers_lose_and_repeat_nothing(job, files: int, kills: int) -> None:
    kill_again_and_again(job, files, kills)


@pytest.mark.soak
def test_hundreds_of_kills_lose_and_repeat_nothing(job) -> None:
    kill_again_and_again(job, 6 * FILES, 600)


def kill_again_and_again(job, files: int, kills: int) -> None:
    make_input(Path(job["source"]), files, ROWS)
    with DiskLooker(Path(job["table"])) as looker:
        Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 2.5)).run(kills)
    assert looker.looks > kills
    assert not looker.problems + looker.failures, looker.problems[:5] + looker.failures[:5]
    total = files * ROWS
    assert look(Path(job["table"])) == (total, total, total * (total - 1) // 2)
