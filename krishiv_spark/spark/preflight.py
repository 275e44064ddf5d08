"""A check of a sink's settings before a query starts.

Spark creates a Python sink when the first epoch is planned, which may be never if the source is
idle. But Spark reads the schema of a source at once. So the request is passed as an option of a
reader, and Spark's planner process, which has the environment of the sink, checks the settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PreflightRequest"]

_KEY = "krishivstartcheck"


@dataclass(frozen=True)
class PreflightRequest:
    """The settings with which a query is to start, in addition to the options of its sink.

    Attributes:
        schema: The schema of its rows, in Spark's JSON.
        overwrite: True if each epoch replaces the content of the target.
        new_target: True if a target is accepted that differs from the one in the checkpoint.
    """

    schema: str
    overwrite: bool
    new_target: bool = False

    def to_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options of a reader, with this request added."""
        # A server with an earlier version of this package accepts two parts only.
        more = [True] if self.new_target else []
        return {**options, _KEY: json.dumps([self.schema, self.overwrite, *more])}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> PreflightRequest | None:
        """Return the request in the options of a reader; None if there is none."""
        text = next((text for key, text in options.items() if key.lower() == _KEY), None)
        return None if text is None else cls(*json.loads(text))

    @staticmethod
    def is_option(key: str) -> bool:
        """Return True if the option is the request, and not one of the sink's own."""
        return key.lower() == _KEY
