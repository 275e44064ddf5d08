"""Names of tables as expressions over the name of a topic: ``lake.${topic.last}``."""

from __future__ import annotations

import re

__all__ = ["check_pattern", "is_pattern", "name_by_topic"]

_FIELD = re.compile(r"\$\{([^{}]*)\}")
_WANTED = re.compile(r"topic(?:\.(last|[1-9][0-9]?))?")

_FORMS = (
    "write ${topic} (the whole name, with '_' for each '.'), ${topic.last} (its last part) or "
    "${topic.1} (its first part), as in 'lake.${topic.last}'"
)


def is_pattern(name: str) -> bool:
    """Return True if the name of a table contains an expression."""
    return "${" in name


def check_pattern(pattern: str) -> None:
    """Refuse an expression that is not over the name of a topic.

    The messages do not repeat the rest of the name, which may come from a variable.

    Raises:
        ValueError: If there is one, with the forms that are known.
    """
    for found in _FIELD.finditer(pattern):
        if not _WANTED.fullmatch(found[1]):
            raise ValueError(f"{found[0]!r} in the name of the table is not known: {_FORMS}")
    if is_pattern(_FIELD.sub("", pattern)):
        raise ValueError(f"the name of the table has a '${{' without its '}}': {_FORMS}")


def name_by_topic(pattern: str, topic: str) -> str:
    """Return the name of a topic's table.

    Args:
        pattern: A name that `check_pattern` accepts.
        topic: Name of the topic; its parts are separated by dots.

    Raises:
        ValueError: If the topic does not have a part that the pattern names.
    """
    parts = topic.split(".")

    def replace(found: re.Match[str]) -> str:
        _, _, wanted = found[1].partition(".")
        if not wanted:
            return topic.replace(".", "_")
        place = len(parts) if wanted == "last" else int(wanted)
        part = parts[place - 1] if place <= len(parts) else ""
        if not part.strip():
            raise ValueError(
                f"topic {topic!r} has no table by 'table' = {pattern!r}: its name has no "
                f"{'last part' if wanted == 'last' else f'part {wanted}'}. Leave the topic out of "
                "the query, or name the table by another part"
            )
        return part

    return _FIELD.sub(replace, pattern)
