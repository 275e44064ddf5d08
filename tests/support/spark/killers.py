"""Kills drivers, and what belongs to them, at random moments."""

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import cycle

import psutil
from clusters import ManyMachines, is_python_worker
from drivers import Driver
from patience import PATIENCE


class Killer:
    """Starts a driver again and again, until so much of it was killed.

    Args:
        script: Of the driver; it says DONE when everything is copied.
        job: Its job.
        sign: What the driver says when it may be killed.
        pauses: The shortest and the longest time between two kills, seconds.
        more: What is killed besides the driver and a worker, which is a Python process that Spark
            has started, by name, and brought back. Each has its turn, in random order, before the
            first has another one.
        machines: Where drivers run, each on a new machine, and workers, if not here.
        look: Called with the driver after each kill, of whatever, and when the last one is done;
            a driver that was killed is dead then, and the next one has not begun. True if it has
            brought more to copy: a driver that came to its end unkilled is not the last one then.
        strike: Every other time, called before a driver is killed: comes back at the moment.

    Attributes:
        kills: How often each was killed.
    """

    def __init__(
        self,
        script: str,
        job: Mapping[str, object],
        *,
        sign: str = "EPOCH",
        pauses: tuple[float, float] = (0.2, 2.0),
        more: Mapping[str, Callable[[], object]] | None = None,
        machines: ManyMachines | None = None,
        look: Callable[[Driver], object] = lambda _: None,
        strike: Callable[[], object] | None = None,
    ) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        self.kills: Counter[str] = Counter()
        self._random, self._begun = random.Random(seed), time.monotonic()
        self._script, self._job, self._machines = script, dict(job), machines
        self._sign, self._pauses = sign, pauses
        self._victims, self._more = ("driver", "worker", *(more or {})), more or {}
        self._look, self._strikes = look, cycle([strike or (lambda: None), lambda: None])
        self._turns: list[str] = []

    def run(self, kills: int) -> None:
        """Kill so often; then let a last driver come to its end."""
        while self.kills.total() < kills and self._live(kills):
            pass
        with self._driver() as driver:
            driver.wait_for("DONE", timeout=2 * PATIENCE)
            self._look(driver)
        self._tell(f"done, killed: {dict(self.kills)}")

    def _driver(self) -> Driver:
        if self._machines is None:
            return Driver(self._script, self._job)
        return Driver(self._script, self._job, self._machines.new_driver())

    def _live(self, kills: int) -> bool:
        """One driver until it is killed or fails; False if it comes to its end."""
        with self._driver() as driver:
            if not driver.says(self._sign, PATIENCE) and driver.says("DONE", 0):
                return False  # the last one was killed when all was copied
            driver.wait_for(self._sign, timeout=0)
            while driver.outlives(self._random.uniform(*self._pauses)):
                victim = self._turn()
                if self._killed(victim, driver):
                    self._turns.remove(victim)
                    self.kills[victim] += 1
                    self._tell(f"killed {victim}")
                    self._look(driver)
                if victim == "driver" or self.kills.total() >= kills:
                    return True
            self._tell(f"the driver ended by itself: {driver.lines[-1][:300]}")
            return bool(self._look(driver)) or not driver.says("DONE", 0)

    def _turn(self) -> str:
        """Return the next victim, which stays the same until it is killed."""
        self._turns = self._turns or self._random.sample(self._victims, len(self._victims))
        return self._turns[0]

    def _tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._begun:7.1f} s: {what}")

    def _killed(self, victim: str, driver: Driver) -> bool:
        if victim == "driver":
            next(self._strikes)()
            driver.kill()
        elif victim in self._more:
            self._more[victim]()
        else:
            return self._killed_worker(driver)
        return True

    def _killed_worker(self, driver: Driver) -> bool:
        """Kill a worker; return True if there was one."""
        try:
            if self._machines is None:
                family = psutil.Process(driver._process.pid).children(recursive=True)
            else:
                family = self._machines.processes_of_workers()
            self._random.choice([each for each in family if _is_worker(each)]).kill()
        except (psutil.Error, IndexError):  # it has just ended by itself, or there is none yet
            return False
        return True


def assert_each_once(found: Counter[int], numbers: Collection[int], what: str) -> None:
    """Assert that a reader has found every number exactly once."""
    missing = [number for number in numbers if number not in found]
    twice = [number for number, times in found.items() if times > 1]
    assert not missing, f"{what}: {len(missing)} rows are missing: {missing[:5]}"
    assert not twice, f"{what}: {len(twice)} rows are there more than once: {twice[:5]}"
    assert len(found) == len(numbers)


def _is_worker(process: psutil.Process) -> bool:
    try:
        return is_python_worker(process.cmdline())
    except psutil.Error:  # it is ending
        return False
