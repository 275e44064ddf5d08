"""The option ``subscribePattern`` against names of topics, in bounded time. Driver.

Whoever may create a topic chooses its name, and Python's own engine takes exponential time for some
patterns and names. RE2, which PyArrow brings, takes linear time. It does not have all of Python's
syntax: the other patterns are matched by Python in a child process that is ended after a while.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterable

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import OptionError

__all__ = ["TopicPattern"]

_LIMIT_S = 10.0
"""For all names that are new, together; an honest pattern takes microseconds for each."""

_DIFFERS = re.compile(r"\{,|\[:|\\[0-9xCQEpPz]|[^\x20-\x7e]")
"""Syntax that both engines accept, and that they may read differently."""

_CHILD = """
import json, re, sys
pattern = re.compile(sys.argv[1])
for line in sys.stdin:
    print(int(pattern.fullmatch(json.loads(line)) is not None), flush=True)
"""


class TopicPattern:
    """A pattern of which each name is matched once.

    Args:
        pattern: A regular expression of Python's that is valid.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._known: dict[str, bool] = {}

    def matches(self, names: Collection[str]) -> list[str]:
        """Return the names that the pattern matches as a whole, in their order.

        Raises:
            OptionError: If Python takes too long for a name.
        """
        new = [name for name in names if name not in self._known]
        if new:
            found = _match_by_re2(self._pattern, new)
            if found is None:
                found = _match_by_python(self._pattern, new)
            self._known.update(zip(new, found, strict=True))
        return [name for name in names if self._known[name]]

    def keep(self, names: Iterable[str]) -> None:
        """Forget all names but these."""
        self._known = {name: self._known[name] for name in names if name in self._known}


def _match_by_re2(pattern: str, names: Collection[str]) -> list[bool] | None:
    """Return which names match; None if RE2 does not know the syntax."""
    if _DIFFERS.search(pattern):
        return None
    try:
        found = pc.match_substring_regex(pa.array(names, pa.string()), f"^(?:{pattern})$")
    except pa.ArrowInvalid:
        return None
    matched: list[bool] = found.to_pylist()
    return matched


def _match_by_python(pattern: str, names: Collection[str]) -> list[bool]:
    command = [sys.executable, "-I", "-S", "-c", _CHILD, pattern]
    given = "".join(f"{json.dumps(name)}\n" for name in names)
    try:
        done = subprocess.run(  # noqa: S603  the program is ours, and no shell reads the pattern
            command,
            input=given,
            capture_output=True,
            encoding="utf-8",
            timeout=_LIMIT_S,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        answered = len((error.stdout or b"").split())
        raise OptionError(
            f"option 'subscribePattern' = {pattern!r} takes more than {_LIMIT_S:g} s for the topic "
            f"name {list(names)[answered]!r}: write it without repetitions within repetitions; "
            "without (?=...), \\1 and the like it is matched in linear time"
        ) from None
    return [line == "1" for line in done.stdout.split()]
