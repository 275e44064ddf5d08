"""Options that source and sink share: the table's location, and the settings of its store."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field

from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.storage import StorageOptions

__all__ = ["FORMAT", "DeltaOptions"]

FORMAT = "krishiv-delta"

_KINDS = ("disk", "s3")
"""Stores whose settings this package gives to ``deltalake``."""


_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\|<>^\x00-\x1f]")
"""Texts that deltalake 1.6 decodes in a path that is not encoded, or that end its thread."""


def _check_location(text: str) -> str:
    url = StoreUrl.parse(text)
    if url.kind not in _KINDS:
        raise ValueError(
            f"{text!r} is on {url.scheme!r}, where {FORMAT} cannot commit: name a folder on a disk "
            "that every worker shares, or in a bucket (s3://bucket/folder)"
        )
    if wrong := _MISREAD.search(url.path):
        raise ValueError(
            f"{text!r} has {wrong[0]!r}, which deltalake takes for another character, or cannot "
            "read: name a folder without it"
        )
    if not url.path.strip("/"):
        raise ValueError(f"{text!r} is a whole bucket or disk: name a folder in it")
    return text


class DeltaOptions(StorageOptions):
    """Options of source and sink."""

    path: Annotated[str, AfterValidator(_check_location)] = Field(
        description="Folder of the table, on a file system that every worker shares, or in a "
        "bucket of S3: `s3://bucket/folder`."
    )

    @cached_property
    def url(self) -> StoreUrl:
        """The table's location; absolute on a disk."""
        return StoreUrl.parse(self.path)

    @property
    def is_local(self) -> bool:
        """True if the table is on a disk."""
        return self.url.kind == "disk"
