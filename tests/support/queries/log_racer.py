"""A process that races others for the entries of a log on a disk, once a file says go.

python log_racer.py numbers FOLDER GO COUNT   tries to create each number; prints those it won
python log_racer.py epochs FOLDER GO COUNT    publishes epochs; prints those it published
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from patience import PATIENCE

from krishiv_spark.errors import CommitRejected, Fenced
from krishiv_spark.offsets import EpochLog
from krishiv_spark.offsets.journal import open_journal


def numbers(folder: Path, count: int) -> list[int]:
    journal, me = open_journal(folder), str(os.getpid()).encode()
    names = {number: f"{number:020d}.json" for number in range(1, count + 1)}
    return [number for number, name in names.items() if journal.create(name, me)]


def epochs(folder: Path, count: int) -> list[int]:
    log = EpochLog(open_journal(folder), fold_every=8)
    published = []
    for _ in range(count):
        generation = log.begin().owner
        held = log.state().committed_epoch
        epoch = 0 if held is None else held + 1
        try:
            state = log.intend(generation, epoch, [os.getpid()])
        except (CommitRejected, Fenced):
            continue
        published.append(epoch)
        log.compact(state)
    return published


def race(work: str, folder: Path, processes: int, count: int) -> list[list[int]]:
    """Run racers on the log in a folder; what each of them won."""
    go = folder / "go"
    racers = [
        subprocess.Popen(
            [sys.executable, __file__, work, str(folder / "log"), str(go), str(count)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    go.touch()
    printed = [racer.communicate(timeout=PATIENCE)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * processes
    return [[*map(int, text.split())] for text in printed]


def main() -> None:
    work, folder, go, count = sys.argv[1:]
    print("ready", flush=True)
    while not Path(go).exists():
        time.sleep(0.001)
    print(*globals()[work](Path(folder), int(count)), flush=True)


if __name__ == "__main__":
    main()
