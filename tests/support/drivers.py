"""Starting drivers as processes of their own, and killing them."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Self

SUPPORT = Path(__file__).parent


@dataclass
class Driver:
    """A driver in a process group of its own, with what it printed."""

    script: str
    job: dict[str, Any]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SUPPORT / self.script), json.dumps(self.job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, word: str, timeout: float = 90) -> None:
        """Await a line that begins with a word; fails when the driver ends without it."""
        with self._changed:
            self._changed.wait_for(lambda: self.said(word) or self.ended(), timeout)
        assert self.said(word), f"no {word!r} within {timeout} s:\n" + "\n".join(self.lines[-60:])

    def said(self, word: str) -> bool:
        return any(line.startswith(word) for line in self.lines)

    def ended(self) -> bool:
        return self.process.poll() is not None and not self._reader.is_alive()

    def outlives(self, seconds: float) -> bool:
        """Let it run for a while; whether it still runs then."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the driver's process group: Python and the JVM, not its workers."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """kill -9; Spark's Python workers live in another group and go on for a moment."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join(10)
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
