"""Which snapshots and metadata files of a table stay, by the options or by the table itself.

A table that the sink makes says it in its properties, so that every query keeps to it and other
programs may change it. A table that somebody else has made is left as it is, unless options ask.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.commit_rules import find_named_ids
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import parse_count
from krishiv_spark.messages.redaction import excerpt
from krishiv_spark.runtime.once import warn_once

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = [
    "Retention",
    "default_properties",
    "is_expired_by_us",
    "metadata_properties",
    "warn_of_growth",
    "warn_of_refused",
]

_log = logging.getLogger(__name__)

_AGE_MS = "history.expire.max-snapshot-age-ms"
_LEAST = "history.expire.min-snapshots-to-keep"
_MOST = "krishiv.history.expire.max-snapshots-to-keep"
"""Iceberg has no name for it. A table that has it is expired by the sink; others have a keeper."""

# Of five days alone, Iceberg's default, an epoch a second would make 432 000 snapshots. The least
# lets a stream stand still for so many epochs, at any pace.
_SNAPSHOTS = {_AGE_MS: str(5 * 24 * 60 * 60 * 1000), _LEAST: "1000", _MOST: "10000"}

_DELETES = "write.metadata.delete-after-commit.enabled"
_VERSIONS = "write.metadata.previous-versions-max"
_FILES = {_DELETES: "true", _VERSIONS: "20"}

_MOST_AT_ONCE = 100
"""A commit expires no more: what has piled up goes with the next ones."""

_LUMP = 20
"""By a table's own rules no fewer go: to find them takes as long as a small commit does."""


@dataclass(frozen=True)
class Retention:
    """Which snapshots may expire.

    Attributes:
        least: As many of the newest stay, however old they are.
        most: No more than so many stay, however young they are; None for any number.
        age_ms: In between, those go that are older.
        lump: No fewer go together.
    """

    least: int
    most: int | None
    age_ms: int
    lump: int = 1

    @classmethod
    def of(cls, options: IcebergSinkOptions, properties: Mapping[str, str]) -> Retention | None:
        """What the options say, or else the table; None if no snapshot expires.

        Raises:
            OptionError: If a property of the table is no number.
        """
        keep, older = options.keep_snapshots, options.expire_older_than
        if keep == "all":
            return None
        if keep is not None or older is not None:
            return cls(keep or 1, None, older or 0)
        if not is_expired_by_us(properties):
            return None
        found = {**_SNAPSHOTS, **properties}
        least, most, age_ms = (_number(found, name) for name in (_LEAST, _MOST, _AGE_MS))
        return cls(least, most, age_ms, _LUMP)

    def expired(self, metadata: TableMetadata, now_ms: int) -> list[int]:
        """Ids of the snapshots that go with the next one, the oldest first, 100 at most.

        Other branches keep their whole history, and tags their snapshot. A snapshot expires by age
        only after all that were committed before it: the clocks of writers differ, and a history
        without one in its middle would end there.

        Args:
            metadata: Of the table, before the commit.
            now_ms: The time at which ages are measured, see `get_aging_time_ms`.
        """
        protected = set(find_named_ids(metadata))
        there = [one for one in metadata.snapshots if one.snapshot_id not in protected]
        count, limit_ms = len(there) + 1, now_ms - self.age_ms  # this commit adds the newest
        over = 0 if self.most is None else count - self.most
        old = sum(one.timestamp_ms <= limit_ms for one in there)
        if count - self.least < self.lump or max(over, old) < self.lump:
            return []  # without sorting them, as nearly always
        candidates = enumerate(sorted(there, key=_order)[: count - self.least])
        gone = takewhile(
            lambda pair: pair[0] < over or pair[1].timestamp_ms <= limit_ms, candidates
        )
        return [one.snapshot_id for _, one in islice(gone, _MOST_AT_ONCE)]


def is_expired_by_us(properties: Mapping[str, str]) -> bool:
    """Whether a table leaves the expiry of its snapshots to the sink."""
    return _MOST in properties and properties.get("gc.enabled", "true").lower() != "false"


def default_properties(options: IcebergSinkOptions) -> dict[str, str]:
    """Return the sink's own properties of a new table: those that the user did not give."""
    snapshots = {} if options.keep_snapshots == "all" else _SNAPSHOTS
    files = {} if options.keep_metadata_files == "all" else _FILES
    own = {**snapshots, **files}
    return {key: text for key, text in own.items() if key not in options.table_properties}


def metadata_properties(
    options: IcebergSinkOptions, properties: Mapping[str, str]
) -> dict[str, str]:
    """What `keepMetadataFiles` sets, on any table; nothing where it is so already."""
    keep = options.keep_metadata_files
    wanted = {} if keep is None else {_DELETES: "true", _VERSIONS: str(keep)}
    if keep == "all":
        wanted = {_DELETES: "false"} if _is_bounded(properties) else {}
    return {} if wanted.items() <= properties.items() else wanted


def _is_bounded(properties: Mapping[str, str]) -> bool:
    """Whether older metadata files are removed."""
    return properties.get(_DELETES, "false").lower() == "true"


def warn_of_growth(table: Table, options: IcebergSinkOptions) -> None:
    """Say once in a process what of a table's metadata grows without an end. Planner.

    Raises:
        OptionError: If a property of the table is no number.
    """
    found = table.metadata.properties
    properties = {**found, **metadata_properties(options, found)}
    growing = []
    if Retention.of(options, properties) is None and options.keep_snapshots != "all":
        growing.append("snapshots: set 'keepSnapshots' or 'expireOlderThan'")
    if not _is_bounded(properties) and options.keep_metadata_files != "all":
        growing.append("metadata files: set 'keepMetadataFiles'")
    uuid = str(table.metadata.table_uuid)
    if growing:
        warn_once(
            _log,
            uuid,
            "%s: with each epoch, table %s permanently keeps more of its %s; 'all' keeps them "
            "without this warning",
            FORMAT,
            options.table_name,
            ", and of its ".join(growing),
        )


def warn_of_refused(table: Table, options: IcebergSinkOptions, error: Exception) -> None:
    """Warn that a new table was created without the sink's own properties. Planner.

    Args:
        table: The new table; this is its one warning in this process, so none of growth follows.
        options: Of the sink.
        error: The catalog's refusal.
    """
    names = ", ".join(sorted(default_properties(options)))
    why = excerpt(str(error), options.secrets())
    warn_once(
        _log,
        str(table.metadata.table_uuid),
        "%s: the catalog refuses properties that the sink gives a new table, so table %s was "
        "created without them (%s): %s. Unless the catalog expires snapshots and old metadata "
        "files, set 'keepSnapshots' or 'expireOlderThan'",
        FORMAT,
        options.table_name,
        names,
        why,
    )


def _order(snapshot: Snapshot) -> int:
    # Version 1 has no such numbers: metadata lists its snapshots in the order of their commits.
    return snapshot.sequence_number or 0


def _number(properties: Mapping[str, str], name: str) -> int:
    number = parse_count(properties[name])
    if number is None:
        raise OptionError(
            f"{FORMAT}: table property {name!r} is {properties[name]!r}: it must be a number"
        )
    return number
