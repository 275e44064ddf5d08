"""Every error that krishiv-spark raises on purpose.

    KrishivError
    ├── OptionError (also ValueError)   an option is unknown, misspelt or has a bad value
    ├── SchemaError                     rows have a type or shape that the format cannot carry
    ├── OffsetError                     a stored position cannot be used
    │   ├── OffsetVersionError          it was written by a newer version
    │   └── DataLossError               the data that it points to is no longer there
    ├── StorageError                    a store (disk, bucket, HDFS) cannot be reached, or refuses
    │   ├── LinkError                   a link is where a file of krishiv-spark's has to be
    │   ├── NotExclusiveError           it cannot create a file exclusively
    │   └── UploadGoneError             somebody has aborted what is being written
    ├── LogError                        the epoch log is damaged or its storage cannot hold one
    ├── CheckpointMismatch              the checkpoint plans other rows than the sink holds
    ├── ManifestError (also ValueError) a job file has mistakes: all of them, each with its place
    ├── QueryFailed                     a query that somebody waits for has ended with an error
    └── SinkError                       an epoch did not become visible
        ├── BatchMismatch               a batch that comes again has other rows
        ├── CommitRejected              it certainly did not happen
        ├── CommitUnknown               it may have happened: look before deciding anything
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
    """A stored position was written by a version of the format that is not known here."""


class DataLossError(OffsetError):
    """The data between two positions is no longer there, wholly or in part."""


class StorageError(KrishivError):
    """A store cannot be reached, refuses, or cannot do what is needed of it."""


class LinkError(StorageError):
    """A link, or something else than a plain file or folder, is where none is followed."""


class NotExclusiveError(StorageError):
    """A store cannot create a file exclusively."""


class UploadGoneError(StorageError):
    """Somebody has aborted an upload that is still being written."""


class LogError(KrishivError):
    """The epoch log is damaged, or its storage cannot create an entry exclusively."""


class CheckpointMismatch(KrishivError):
    """The checkpoint plans another epoch than the one of its number that the sink holds.

    It was rolled back, restored from an older copy, or begun anew by a pipeline's full refresh; or
    it has lost the file with the id of its query, or belongs to another target. Nothing was
    written: to skip the epoch would lose rows, to write it would repeat some.
    """


class ManifestError(KrishivError, ValueError):
    """A job file, or a file of depots, has mistakes; the text has a line for each.

    A line is ``file:line:column: what is wrong, and what to do``.
    """

    @property
    def lines(self) -> list[str]:
        """One for each mistake."""
        return str(self).splitlines()


class QueryFailed(KrishivError):
    """A streaming query has ended with an error; its text is the line that says why.

    Args:
        line: What went wrong.
        passes: Whether it may pass by itself, so that the query may be started again.
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
    """An epoch did not become visible, or it is not known whether it did."""


class BatchMismatch(SinkError):
    """A batch that comes again has other rows than those that the sink holds under its number."""


class CommitRejected(SinkError):
    """The commit certainly did not happen; the epoch may be staged again."""


class CommitUnknown(SinkError):
    """The commit may have happened; nothing staged may be touched before that is looked up."""


class Fenced(SinkError):
    """Another writer has taken the query over; this one must not publish any more."""
