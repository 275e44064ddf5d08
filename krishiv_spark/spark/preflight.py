"""A question to a format, asked before a query starts: would its sink take this?

Spark makes a Python sink when the first epoch is planned, which an idle source may put off for
ever. What it does ask at once is a source for its schema; so the question goes along with the
options of a reader, and Spark's planner process, with its environment, has the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PreflightRequest"]

_KEY = "krishivstartcheck"


@dataclass(frozen=True)
class PreflightRequest:
    """The settings with which a query is to start, besides the options of its sink.

    Attributes:
        schema: Of its rows, as Spark writes it in JSON.
        overwrite: Whether each epoch replaces what was there.
        new_target: Whether another target than the one in the checkpoint is accepted.
    """

    schema: str
    overwrite: bool
    new_target: bool = False

    def to_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Options of a reader that ask it."""
        # A server of an earlier version knows two parts.
        more = [True] if self.new_target else []
        return {**options, _KEY: json.dumps([self.schema, self.overwrite, *more])}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> PreflightRequest | None:
        """The question in the options of a reader; None if there is none."""
        text = next((text for key, text in options.items() if key.lower() == _KEY), None)
        return None if text is None else cls(*json.loads(text))

    @staticmethod
    def is_option(key: str) -> bool:
        """Return True if an option is the request, and none of the sink's."""
        return key.lower() == _KEY
