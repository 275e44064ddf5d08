"""Answers of stores, in a few words, for the story of a history."""

from __future__ import annotations

import json
import re

__all__ = ["shorten"]

_LONG_NAME = re.compile(r"0{10,}(\d+)")


def shorten(answer: object) -> str:
    """An answer for people."""
    if isinstance(answer, bytes) and answer.startswith(b"{"):
        return _entry(json.loads(answer))
    return _LONG_NAME.sub(r"\1", str(answer)).replace("\n", " ")


def _entry(found: dict[str, object]) -> str:
    """An entry of an epoch log, or a snapshot."""
    if "kind" not in found:
        return f"the state up to {found.get('number')}, held {found.get('held')}"
    claim = found.get("claim")
    offsets = claim.get("offsets") if isinstance(claim, dict) else None
    epoch = offsets["epoch"] if isinstance(offsets, dict) else found.get("epoch")
    return f"{found['kind']} of epoch {epoch} by {found['writer']}"
