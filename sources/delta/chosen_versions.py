"""The versions that options choose, by number or by time. Driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.delta.commit_log import commit_name, read_commit_info
from krishiv_spark.delta.opening import LOG, explain_errors, open_table
from krishiv_spark.delta.options import FORMAT, DeltaOptions
from krishiv_spark.delta.table_features import check_readable
from krishiv_spark.errors import DataLossError, OptionError
from krishiv_spark.runtime.epoch_times import format_time, to_datetime

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from krishiv_spark.sources.delta.options import DeltaSourceOptions

__all__ = ["find_commit_time_ms", "find_first_version", "find_last_version", "open_for_batch"]


def open_for_batch(options: DeltaSourceOptions) -> DeltaTable:
    """Return the table at the version that a batch reads, or at the last one of its changes.

    The columns of the rows are those of this version.

    Raises:
        OptionError: If no version is that old, or if this package cannot read the table.
    """
    version = options.version_as_of
    if options.timestamp_as_of is not None:
        version = _find_version(options, options.timestamp_as_of)
        if version < 0:
            raise OptionError(
                f"{FORMAT}: {options.path} has no version at or before "
                f"{format_time(options.timestamp_as_of)}, the value of 'timestampAsOf': the "
                f"first one is of {format_time(find_commit_time_ms(options, 0))}"
            )
    elif options.ending_version is not None or options.ending_timestamp is not None:
        version = max(find_last_version(options, open_table(options).version()), 0)
    table = open_table(options, version)
    check_readable(table, options.path)
    return table


def find_last_version(options: DeltaSourceOptions, newest: int) -> int:
    """Return the last version of a batch of changes; -1 if it is before the first one."""
    if options.ending_timestamp is not None:
        return _find_version(options, options.ending_timestamp)
    return newest if options.ending_version is None else min(options.ending_version, newest)


def find_first_version(options: DeltaOptions, time_ms: int) -> int:
    """Return the first version whose commit is not before a time."""
    version = _find_version(options, time_ms)
    is_before = version >= 0 and find_commit_time_ms(options, version) < time_ms
    return version + 1 if is_before else max(version, 0)


def _find_version(options: DeltaOptions, time_ms: int) -> int:
    """Return the newest version whose commit is not after a time; -1 before the first one."""
    table = open_table(options)
    newest = table.version()
    with explain_errors(options, "find the version at a time of"):
        table.load_as_version(to_datetime(time_ms))
    version = table.version()  # by the library's times, which may be those of the writers
    while version < newest and find_commit_time_ms(options, version + 1) <= time_ms:
        version += 1
    while version >= 0 and find_commit_time_ms(options, version) > time_ms:
        version -= 1
    return version


def find_commit_time_ms(options: DeltaOptions, version: int) -> int:
    """Return the time of a commit, milliseconds since 1970 UTC: the table's own, or its file's.

    Raises:
        DataLossError: If the log does not have the commit any more.
        StorageError: If it cannot be read.
    """
    recorded = read_commit_info(options, version).get("inCommitTimestamp")
    if isinstance(recorded, int):
        return recorded
    path = str(options.url / LOG / commit_name(version))
    with explain_errors(options, "find a commit in the log of"):
        found = options.storage.files(options.url).identity(path)
    if found is None:
        raise DataLossError(
            f"{FORMAT}: version {version} of {options.path} is not in the log any more: keep the "
            "log for longer ('delta.logRetentionDuration'), or start with another checkpoint"
        )
    return found.modified_ns // 1_000_000
