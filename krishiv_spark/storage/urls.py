"""In which store a path or URL lies: as Spark, Hadoop, PyArrow and users write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from posixpath import normpath

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.storage.paths import has_dot_part, local_path, url_scheme

__all__ = ["StoreUrl", "check_stays"]

_KINDS = {
    "s3": ("s3", "s3a", "s3n"),
    "gcs": ("gs", "gcs"),
    "azure": ("abfss", "abfs", "wasbs", "wasb", "az"),
    "hdfs": ("hdfs", "viewfs", "webhdfs", "swebhdfs"),
    "disk": ("file", "dbfs"),
    "memory": ("memory",),  # of this process, for tests
}
_KIND_OF = {scheme: kind for kind, schemes in _KINDS.items() for scheme in schemes}
_AUTHORITIES = {
    "s3": re.compile(r"[A-Za-z0-9._-]+"),
    "gcs": re.compile(r"[A-Za-z0-9._-]+"),
    "azure": re.compile(r"[^/?#@\\]+(@[A-Za-z0-9.-]+(:\d+)?)?"),
}
_SHOWN = "a path, " + ", ".join(f"{scheme}:" for scheme in _KIND_OF if scheme != "memory")


@dataclass(frozen=True)
class StoreUrl:
    """A place in a store.

    Attributes:
        kind: ``disk``, ``s3``, ``gcs``, ``azure`` or ``hdfs``.
        scheme: As written, in lower case; ``file`` for a path.
        authority: Bucket, Azure's container with or without an account, HDFS's NameNode or name
            of a service; empty on disks.
        path: Absolute on disks and HDFS; elsewhere the prefix. No slash at its end, nor, as a
            prefix, at its beginning.
    """

    kind: str
    scheme: str
    authority: str
    path: str

    @staticmethod
    def kind_of(text: str) -> str | None:
        """The kind of the store that a path or URL is in; None if its scheme is not known."""
        return _KIND_OF.get(url_scheme(text) or "file")

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """From what a user, or Spark, has written; nothing in it is escaped, as Hadoop takes it.

        Raises:
            OptionError: If the scheme is not known, a bucket is missing, or a ``file:`` URL names
                another machine.
        """
        scheme = url_scheme(text) or "file"
        kind = cls.kind_of(text)
        if kind is None:
            raise OptionError(
                f"{text!r} is on {scheme!r}, which is not known; known: {_SHOWN}. What is mounted "
                "on the driver's machine is written as a path, for Spark too. A checkpoint may lie "
                "where only Spark can read it, if the option 'queryId' names the query and "
                "'epochLog' a place for its epoch log"
            )
        if kind == "disk":
            return cls(kind, scheme, "", _on_disk(text))
        rest = text.partition(":")[2]
        authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
        path = normpath(f"/{path.strip('/')}")  # as Hadoop's Path does
        if kind == "hdfs":
            return cls(kind, scheme, authority, path)
        if not authority.partition("@")[0] and kind != "memory":
            raise OptionError(f"{text!r} names no bucket: write {scheme}://<bucket>/<path>")
        # What stands here becomes part of the name of a host, which a '#' would end.
        if (pattern := _AUTHORITIES.get(kind)) is not None and not pattern.fullmatch(authority):
            raise OptionError(f"{text!r}: {authority!r} is no name of a bucket or container")
        return cls(kind, scheme, authority, path[1:])

    @property
    def root(self) -> str:
        """Scheme and authority; empty for a disk."""
        return "" if self.kind == "disk" else f"{self.scheme}://{self.authority}"

    @property
    def bucket(self) -> str:
        """Bucket, or Azure's container."""
        return self.authority.partition("@")[0]

    @property
    def account(self) -> str:
        """Azure's storage account; empty if the URL does not name it."""
        return self._host.partition(".")[0]

    @property
    def endpoint(self) -> str | None:
        """Azure's endpoint for blobs, if the URL names one that is not of the public cloud."""
        account, _, domain = self._host.partition(".")
        cloud = domain.partition(".")[2]
        return None if cloud in {"", "core.windows.net"} else f"https://{account}.blob.{cloud}"

    @property
    def _host(self) -> str:
        return self.authority.partition("@")[2]

    def __str__(self) -> str:
        if self.kind == "disk":
            return self.path
        return f"{self.scheme}://{self.authority}/{self.path.lstrip('/')}".rstrip("/")

    def __truediv__(self, name: str) -> StoreUrl:
        """Return the place of a name below this one.

        Raises:
            StorageError: If the name leads out of this place: clients resolve ``..`` before they
                send a request, or the store does.
        """
        check_stays(f"{self}/{name}", name)
        path = f"{self.path.rstrip('/')}/{name}" if self.path else name
        return StoreUrl(self.kind, self.scheme, self.authority, path)


def check_stays(shown: str, path: str) -> None:
    """Refuse a path that a client or store would resolve to another one.

    Names that come out of logs and offsets are checked when those are read; this is the last line.

    Raises:
        StorageError: If it has a ``.`` or ``..`` part, or NUL.
    """
    if has_dot_part(path) or "\0" in path:
        raise StorageError(
            f"{shown!r} leads to another location, so nothing was asked of the store: a name in it "
            "has a part '.' or '..', or NUL, which no file of a table has"
        )


def _on_disk(text: str) -> str:
    """The absolute path of a plain one, of ``file:`` or of Databricks's ``dbfs:``."""
    if url_scheme(text) != "dbfs":
        return str(local_path(text, "the location"))
    path = normpath("/" + text.partition(":")[2].strip("/"))
    if path.startswith("/Volumes/"):
        return path
    return f"/dbfs{path}"  # where the machines of Databricks have it mounted
