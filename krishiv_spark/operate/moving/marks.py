"""How a checkpoint says that somebody is still writing it, so that Spark refuses it.

The newest entry of the offset log is the first that Spark reads of a checkpoint
(``OffsetSeqLog``). It must begin with a version; where this text stands in its place, a query
fails before it has begun, and shows the text.
"""

from __future__ import annotations

__all__ = ["is_half_made", "is_replay", "is_unfinished", "unfinished", "unfinished_replay"]

_BEGIN = b"unfinished: "
_COMMAND = "'krishiv-spark checkpoint"
_REPLAY = "'krishiv-spark replay' has taken back only a part of what was written"


def unfinished(verb: str) -> bytes:
    """The text of such an entry.

    Args:
        verb: Of ``krishiv-spark checkpoint``.
    """
    text = f"{_COMMAND} {verb}' has not got through here: run it again"
    return _BEGIN + text.encode()


def unfinished_replay(command: str, record: str) -> bytes:
    """Return the text of an entry that stops each start until a replay is finished.

    Args:
        command: The words that finish it.
        record: JSON of the replay, for the process that does so.
    """
    return _BEGIN + f"{_REPLAY}: run this again to finish it: {command}\n{record}".encode()


def is_replay(entry: bytes) -> bool:
    """Return True if an entry is the text of a replay that is not finished."""
    return entry.startswith(_BEGIN + _REPLAY.encode())


def is_unfinished(entry: bytes) -> bool:
    """Whether an entry of an offset log is such a text."""
    return entry.startswith(_BEGIN)


def is_half_made(entry: bytes) -> bool:
    """Whether it is that of a new checkpoint: behind that of a way back stands an old one."""
    is_new = not entry.startswith(_BEGIN + f"{_COMMAND} rewind ".encode())
    return is_unfinished(entry) and is_new and not is_replay(entry)
