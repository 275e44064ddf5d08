"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from krishiv_spark.errors import OptionError

__all__ = ["local_path"]


def local_path(text: str, option: str) -> Path:
    """A path or ``file:`` URL as an absolute path; taken literally, as Hadoop takes it.

    Args:
        text: What the user wrote.
        option: Which option of which format it is, for the message: `krishiv-parquet: 'path'`.

    Raises:
        OptionError: If it is a URL of another kind, or relative to nothing that workers share.
    """
    scheme, colon, rest = text.partition(":")
    if colon and "/" not in scheme and scheme.lower() != "file" and rest.startswith("//"):
        raise OptionError(
            f"{option} {text!r} is on {scheme}; only folders of a file system are "
            "supported, local or mounted: a path or file:// URL"
        )
    if colon and scheme.lower() == "file":
        return Path("/" + rest.lstrip("/"))
    return Path(text).absolute()
