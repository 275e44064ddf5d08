"""The table properties that record the committed epoch of each query. Driver.

The snapshot of an epoch has query and epoch in its summary; properties of the table have them too,
since summaries disappear when their snapshots expire. Both are committed together with the rows.

A catalog that refuses properties would refuse the first commit after all of its work. One that
drops them would accept every epoch, and a restart would write the newest one again. So a query
commits its property once without an epoch before it writes its first row (`enrol_query`), and the
response of the catalog must contain it. If it does not, a tag of the property's name records the
epochs instead: it is moved to each epoch's snapshot by the same commit, and no program expires the
snapshot of a tag, so its summary stays. The summary has the key of upserts too (`KeyRule`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

from krishiv_spark.errors import SinkError
from krishiv_spark.iceberg.catalogs import (
    CatalogFailedError,
    explain_catalog_errors,
    forget_catalog,
    open_table,
)
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import (
    DIGEST_PREFIX,
    EPOCH_KEY,
    EPOCH_PREFIX,
    NO_EPOCH,
    OFFSETS_PREFIX,
    QUERY_KEY,
    SnapshotIndex,
    find_digest,
    find_query_id,
    iterate_ancestors,
    parse_count,
)
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from krishiv_spark.sinks.iceberg.epoch_snapshot import EpochTransaction
from krishiv_spark.sinks.iceberg.lost_races import LostRaces
from krishiv_spark.spark.checkpoint import BATCH_PREFIX, SparkCheckpoint

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Summary

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = [
    "EpochMark",
    "EpochProgress",
    "enrol_query",
    "has_epoch",
    "has_epoch_property",
    "has_epoch_tag",
    "is_refusal",
    "is_repeatable",
    "read_committed_epoch",
    "read_epoch_of_rows",
    "stage_epoch",
    "stage_mark",
    "stage_tag",
    "to_summary",
]

_log = logging.getLogger(__name__)

_DIGEST = "krishiv.plan"

_MAX_OFFSETS = 16_384
"""Characters of the offsets that a property may have: each metadata file repeats them."""

_REFUSALS = (BadRequestError, ForbiddenError, NotImplementedError)

_TRANSIENT = frozenset({408, 421, 423, 425})
"""Status codes after which the same request is worth another attempt."""


@dataclass(frozen=True)
class EpochProgress:
    """The positions of the sources at the end of an epoch.

    Attributes:
        watermark: The lowest watermark of the sources in epoch milliseconds: every older row that
            is not late has arrived by this snapshot. None if no source has a watermark.
        offsets: The offset of each source, as JSON; None if it is not known, or too long.
    """

    watermark: int | None = None
    offsets: str | None = None

    @classmethod
    def read(cls, checkpoint: SparkCheckpoint, epoch: Epoch) -> EpochProgress:
        """Read the offsets that Spark logged before it ran an epoch.

        Args:
            checkpoint: The checkpoint of the query.
            epoch: An epoch whose offsets Spark has logged.
        """
        planned = checkpoint.offset_seq(epoch.number)
        if planned is None:
            return cls()
        content = {"epoch": epoch.number, "offsets": planned.objects}
        text = json.dumps(content, separators=(",", ":"), sort_keys=True)
        is_short = bool(planned.objects) and len(text) <= _MAX_OFFSETS
        watermark_ms = min(planned.source_watermarks_ms, default=None)
        return cls(watermark_ms, text if is_short else None)

    @property
    def summary(self) -> dict[str, str]:
        """The entries in the summary of the epoch's snapshot."""
        return {} if self.watermark is None else {"krishiv.watermark": str(self.watermark)}

    def to_properties(self, query: str) -> dict[str, str]:
        """Return the table properties of a query's newest epoch.

        Offsets are not in the summaries: each metadata file would repeat those of all epochs.
        """
        return {} if self.offsets is None else {f"{OFFSETS_PREFIX}{query}": self.offsets}


def to_summary(epoch: Epoch) -> dict[str, str]:
    """Return the entries in the summary of the epoch's snapshot."""
    digest = {} if epoch.digest is None else {_DIGEST: epoch.digest}
    return {QUERY_KEY: epoch.query, EPOCH_KEY: str(epoch.number), **digest}


class EpochMark(NamedTuple):
    """The kinds of records of the query's newest epoch that a commit has.

    Attributes:
        is_tagged: A tag names the snapshot of the epoch.
        has_properties: Properties have the number of the epoch.
    """

    is_tagged: bool
    has_properties: bool

    @classmethod
    def choose(cls, metadata: TableMetadata, query: str, *, is_refused: bool) -> EpochMark:
        """Return the kind that the table has; both if it is not known what the catalog keeps.

        Args:
            metadata: Metadata of the table before the commit.
            query: Id of the query, or name of a numbered job.
            is_refused: Whether the catalog has refused properties to an earlier attempt.
        """
        has_property, has_tag = has_epoch_property(metadata, query), has_epoch_tag(metadata, query)
        is_property_tried = not (has_tag or is_refused)
        return cls(has_tag or not has_property, has_property or is_property_tried)


def stage_mark(
    transaction: EpochTransaction, epoch: Epoch, progress: EpochProgress, mark: EpochMark
) -> None:
    """Stage the record of an epoch as the newest one of its query."""
    if mark.is_tagged:
        stage_tag(transaction, f"{EPOCH_PREFIX}{epoch.query}")
    if mark.has_properties:
        stage_epoch(transaction, epoch, progress)


def stage_epoch(transaction: EpochTransaction, epoch: Epoch, progress: EpochProgress) -> None:
    """Stage the properties that record an epoch as the newest one of its query."""
    new = {**_to_properties(epoch), **progress.to_properties(epoch.query)}
    transaction.set_properties(new)
    outdated = _find_outdated_offsets(transaction.table_metadata, epoch.query)
    if removed := [name for name in outdated if name not in new]:
        transaction.remove_properties(*removed)


def stage_tag(transaction: EpochTransaction, name: str) -> None:
    """Stage a tag that keeps the snapshot of this commit, and the record in its summary."""
    kept = {
        "ref-name": name,
        "type": "tag",
        "snapshot-id": transaction.producer.snapshot_id,
    }
    transaction.stage(SetSnapshotRefUpdate.model_validate(kept))


def _to_properties(epoch: Epoch) -> dict[str, str]:
    number = str(epoch.number)
    # The digest includes the number, since an operator may change the other property alone.
    digest = (
        {}
        if epoch.digest is None
        else {f"{DIGEST_PREFIX}{epoch.query}": f"{number}:{epoch.digest}"}
    )
    return {f"{EPOCH_PREFIX}{epoch.query}": number, **digest}


def _find_outdated_offsets(metadata: TableMetadata, query: str) -> list[str]:
    """Return the names of the properties with offsets that an epoch of a query sets or removes.

    These are its own property, and those of queries that no snapshot of the table belongs to.
    """
    found = [name for name in metadata.properties if name.startswith(OFFSETS_PREFIX)]
    own = f"{OFFSETS_PREFIX}{query}"
    # The usual case, which needs no iteration over all snapshots.
    if found in ([], [own]):
        return found
    present = {f"{OFFSETS_PREFIX}{find_query_id(snapshot)}" for snapshot in metadata.snapshots}
    return [name for name in found if name == own or name not in present]


def read_committed_epoch(metadata: TableMetadata, query: str) -> CommittedEpoch | None:
    """Return the newest epoch of a query that is in the table.

    The property decides. Without one (of a batch job, in a catalog that keeps none, or if a program
    has removed it), the newest epoch in the summaries of the remaining snapshots is returned: a
    tag keeps the newest one (`EpochMark`).

    Returns:
        Its number, and its digest if that is known; None if there is no epoch.

    Raises:
        SinkError: If the property is not a number, or older than the table's rows.
    """
    number = metadata.properties.get(f"{EPOCH_PREFIX}{query}")
    if number is None or number == NO_EPOCH:
        found = _iter_summaries(metadata, query)
        return max(found, default=None, key=lambda committed: committed.epoch)
    epoch = parse_count(number)
    if epoch is None:
        raise SinkError(
            f"krishiv-iceberg: table property '{EPOCH_PREFIX}{query}' is {number!r}, not the "
            "number of an epoch: set it to the epoch that the table really has"
        )
    _check_newest(metadata, query, epoch)
    return CommittedEpoch(epoch, find_digest(metadata.properties, query, number))


def _check_newest(metadata: TableMetadata, query: str, epoch: int) -> None:
    """Refuse a property that is older than the rows of the table.

    Raises:
        SinkError: If the property is older: the epochs in between would be written again.
    """
    of_rows = read_epoch_of_rows(metadata, query)
    if of_rows is not None and of_rows > epoch:
        raise SinkError(
            f"krishiv-iceberg: table property '{EPOCH_PREFIX}{query}' is {epoch}, but the table "
            f"has the rows of epoch {of_rows} of the query: the catalog did not keep the property "
            "of that commit, or it was changed since. Nothing was written. Set it to "
            f"{of_rows}, and have the catalog keep the table properties of each commit"
        )


def has_epoch_tag(metadata: TableMetadata, query: str) -> bool:
    """Return True if a tag records the epochs of a query, in a catalog that keeps no properties."""
    return f"{EPOCH_PREFIX}{query}" in metadata.refs


def has_epoch_property(metadata: TableMetadata, query: str) -> bool:
    """Return True if the table has the property of a query, with or without an epoch."""
    return f"{EPOCH_PREFIX}{query}" in metadata.properties


def is_repeatable(query: str, txn_app_id: str | None) -> bool:
    """Return True if an epoch may be committed again after a restart.

    A batch job without a number is not repeatable: its id is used once.
    """
    return txn_app_id is not None or not query.startswith(BATCH_PREFIX)


def has_epoch(metadata: TableMetadata, newest: CommittedEpoch, epoch: Epoch) -> bool:
    """Return True if a table has an epoch of a query, and not a different one with its number.

    Args:
        metadata: The metadata of the table.
        newest: The newest epoch of the query in the table, this one or a later one.
        epoch: Compared by number and digest; by number alone if either digest is unknown.
    """
    found = [newest, *_iter_summaries(metadata, epoch.query)]
    same = [committed.digest for committed in found if committed.epoch == epoch.number]
    return any(None in {digest, epoch.digest} or digest == epoch.digest for digest in same)


def read_epoch_of_rows(metadata: TableMetadata, query: str) -> int | None:
    """Return the newest epoch of a query among the ancestors of the table's current snapshot.

    It differs from `read_committed_epoch` if the table was rolled back, which does not change
    properties.

    Returns:
        None if no remaining snapshot decides it; -1 if a rollback has undone the query's snapshots,
        and those before them have expired.
    """
    oldest = 0
    for snapshot in iterate_ancestors(SnapshotIndex(metadata), metadata.current_snapshot_id):
        oldest = snapshot.sequence_number or 0
        if (summary := snapshot.summary) is not None and find_query_id(snapshot) == query:
            return _parse_epoch(summary, query)
    # A snapshot that a tag keeps may be older than all remaining ancestors, but not newer.
    later = (one for one in metadata.snapshots if (one.sequence_number or 0) > oldest)
    return -1 if any(find_query_id(one) == query for one in later) else None


def _iter_summaries(metadata: TableMetadata, query: str) -> Iterator[CommittedEpoch]:
    for snapshot in metadata.snapshots:
        if (summary := snapshot.summary) is not None and find_query_id(snapshot) == query:
            yield CommittedEpoch(_parse_epoch(summary, query), summary.get(_DIGEST))


def _parse_epoch(summary: Summary, query: str) -> int:
    text = summary.get(EPOCH_KEY)
    number = parse_count(text or "0")
    if number is None:
        raise SinkError(
            f"krishiv-iceberg: the summary of a snapshot of query {query} has {EPOCH_KEY!r} = "
            f"{text!r}, not the number of an epoch: the table's metadata was changed"
        )
    return number


class _PropertyRefusedError(Exception):
    """The catalog refuses the property of a query, or does not keep it."""


def enrol_query(table: Table, options: IcebergSinkOptions, query: str) -> Table:
    """Commit the property of a query without an epoch, unless the table has it. Driver.

    If the process dies after this, the property remains without an epoch, which counts as none.

    Args:
        table: The table as it was loaded last.
        options: Options of the sink.
        query: Id of the query, or name of a numbered job.

    Returns:
        The table after the commit; without the property if a tag will record the epochs.

    Raises:
        OptionError: If the table is missing, or the login is wrong.
        CatalogFailedError: If the catalog does not respond, or other commits are always faster.
    """
    try:
        return _commit_property(table, options, query)
    except _PropertyRefusedError as error:
        warn_once(
            _log,
            f"tag {table.metadata.table_uuid} {query}",
            "%s: the catalog keeps no property for query %s of table %s, so the tag "
            "'krishiv.epoch.%s' of the table records its epochs. It keeps the snapshot of the "
            "newest one: do not remove it as long as the query exists. The reason: %s",
            FORMAT,
            query,
            options.table_name,
            query,
            error,
        )
        return table


def _commit_property(table: Table, options: IcebergSinkOptions, query: str) -> Table:
    """Commit the property of a query, as `enrol_query` does.

    Raises:
        _PropertyRefusedError: If the catalog refuses the property, or does not keep it.
        OptionError: If the table is missing, or the login is wrong.
        CatalogFailedError: If the catalog does not respond, or other commits are always faster.
    """
    backoff, lost = options.commit_backoff(), LostRaces()
    while not has_epoch_property(table.metadata, query):
        error, base = _try_to_set(table, options, query), table.metadata
        if error is None and not has_epoch_property(table.metadata, query):
            raise _to_dropped_error(options, query)
        if error is not None:
            # The table is loaded even if the time is up: the commit may have succeeded.
            may_continue = backoff.pause()
            table = open_table(options)
            if isinstance(error, CommitFailedException):
                lost.record(base, table.metadata)
            if not may_continue and not has_epoch_property(table.metadata, query):
                raise _to_failure(options, error, lost)
    return table


def is_refusal(error: Exception) -> bool:
    """Return True if a REST catalog has refused a request because of its content."""
    if type(error) is not RESTError:
        return isinstance(error, _REFUSALS)
    # 422, and codes without a class, some of which a gateway sends on its own.
    answer = getattr(error.__cause__, "response", None)
    return getattr(answer, "status_code", None) not in _TRANSIENT


def _try_to_set(table: Table, options: IcebergSinkOptions, query: str) -> Exception | None:
    """Commit the property once; return an error after which another attempt may succeed."""
    transaction = EpochTransaction(table)
    # Without this, a request that arrives late would overwrite the epoch of a faster driver.
    head = {"ref": MAIN_BRANCH, "snapshot-id": table.metadata.current_snapshot_id}
    transaction.require(AssertRefSnapshotId.model_validate(head))
    transaction.set_properties({f"{EPOCH_PREFIX}{query}": NO_EPOCH})
    try:
        transaction.compare_and_set()
    except CommitFailedException as error:
        return error
    except (NoSuchTableError, UnauthorizedError):
        with explain_catalog_errors(options, f"set a property of table {options.table_name}"):
            raise
    except Exception as error:  # noqa: BLE001  it may have succeeded: the caller loads the table
        if is_refusal(error):
            raise _to_refusal(options, query, error) from None
        forget_catalog(options)  # its connection may be inside a failed transaction
        return error
    return None


def _to_refusal(options: IcebergSinkOptions, query: str, error: Exception) -> _PropertyRefusedError:
    reason = options.describe_error(error)
    return _PropertyRefusedError(
        f"the catalog refuses to set the property '{EPOCH_PREFIX}{query}' of table "
        f"{options.table_name}: {reason}"
    )


def _to_dropped_error(options: IcebergSinkOptions, query: str) -> _PropertyRefusedError:
    return _PropertyRefusedError(
        f"the catalog does not keep the properties of table {options.table_name}: it "
        f"accepted a commit that sets '{EPOCH_PREFIX}{query}', and the table in its response lacks "
        "the property"
    )


def _to_failure(
    options: IcebergSinkOptions, error: Exception, lost: LostRaces
) -> CatalogFailedError:
    reason = "; ".join(filter(None, [options.describe_error(error), lost.describe()]))
    return CatalogFailedError(
        f"{FORMAT}: the first commit of a query to table {options.table_name}, which sets a "
        f"property, did not succeed within {options.commit_timeout / 1000:g} s ('commitTimeout'): "
        f"{reason}. No row was written; restart the query"
    )
