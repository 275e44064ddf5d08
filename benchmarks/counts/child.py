"""One case in this process: ``python -m benchmarks.counts.child NAME``, told by standard input."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict

from benchmarks.bench import MEMORY, scratch
from benchmarks.counts import every
from benchmarks.counts.case import Given
from benchmarks.counts.watch import listening

__all__ = ["main"]


def main() -> None:
    """Print what the case has counted, as JSON; whatever else is printed goes to standard error."""
    found = every.CASES[sys.argv[1]]
    servers = json.load(sys.stdin)
    with scratch(MEMORY) as folder, contextlib.redirect_stdout(sys.stderr), listening():
        os.environ["KRISHIV_MEMORY_DIR"] = str(folder / "memory")
        (folder / "work").mkdir()
        counts = [asdict(count) for count in found.run(Given(folder / "work", servers))]
    names = [count["name"] for count in counts]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{found.name} has two counts of a name: {', '.join(sorted(twice))}")
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
