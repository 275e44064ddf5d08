"""What was found, as people read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import BaseModel

from krishiv_spark.errors import KrishivError

__all__ = ["SYNCHRONISE", "Finding", "Findings", "Level"]

SYNCHRONISE = "synchronise the clocks (NTP): stores refuse signatures of another time"
"""What to do about a clock."""

Level = Literal["ok", "note", "WRONG"]


class Finding(BaseModel, frozen=True):
    """One line.

    Attributes:
        level: "ok"; "note" of what may be wanted so; "WRONG" of what will fail.
        text: What was looked at, and what it is like.
        advice: What to do; empty if there is nothing.
    """

    level: Level
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.text}{self.advice and '; ' + self.advice}"


class Findings:
    """Gathers them.

    Attributes:
        found: So far.
    """

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def ok(self, text: str) -> None:
        """Something is as it has to be."""
        self.found.append(Finding(level="ok", text=text))

    def note(self, text: str, advice: str) -> None:
        """Something may be wanted so."""
        self.found.append(Finding(level="note", text=text, advice=advice))

    def wrong(self, text: str, advice: str) -> None:
        """Something will fail."""
        self.found.append(Finding(level="WRONG", text=text, advice=advice))

    @contextmanager
    def looking_at(self, what: str, advice: str) -> Iterator[Callable[[str], None]]:
        """Look at something; an error is a finding.

        Args:
            what: For the line.
            advice: What to do if it fails.

        Yields:
            To be called with what is to be said if all is well; without it nothing is.
        """
        said: list[str] = []
        try:
            yield said.append
        except (KrishivError, OSError) as error:
            self.wrong(f"{what}: {reason(error)}", advice)
        else:
            for text in said:
                self.ok(f"{what}: {text}")


def reason(error: Exception) -> str:
    """The first line of an error; those of this package have no secrets in them."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0].rstrip("; ")
