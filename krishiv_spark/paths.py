"""Paths as users write them."""

from __future__ import annotations

import re
from pathlib import Path

from krishiv_spark.errors import OptionError

__all__ = ["local_path", "url_scheme"]

# RFC 3986, but for schemes of one letter, which are drives elsewhere. Nothing has to follow the
# colon: `hdfs:/x` and `gs:b/x` are as common as what has two slashes.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def url_scheme(text: str) -> str | None:
    """The scheme that a text begins with, in lower case; None for a plain path.

    The one rule for what is a URL and what is a path, wherever users may write either.
    """
    match = _SCHEME.match(text)
    return match[1].lower() if match else None


def local_path(text: str, option: str) -> Path:
    """A path or ``file:`` URL as an absolute path; taken literally, as Hadoop takes it.

    Args:
        text: What the user wrote.
        option: Which option of which format it is, for the message: `krishiv-parquet: 'path'`.

    Raises:
        OptionError: If it is a URL of any other kind, known or not, or names another machine.
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
    """What follows ``file:``, without a machine's name, which may only be this one's."""
    if not rest.startswith("//") or rest.startswith("///"):
        return rest
    machine, _, path = rest[2:].partition("/")
    if machine.lower() != "localhost":
        raise OptionError(
            f"{shown} names the machine {machine!r}: mount the folder, and write three slashes, "
            f"'file:///{path}'"
        )
    return path
