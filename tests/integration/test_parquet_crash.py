"""A stream from Parquet to Parquet; its driver and its Python workers are killed."""

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from killers import Killer
from lookers import DiskLooker
from patience import await_that
from tables import look, make_input, visible_names

from krishiv_spark.cli import main
from krishiv_spark.parquet.names import DataFile

FILES, ROWS = 90, 50


@pytest.fixture
def job(tmp_path: Path) -> dict[str, object]:
    return {
        "source": str(tmp_path / "in"),
        "table": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "conf": {"spark.master": "local[2,8]"},  # a task whose worker was killed is tried again
    }


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
    agrees = partial(await_that, partial(status_agrees_with_readers, job))
    with DiskLooker(Path(job["table"])) as looker:
        Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 2.5), look=agrees).run(kills)
    assert looker.looks > kills
    assert not looker.problems + looker.failures, looker.problems[:5] + looker.failures[:5]
    total = files * ROWS
    assert look(Path(job["table"])) == (total, total, total * (total - 1) // 2)


def status_agrees_with_readers(job) -> bool:
    """Whether `krishiv-spark status` says of the newest epoch what the folder shows."""
    command = ["status", job["checkpoint"], "--table", job["table"], "--json"]
    done = CliRunner().invoke(main, command)
    if done.exit_code:  # killed before Spark wrote down which query it is
        assert "no query id" in done.output, done.output
        return not visible_names(Path(job["table"]))
    found = json.loads(done.output)
    names = map(DataFile.parse, visible_names(Path(job["table"])))
    visible = {name.epoch for name in names if name is not None}
    log = found["log"] or {"held": None, "open_epoch": None}
    planned = -1 if found["newest"] is None else found["newest"]["epoch"]
    # One that is held and still open is being published, whole or in part.
    held = -1 if log["held"] is None else log["held"]
    certain = {epoch for epoch in range(held + 1) if epoch != log["open_epoch"]}
    return certain <= visible <= certain | {log["open_epoch"]} and held <= planned <= held + 1
