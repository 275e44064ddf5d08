"""Locations of files as their stores understand them, however a table's metadata spells them."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import urlsplit

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT

__all__ = ["Location"]

_KINDS = {
    **dict.fromkeys(("", "file"), "disk"),
    **dict.fromkeys(("s3", "s3a", "s3n", "oss"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "azure"),
    **dict.fromkeys(("hdfs", "viewfs"), "hdfs"),
}
_BUCKETS = frozenset({"s3", "gcs"})
"""Stores whose URLs name a bucket, and whose host only settings choose."""

# Names of buckets, also outdated ones, and Amazon's ARNs of access points. Clients write the name
# in front of the endpoint's host, and obstore panics if that makes no host.
_BUCKET = re.compile(r"[A-Za-z0-9._:-]+")
_DEFAULT_PORT = ":8020"
"""Of HDFS: with it and without it, a URL names the same NameNode."""

# Clients of stores remove or convert these, or end the path there, each by rules of its own.
_AMBIGUOUS = re.compile(r"[\x00-\x1f\x7f\\]")
_AMBIGUOUS_IN_URL = re.compile(r"[?#]")


class Location(NamedTuple):
    """A location as its store understands it.

    Attributes:
        store: Kind of the store; all schemes of one kind are the same.
        host: The host that the location chooses; empty if only settings choose it.
        path: Absolute, with the bucket or container as its first part.
        is_plain: True if all clients of the store understand the path in the same way.
    """

    store: str
    host: str
    path: str
    is_plain: bool = True

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse a URL or a path of a disk, as PyIceberg does: a URL ends at ``?`` or ``#``.

        Raises:
            OptionError: If it is no URL, or names what cannot be a bucket.
        """
        try:
            url = urlsplit(text)
        except ValueError as error:
            raise OptionError(f"{FORMAT}: {text!r} is not a valid location: {error}") from error
        scheme = url.scheme.lower()
        store = _KINDS.get(scheme, scheme)
        is_plain = not _AMBIGUOUS.search(text) and not (scheme and _AMBIGUOUS_IN_URL.search(text))
        if store == "disk":
            path = os.path.abspath(url.path if scheme else text)
            return cls("disk", url.netloc.replace("localhost", ""), path, is_plain)
        is_plain = is_plain and not {".", ".."} & set(url.path.split("/"))
        if store == "azure":
            container, _, account = url.netloc.rpartition("@")
            host = account.lower().replace(".blob.", ".dfs.")
            return cls(store, host, f"/{container}{url.path}", is_plain)
        if store in _BUCKETS:
            if not _BUCKET.fullmatch(url.netloc):
                raise OptionError(
                    f"{FORMAT}: {text!r} names no bucket: {url.netloc!r} cannot be one"
                )
            return cls(store, "", f"/{url.netloc}{url.path}", is_plain)
        return cls(store, url.netloc.lower().removesuffix(_DEFAULT_PORT), url.path, is_plain)

    def is_below(self, folder: Location) -> bool:
        """Return True if this is inside of a folder, links of a disk followed.

        A path that clients of a store understand differently is inside of none, such as one that
        has a part ``..``.
        """
        if not (self.is_plain and folder.is_plain) or (self.store, self.host) != (
            folder.store,
            folder.host,
        ):
            return False
        inside, around = self.path, folder.path
        if self.store == "disk":
            inside, around = os.path.realpath(inside), os.path.realpath(around)
        return inside.startswith(f"{around.rstrip('/')}/")
