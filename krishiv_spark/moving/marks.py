"""How a checkpoint says that somebody is still writing it, so that Spark refuses it.

The newest entry of the offset log is the first that Spark reads of a checkpoint
(``OffsetSeqLog``). It must begin with a version; where this text stands in its place, a query
fails before it has begun, and shows the text.
"""

from __future__ import annotations

__all__ = ["is_half_made", "is_unfinished", "unfinished"]

_BEGIN = b"unfinished: "
_COMMAND = "'krishiv-spark checkpoint"


def unfinished(verb: str) -> bytes:
    """The text of such an entry.

    Args:
        verb: Of ``krishiv-spark checkpoint``.
    """
    text = f"{_COMMAND} {verb}' has not got through here: run it again"
    return _BEGIN + text.encode()


def is_unfinished(entry: bytes) -> bool:
    """Whether an entry of an offset log is such a text."""
    return entry.startswith(_BEGIN)


def is_half_made(entry: bytes) -> bool:
    """Whether it is that of a new checkpoint: behind that of a way back stands an old one."""
    return is_unfinished(entry) and not entry.startswith(_BEGIN + f"{_COMMAND} rewind ".encode())
