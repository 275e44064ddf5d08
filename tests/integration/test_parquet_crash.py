"""A stream from Parquet to Parquet; its driver and its Python workers are killed."""

import threading
from pathlib import Path

import pytest
from killers import Killer
from tables import epoch_of, logged_epoch, look, make_input, visible_names
from typing_extensions import Self

FILES, ROWS = 90, 50


class Looker:
    """Looks at a table again and again while its writer is being killed."""

    def __init__(self, table: Path) -> None:
        self.looks = 0
        self.problems: list[str] = []
        self._table = table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self.once()

    def once(self) -> None:
        names = visible_names(self._table)
        held = logged_epoch(self._table)
        rows, distinct, _ = look(self._table)
        self.looks += 1
        if rows != distinct:
            self.problems.append(f"look {self.looks}: {rows} rows, {distinct} distinct")
        stray = [name for name in names if epoch_of(name) > held]
        if stray:
            self.problems.append(f"look {self.looks}: {stray} visible, epoch {held} is logged")


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
    with Looker(Path(job["table"])) as looker:
        Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 2.5)).run(kills)
    assert looker.looks > kills
    assert not looker.problems, looker.problems[:5]
    total = files * ROWS
    assert look(Path(job["table"])) == (total, total, total * (total - 1) // 2)
