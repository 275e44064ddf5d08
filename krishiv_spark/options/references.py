"""References as values of options: ``${env:NAME}``, ``${file:/path}``.

Spark shows options in plans, in its UI and in event logs; under Spark Connect, all of them exactly
as they were written. The connector resolves references on the driver's machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from typing_extensions import Self

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.suggestions import suggest

__all__ = [
    "Referenced",
    "has_reference",
    "read_small",
    "referenced_values",
    "resolve",
    "resolve_options",
    "variables",
]

_MOST_BYTES = 2**20

_REFERENCE = re.compile(r"(\$?)\$\{(\w+):([^}]*)\}")


class Referenced(str):
    """A resolved value. Pickles; it is shown as its reference.

    Attributes:
        reference: The text as the user wrote it.
        is_secret: True or False if the user has specified whether the value is secret; None if that
            depends on the option.
    """

    __slots__ = ("is_secret", "reference")

    reference: str
    is_secret: bool | None

    def __new__(cls, text: str, reference: str, is_secret: bool | None = None) -> Self:
        """Return a value with the reference that it resolves."""
        made = super().__new__(cls, text)
        made.reference, made.is_secret = reference, is_secret
        return made

    def __repr__(self) -> str:
        return repr(self.reference)

    def __reduce__(self) -> tuple[type[Referenced], tuple[str, str, bool | None]]:
        return Referenced, (str.__str__(self), self.reference, self.is_secret)


def has_reference(text: str) -> bool:
    """Return True if a value contains a reference, or an escaped one."""
    return isinstance(text, str) and next(_references_in(text), None) is not None


def _references_in(text: str) -> Iterator[re.Match[str]]:
    # There is no reference after the last bracket, and each ``${`` there would search for its end.
    return _REFERENCE.finditer(text, 0, text.rfind("}") + 1)


def read_small(file: Path) -> str:
    """Return the text of a file that a user wrote, or that contains one value.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is larger than 1 MiB, or is not UTF-8.
    """
    with file.open("rb") as opened:
        found = opened.read(_MOST_BYTES + 1)  # a device has no end, so the read is limited
    if len(found) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
    # Line ends are converted as by `Path.read_text`.
    return found.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def variables(reference: str) -> list[str]:
    """Return the environment variables that a value refers to."""
    return [m[3] for m in _references_in(reference) if m[2] == "env" and not m[1]]


def resolve(text: str) -> str:
    """Return a value with its references resolved; itself if it has none, or was resolved before.

    ``$${env:`` is replaced by ``${env:``. Driver; tasks get the resolved value.

    Raises:
        ValueError: If a variable is not set, a file cannot be read, or the kind is unknown. The
            text contains no value.
    """
    # Options from Python may be numbers.
    if not isinstance(text, str) or isinstance(text, Referenced) or "${" not in text:
        return text
    front, bracket, rest = text.rpartition("}")
    found = _REFERENCE.sub(_value, front + bracket) + rest  # see `_references_in`
    return text if found == text else Referenced(found, text)


def referenced_values(given: Mapping[str, str]) -> frozenset[str]:
    """Return the values of the options that are references. Any of them may be a secret.

    Raises:
        ValueError: As `resolve`.
    """
    return frozenset(
        str.__str__(resolve(text)) for text in given.values() if has_reference(text)
    ) - {""}


def resolve_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return options with their references resolved, as by `resolve`.

    Raises:
        OptionError: If `resolve` raises; the text names the option.
    """
    found = {}
    for key, text in given.items():
        try:
            found[key] = resolve(text)
        except ValueError as error:
            raise OptionError(f"option {key!r}: {error}") from None
    return found


def _value(match: re.Match[str]) -> str:
    escaped, kind, name = match.groups()
    if escaped:
        return match[0][1:]
    looking = _KINDS.get(kind)
    if looking is None:
        near = suggest(kind, _KINDS)
        hint = (
            f"did you mean '${{{near}:{name}}}'?"
            if near
            else "there are ${env:NAME} and ${file:/path};"
        )
        raise ValueError(f"{match[0]!r} is not known: {hint} '$${{' stands for '${{' itself")
    return looking(name)


def _of_environment(name: str) -> str:
    found = os.environ.get(name)
    if found is None:
        raise ValueError(
            f"the environment of Spark's driver has no variable {name!r}: export it before Spark "
            "is started, under Spark Connect before its server is"
        )
    return found


def _of_file(name: str) -> str:
    if not os.path.isabs(name):
        raise ValueError(f"write the whole path of the file, not {name!r}")
    try:
        return read_small(Path(name)).rstrip("\n")
    except UnicodeDecodeError:
        reason = "it is not text"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise ValueError(f"{name!r} cannot be read on the driver's machine: {reason}")


_KINDS: dict[str, Callable[[str], str]] = {"env": _of_environment, "file": _of_file}
