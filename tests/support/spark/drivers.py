"""Starting drivers as processes of their own, and killing them."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from machines import Machine
from patience import PATIENCE, await_none

from krishiv_spark.testing.real_spark.driver import DriverProcess

SUPPORT = Path(__file__).parent


class Driver(DriverProcess):
    """One of the scripts beside this file, with a job, here or on a machine of its own."""

    def __init__(self, script: str, job: Mapping[str, Any], machine: Machine | None = None) -> None:
        command = [sys.executable, str(SUPPORT / script), json.dumps(job)]
        own = os.environ if machine is None else machine.environment()
        environment = {**own, "PYSPARK_PYTHON": sys.executable}
        super().__init__(command if machine is None else machine.command(*command), environment)

    def wait_for(self, word: str, timeout: float = PATIENCE) -> None:
        """Await a line that begins with a word; fails when the driver ends without it."""
        said = self.says(word, timeout)
        assert said, f"no {word!r} within {timeout} s:\n" + "\n".join(self.lines[-60:])

    def await_rest(self) -> None:
        """Once it is dead: wait until nothing that it had started does anything any more."""
        await_none(lambda: [*filter(self._is_of_it, psutil.process_iter())], "they live on")

    def _is_of_it(self, process: psutil.Process) -> bool:
        try:
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            return is_alive and os.getsid(process.pid) == self._process.pid
        except (psutil.Error, ProcessLookupError):  # it has ended
            return False
