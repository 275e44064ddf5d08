"""Starting drivers as processes of their own, and killing them."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machines import Machine
from patience import PATIENCE

from krishiv_spark.testing.real_spark.process import DriverProcess

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
