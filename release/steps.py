"""Steps of a release that say how long they took, and why they failed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Refused", "output", "step"]

_SHOWN = 4_000
"""The last characters of what a program has said, which an error shows."""


class Refused(Exception):  # noqa: N818  it names what becomes of the release
    """A step has failed: there is no release."""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say what is done, and how many seconds it took."""
    begin = time.monotonic()
    yield
    print(f"{time.monotonic() - begin:5.1f} s  {name}", flush=True)


def output(
    command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Return the output of a program.

    Raises:
        Refused: If it ends with another exit code than 0; the text has what it said.
    """
    done = subprocess.run(  # noqa: S603  our own tools
        list(command), cwd=cwd, env=env, check=False, capture_output=True, text=True
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-_SHOWN:]
        raise Refused(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{said}")
    return done.stdout
