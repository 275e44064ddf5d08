"""Every error that krishiv-spark raises on purpose.

    KrishivError
    ├── OptionError (also ValueError)   an option is unknown, misspelt or has a bad value
    ├── SchemaError                     rows have a type or shape that the format cannot carry
    ├── OffsetError                     a stored position cannot be used
    │   ├── OffsetVersionError          it was written by a newer version
    │   └── DataLossError               the data that it points to no longer exists
    ├── StorageError                    a store (disk, bucket, HDFS) cannot be reached, or refuses
    │   ├── LinkError                   a link is in the place of a file of krishiv-spark
    │   ├── NotExclusiveError           it cannot create a file exclusively
    │   └── UploadGoneError             another program has aborted the current upload
    ├── OutOfMemory (also MemoryError)  a Python process of Spark got no more memory
    ├── LogError                        the epoch log is damaged or its storage cannot contain one
    ├── CheckpointMismatch              the checkpoint plans other rows than the sink has committed
    ├── ManifestError (also ValueError) a job file has errors: all of them, each with its location
    ├── QueryFailed                     a query that a caller waits for has ended with an error
    └── SinkError                       an epoch did not become visible
        ├── BatchMismatch               a repeated batch has other rows
        ├── CommitRejected              the commit certainly did not happen
        ├── CommitUnknown               the commit may have happened: check before deciding anything
        └── Fenced                      another writer owns the query

An error crosses process borders inside Spark, so each of them pickles. What a caller may believe
after an error is its class; the text is for people and is never parsed.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "BatchMismatch",
    "CheckpointMismatch",
    "CommitRejected",
    "CommitUnknown",
    "DataLossError",
    "Fenced",
    "KrishivError",
    "LinkError",
    "LogError",
    "ManifestError",
    "NotExclusiveError",
    "OffsetError",
    "OffsetVersionError",
    "OptionError",
    "OutOfMemory",
    "QueryFailed",
    "SchemaError",
    "SinkError",
    "StorageError",
    "UploadGoneError",
]


class KrishivError(Exception):
    """Base of all errors of this package.

    Attributes:
        retriable: Whether the same call may succeed later without anyone changing anything.
    """

    retriable: ClassVar[bool] = False


class OptionError(KrishivError, ValueError):
    """An option is unknown, missing, misspelt, or its value is not acceptable."""


class SchemaError(KrishivError):
    """Rows have a column, type or shape that the format cannot carry."""


class OffsetError(KrishivError):
    """A stored position is damaged or cannot be used."""


class OffsetVersionError(OffsetError):
    """A stored position was written by a version of the format that is unknown here."""


class DataLossError(OffsetError):
    """The data between two positions no longer exists, wholly or in part."""


class StorageError(KrishivError):
    """A store cannot be reached, refuses a request, or lacks a required ability."""


class LinkError(StorageError):
    """A path that must not be a link is one, or is neither a plain file nor a folder."""


class NotExclusiveError(StorageError):
    """A store cannot create a file exclusively."""


class UploadGoneError(StorageError):
    """Another program has aborted an upload that is still being written."""


class OutOfMemory(KrishivError, MemoryError):
    """A Python process of Spark got no more memory; the text names the setting to raise."""


class LogError(KrishivError):
    """The epoch log is damaged, or its storage cannot create an entry exclusively."""


class CheckpointMismatch(KrishivError):
    """The checkpoint plans another epoch than the one that the sink has under this number.

    The checkpoint was rolled back, restored from an older copy, or recreated by a pipeline's full
    refresh; or it has lost the file with the id of its query, or belongs to another target. Nothing
    was written: skipping the epoch would lose rows, and writing it would repeat some.
    """


class ManifestError(KrishivError, ValueError):
    """A job file, or a file of depots, has errors; the text has a line for each.

    A line is ``file:line:column:``, followed by the error and its correction.
    """

    @property
    def lines(self) -> list[str]:
        """One for each mistake."""
        return str(self).splitlines()


class QueryFailed(KrishivError):
    """A streaming query has ended with an error; its text is the line with the reason.

    Args:
        line: What went wrong.
        passes: True if the error may be transient, so that the query may be restarted.
        name: The class of this module, or of a connector, that the query has failed with; empty
            for errors of others.
    """

    def __init__(self, line: str, *, passes: bool = False, name: str = "") -> None:
        super().__init__(line)
        self.passes = passes
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _query_failed, (str(self), self.passes, self.name)


def _query_failed(line: str, passes: bool, name: str) -> QueryFailed:
    return QueryFailed(line, passes=passes, name=name)


class SinkError(KrishivError):
    """An epoch did not become visible, or its visibility is unknown."""


class BatchMismatch(SinkError):
    """A repeated batch has other rows than the sink has under its number."""


class CommitRejected(SinkError):
    """The commit certainly did not happen; the epoch may be staged again."""


class CommitUnknown(SinkError):
    """The commit may have happened; no staged data may be changed before this is checked."""


class Fenced(SinkError):
    """Another writer has taken over the query; this one must not publish any more."""
