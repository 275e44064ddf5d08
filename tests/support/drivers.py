"""Starting drivers as processes of their own, and killing them."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from patience import PATIENCE

from krishiv_spark.testing.real_spark.process import DriverProcess

SUPPORT = Path(__file__).parent


class Driver(DriverProcess):
    """One of the scripts beside this file, with a job."""

    def __init__(self, script: str, job: dict[str, Any]) -> None:
        command = [sys.executable, str(SUPPORT / script), json.dumps(job)]
        super().__init__(command, {**os.environ, "PYSPARK_PYTHON": sys.executable})

    def wait_for(self, word: str, timeout: float = PATIENCE) -> None:
        """Await a line that begins with a word; fails when the driver ends without it."""
        said = self.says(word, timeout)
        assert said, f"no {word!r} within {timeout} s:\n" + "\n".join(self.lines[-60:])
