"""Texts of other programs in a form that a terminal only displays.

Names, rows and error texts may contain characters that a terminal interprets, or that change how
the rest of a line is read: escape sequences, line breaks, writing directions, invisible characters.
"""

from __future__ import annotations

import re

__all__ = ["show_lines", "show_text"]

_ESCAPED = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: line breaks, and what starts an escape sequence
    "\u00ad\u061c\u180e\u200b-\u200f\u2060-\u206f\ufeff"  # invisible, or a direction of writing
    "\u2028-\u202e"  # separators of lines and paragraphs, directions
    "\ufff9-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # layout
    "\U000e0001-\U000e007f"  # tags: a whole invisible alphabet
    "\ud800-\udfff"  # halves of a character, which no terminal's encoding has
    "]"
)
_SHORT = {
    "\a": r"\a",
    "\b": r"\b",
    "\t": r"\t",
    "\n": r"\n",
    "\v": r"\v",
    "\f": r"\f",
    "\r": r"\r",
}
"""The escapes of Spark's ``Dataset.show`` (``SchemaUtils.escapeMetaCharacters``)."""


def show_text(text: str) -> str:
    r"""Return a text as one line, with each unsafe character as ``\x1b``, ``\u202e`` or ``\n``."""
    return _ESCAPED.sub(_escape, text)


def show_lines(text: str) -> str:
    """Return a text with several lines: as `show_text`, but line feeds are kept."""
    return "\n".join(map(show_text, text.split("\n")))


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    if letter in _SHORT:
        return _SHORT[letter]
    return letter.encode("unicode_escape").decode()
