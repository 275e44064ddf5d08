"""Mistakes in files that users write, each with its place; all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from krishiv_spark.errors import ManifestError
from krishiv_spark.messages.terminal import show_text

__all__ = ["Problems", "TextMark"]


_MOST = 500
_LONGEST = 2_000
"""Characters of one text: a value of a file may be as long as the file, and be shown often."""


@dataclass(frozen=True, order=True)
class TextMark:
    """A place in a text; line and column are counted from 1."""

    line: int
    column: int


@dataclass
class Problems:
    """What is wrong with one file.

    Attributes:
        file: Its name, as the user knows it.
        hide: Given each text, returns it without values that must not be shown.
        found: Each once.
    """

    file: str
    hide: Callable[[str], str] = str
    found: set[tuple[TextMark, str]] = field(default_factory=set)

    def add(self, mark: TextMark, text: str) -> None:
        """Add a problem: where, what, and what to do.

        Raises:
            ManifestError: If there are so many already that more would help no reader.
        """
        shown = show_text(" ".join(self.hide(text).splitlines()))
        if len(shown) > _LONGEST:
            shown = f"{shown[:_LONGEST]}... ({len(shown)} characters)"
        self.found.add((mark, shown))
        if len(self.found) >= _MOST:
            raise self.error()

    def lines(self) -> list[str]:
        """``file:line:column: text``, in the order of the file."""
        file = show_text(self.file)
        return [f"{file}:{mark.line}:{mark.column}: {text}" for mark, text in sorted(self.found)]

    def error(self) -> ManifestError:
        """All of them as one error."""
        return ManifestError("\n".join(self.lines()))

    def raise_if_any(self) -> None:
        """Raises ManifestError if there is one."""
        if self.found:
            raise self.error()
