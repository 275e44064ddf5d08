"""Mistakes in files that users write, each with its place; all of them at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from krishiv_spark.errors import ManifestError

__all__ = ["Problems", "TextMark"]


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
        found: Each once.
    """

    file: str
    found: set[tuple[TextMark, str]] = field(default_factory=set)

    def add(self, mark: TextMark, text: str) -> None:
        """One more: where, what, and what to do."""
        self.found.add((mark, " ".join(text.splitlines())))

    def lines(self) -> list[str]:
        """``file:line:column: text``, in the order of the file."""
        return [
            f"{self.file}:{mark.line}:{mark.column}: {text}" for mark, text in sorted(self.found)
        ]

    def error(self) -> ManifestError:
        """All of them as one error."""
        return ManifestError("\n".join(self.lines()))

    def raise_if_any(self) -> None:
        """Raises ManifestError if there is one."""
        if self.found:
            raise self.error()
