"""Paths of users, and checks of names that another program may have written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from krishiv_spark.errors import OptionError

__all__ = [
    "FileName",
    "FolderWithin",
    "NameWithin",
    "check_file_name",
    "check_name_within",
    "has_dot_part",
    "local_path",
    "url_scheme",
]

# A backslash is a separator, too: Azure and Windows treat it as a slash.
_DOT_PART = re.compile(r"(?:\A|[/\\])\.{1,2}(?:[/\\]|\Z)")


def has_dot_part(name: str) -> bool:
    """Return True if a part of a path is ``.`` or ``..``, which may lead to another folder."""
    return "." in name and _DOT_PART.search(name) is not None


def check_name_within(name: str) -> str:
    """Return the relative path of a file or folder, after checking that it stays inside its folder.

    Raises:
        ValueError: If it is absolute, contains NUL, or has an empty, ``.`` or ``..`` part.
    """
    is_plain = name and name[0] != "/" and name[-1] != "/" and "//" not in name
    if not is_plain or "\0" in name or has_dot_part(name):
        raise ValueError(
            f"{_shown(name)} is not a path within a folder: such a path is relative, and has no "
            "NUL and no empty, '.' or '..' part"
        )
    return name


def check_file_name(name: str) -> str:
    """Return the name of a file or folder, after checking that it is not a path.

    Raises:
        ValueError: As `check_name_within`; or if it contains a separator.
    """
    if "/" in name or "\\" in name or "\0" in name or name in {"", ".", ".."}:
        raise ValueError(f"{_shown(name)} is not a file name: it is empty, a path, or contains NUL")
    return name


def _check_folder_within(name: str) -> str:
    return name and check_name_within(name)


_SHOWN = 200


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}..."


NameWithin: TypeAlias = Annotated[str, AfterValidator(check_name_within)]
"""A field of a model: the relative path of a file in a folder that its reader knows."""

FolderWithin: TypeAlias = Annotated[str, AfterValidator(_check_folder_within)]
"""A `NameWithin`, or the empty path of the folder itself."""

FileName: TypeAlias = Annotated[str, AfterValidator(check_file_name)]
"""A field of a model: the name of a file or folder, without separators."""

# RFC 3986, without schemes of one letter, which are drives of Windows. No slashes are required:
# `hdfs:/x` and `gs:b/x` are as common as URLs with two slashes.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def url_scheme(text: str) -> str | None:
    """Return the scheme of a URL in lower case; None for a plain path.

    This is the only rule that distinguishes URLs from paths, for all texts of users.
    """
    match = _SCHEME.match(text)
    return match[1].lower() if match else None


def local_path(text: str, option: str) -> Path:
    """Return the absolute path of a path or ``file:`` URL, which has no escapes, as in Hadoop.

    Args:
        text: The path or URL of the user.
        option: Format and option, for the message, such as `krishiv-parquet: 'path'`.

    Raises:
        OptionError: If it is a URL of any other kind, or names another machine.
    """
    scheme = url_scheme(text)
    if scheme is None:
        return Path(text).absolute()
    if scheme != "file":
        raise OptionError(
            f"{option} {text!r} is on {text.partition(':')[0]}; only folders of a file system are "
            "supported, local or mounted: a path or file:// URL; a path whose first name has a "
            f"colon is written './{text}'"
        )
    return Path("/" + _without_machine(text.partition(":")[2], f"{option} {text!r}").lstrip("/"))


def _without_machine(rest: str, shown: str) -> str:
    """Return the part after ``file:``, without a machine's name, which must be this one's."""
    if not rest.startswith("//") or rest.startswith("///"):
        return rest
    machine, _, path = rest[2:].partition("/")
    if machine.lower() != "localhost":
        raise OptionError(
            f"{shown} names the machine {machine!r}: mount the folder, and write three slashes, "
            f"'file:///{path}'"
        )
    return path
