"""Ids of queries, and the content of Spark's checkpoint folder that sinks and commands read."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from krishiv_spark.errors import CheckpointMismatch, OptionError, StorageError
from krishiv_spark.messages.suggestions import line_of_id, restore_metadata
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.spark.offset_log import OffsetSeq
from krishiv_spark.spark.query_target import QueryTarget
from krishiv_spark.storage import ENVIRONMENT, Folder, Storage, StoreUrl

__all__ = [
    "BATCH_PREFIX",
    "BEGIN_FILE",
    "EPOCH_PROPERTY",
    "KRISHIV",
    "QUERY_ID_FILE",
    "QUERY_ID_PROPERTY",
    "REWOUND",
    "TARGET_FILES",
    "SparkCheckpoint",
    "checked_id",
]

_log = logging.getLogger(__name__)

BATCH_PREFIX = "batch-"
"""Prefix of the id of a batch job, before a random part. The id of a streaming query is Spark's."""

QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""Local property of a task that contains the id of its streaming query (``StreamExecution``)."""

EPOCH_PROPERTY = "streaming.sql.batchId"
"""Local property of a task that contains the number of its epoch (``MicroBatchExecution``)."""

KRISHIV = "krishiv"
"""The folder of a checkpoint that belongs to this package: epoch logs, and `QUERY_ID_FILE`."""

QUERY_ID_FILE = "query-id.json"
"""A second copy of Spark's ``metadata``. No epoch log and no log of a named batch has this name."""

BEGIN_FILE = "copied-after.json"
"""File of a copy or an import with the epoch after which it starts. No log has this name either."""

REWOUND = "krishiv-rewound"
"""Folder of a checkpoint with a folder for each rewind, which contains the files that it removed.

The names of these folders sort by time.
"""

TARGET_FILES = re.compile(r"target(?:\.([A-Za-z0-9_-]+))?\.json")
"""Pattern of the files that record the target of the query. If a batch has several outputs, each
name is part of a file name. No log has such a name, since it contains a dot."""

_QUERY_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")


def checked_id(query: object) -> str:
    """Return the id of a query unchanged; it becomes a part of paths and of transactional ids.

    Raises:
        ValueError: If it is not a valid id.
    """
    if not isinstance(query, str) or not _QUERY_ID.fullmatch(query):
        raise ValueError(
            f"{query!r} is not a valid query id: use up to 100 letters, digits, '-' and '_'"
        )
    return query


class _NamesCheckpoint(Protocol):
    """The options of a sink that names its checkpoint."""

    @property
    def checkpoint_location(self) -> str | None: ...

    @property
    def query_id(self) -> str | None: ...

    @property
    def storage(self) -> Storage: ...


@dataclass(frozen=True)
class SparkCheckpoint:
    """Spark's folder of a streaming query. For any process of the driver.

    Attributes:
        location: Path or URL, as the user gave it to Spark.
        storage: The settings of its store.
    """

    location: str
    storage: Storage = ENVIRONMENT

    @classmethod
    def of(cls, options: _NamesCheckpoint) -> SparkCheckpoint | None:
        """Return the checkpoint in options; None without one, or if `query_id` replaces it."""
        location = options.checkpoint_location
        if location is None or options.query_id is not None:
            return None
        return cls(location, options.storage)

    def query_id(self) -> str:
        """Return the id of the streaming query.

        Spark writes ``metadata`` before the first batch (``StreamMetadata``). If that file is lost,
        Spark silently creates a new id, and sinks would write epochs again that are committed under
        the old one. So the id is compared with the id that `record_query_id` has stored.

        Raises:
            OptionError: If there is no readable checkpoint at the location.
            CheckpointMismatch: If the id differs from the recorded one.
            StorageError: If the recorded id cannot be read.
        """
        try:
            query = _id_in(self._text("metadata", self.folder()))
        except StorageError as error:
            raise OptionError(
                f"the checkpoint {self.location} contains no query id: {error}"
            ) from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise OptionError(
                f"no query id in {self.location}/metadata: {error}; 'checkpointLocation' must "
                "be the one that Spark uses, readable from the driver's machine: as a whole "
                "URL if Spark's default file system is not the local one, with 'storage.…' "
                "options if the environment does not specify how its store is "
                f"reached{self._hint_of_lost_id()}"
            ) from error
        self._check_recorded(query)
        return query

    def record_query_id(self, query: str) -> None:
        """Store the id of the query durably, unless it is stored already. Driver.

        Called when an epoch has passed all checks, before any row is written. If the checkpoint is
        read-only, the query continues without this protection, and a warning is logged.

        Args:
            query: The id that Spark gives the query now.

        Raises:
            CheckpointMismatch: If another id is recorded.
            StorageError: If the recorded id cannot be read.
        """
        if self._check_recorded(query) or self._is_resting():
            return
        if self._record(
            QUERY_ID_FILE,
            f"{line_of_id(query)}\n",
            f"the id of query {query}",
            "if the file 'metadata' of the checkpoint is lost",
        ):
            _recorded.put(self, query)

    def _is_resting(self) -> bool:
        """Return True if an attempt to store a record failed a short time ago."""
        return time.monotonic() < (_next_write_s.get(self) or 0.0)

    def _record(self, file: str, text: str, content: str, lapse: str) -> bool:
        """Store a small file in `KRISHIV` durably. If that fails, log a warning and return False.

        Args:
            file: Name of the file.
            text: Its whole content. A concurrent process stores the same content.
            content: What the file contains, for the warning.
            lapse: The event that cannot be detected without the file, for the warning.
        """
        try:
            self.folder(KRISHIV).replace(file, text.encode())
        except (OSError, StorageError) as error:
            _log.warning(
                "%s could not be stored in %s/%s: %s. The query continues; but %s, that will "
                "not be noticed",
                content,
                self.location,
                KRISHIV,
                error,
                lapse,
            )
            _next_write_s.put(self, time.monotonic() + _REST_S)
            return False
        return True

    def known_query(self) -> str | None:
        """Return the id of the query; None if the checkpoint is new. Changes nothing.

        Raises:
            OptionError: If the checkpoint cannot be read.
            CheckpointMismatch: If the id differs from the recorded one, or was lost.
            StorageError: If the store cannot be reached.
        """
        if self.folder().read("metadata") is not None:
            return self.query_id()
        recorded = self._recorded_id()
        if recorded is None:
            return None
        raise CheckpointMismatch(
            f"the checkpoint {self.location} is that of query {recorded}, and its file 'metadata' "
            "is lost: Spark would make a new id, under which sinks would write again what they "
            f"have. Nothing was written: {restore_metadata(recorded)}; or use a new checkpoint and "
            "a new target"
        )

    # --- the target

    def recorded_target(self, output: str | None = None) -> QueryTarget | None:
        """Return the target that the query has written to; None if none is recorded.

        Args:
            output: Name of one of several outputs of a batch; None for a query with one sink.

        Raises:
            CheckpointMismatch: If the record is damaged.
            OptionError, StorageError: If it cannot be read.
        """
        name = _target_file(output)
        text = self.folder(KRISHIV).read(name)
        try:
            return None if text is None else QueryTarget.parse(text.decode())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            file = f"{self.location}/{KRISHIV}/{name}"
            raise CheckpointMismatch(
                f"{file} is damaged ({error}), so it cannot be checked that the query writes to "
                f"the same target as before. Nothing was written: if it does, remove {file}, which "
                "is then written again"
            ) from error

    def recorded_targets(self) -> dict[str | None, QueryTarget]:
        """Return all recorded targets by output.

        The target of a query with one sink has the key None.

        Raises:
            CheckpointMismatch, OptionError, StorageError: As `recorded_target`.
        """
        names = map(TARGET_FILES.fullmatch, self.folder(KRISHIV).names())
        outputs = sorted((match[1] for match in names if match), key=lambda name: name or "")
        found = {output: self.recorded_target(output) for output in outputs}
        return {output: target for output, target in found.items() if target is not None}

    def record_target(self, target: QueryTarget, output: str | None = None) -> QueryTarget | None:
        """Record the target that the query writes to from now on, durably, if it has changed.

        Driver.

        Called when an epoch has passed all checks, before any row is written.

        Args:
            target: The target of the epoch.
            output: As `recorded_target`.

        Returns:
            The previous target if this one replaces it; None otherwise.

        Raises:
            CheckpointMismatch, OptionError, StorageError: As `recorded_target`.
        """
        before = self.recorded_target(output)
        if before != target and not self._is_resting():
            self._record(
                _target_file(output),
                target.record(),
                f"the target {target}",
                "if the query is given another target",
            )
        return None if before is None or before.is_same(target) else before

    def forget_target(self) -> None:
        """Remove the record of the target, so that the next epoch records its own. Operator.

        Raises:
            OptionError, StorageError: If it cannot be removed.
        """
        self.folder(KRISHIV).remove([_target_file(None)])

    # --- Spark's files

    def begins_after(self) -> int | None:
        """Return the epoch after which a copy or an import starts; None if it is not recorded.

        Raises:
            OptionError: If the file that records it is damaged.
            StorageError: If it cannot be read.
        """
        text = self.folder(KRISHIV).read(BEGIN_FILE)
        try:
            return None if text is None else int(json.loads(text)["after"])
        except (ValueError, LookupError, TypeError) as error:
            raise OptionError(
                f"{self.location}/{KRISHIV}/{BEGIN_FILE} is damaged ({error}): put it back from a "
                "copy"
            ) from error

    def _check_recorded(self, query: str) -> bool:
        """Return True if the id of the query is recorded, False if no id is.

        Raises:
            CheckpointMismatch: If another id is recorded.
        """
        if _recorded.get(self) == query:
            return True
        recorded = self._recorded_id()
        if recorded is None:
            return False
        if recorded != query:
            raise CheckpointMismatch(
                f"the checkpoint {self.location} belongs to query {recorded}, but its file "
                f"'metadata' names query {query}: the file was lost, so that Spark created a "
                "new id, or was replaced. The sink would not recognize the epochs of this "
                "checkpoint, and would write them again. Nothing was written. Two ways on: "
                f"{restore_metadata(recorded)}; or use a new checkpoint and a new target, into "
                "which all rows that the sources still have are written (other rows are lost "
                "there). To copy a checkpoint for a second query, use 'krishiv-spark "
                "checkpoint copy'"
            )
        _recorded.put(self, query)
        return True

    def _recorded_id(self) -> str | None:
        """Return the stored id of the query; None before the first epoch that stores it.

        Raises:
            CheckpointMismatch: If the file is damaged.
        """
        text = self.folder(KRISHIV).read(QUERY_ID_FILE)
        try:
            return None if text is None else _id_in(text.decode())
        except (ValueError, LookupError, TypeError) as error:
            file = f"{self.location}/{KRISHIV}/{QUERY_ID_FILE}"
            raise CheckpointMismatch(
                f"{file} is damaged ({error}), so it cannot be checked that the file 'metadata' of "
                "the checkpoint is the query's own. Nothing was written: if it is, remove "
                f"{file}, which is then written again"
            ) from error

    def _hint_of_lost_id(self) -> str:
        """Return the end of an error message, which states how to restore a lost ``metadata``."""
        try:
            recorded = self._recorded_id()
        except (CheckpointMismatch, OptionError, OSError, StorageError):
            return ""
        return "" if recorded is None else f". If it was lost, {restore_metadata(recorded)}"

    def offset_seq(self, epoch: int) -> OffsetSeq | None:
        """Return Spark's entry for an epoch; None if it does not exist or cannot be read.

        It is for displays. A decision needs `read_offset_seq`.
        """
        try:
            return self.read_offset_seq(epoch)
        except (OSError, StorageError, ValueError):
            return None

    def read_offset_seq(self, epoch: int) -> OffsetSeq:
        """Return Spark's entry for an epoch.

        Raises:
            OptionError: If it does not exist, or cannot be parsed.
            OSError, StorageError: If it cannot be read. That says nothing about the epoch.
        """
        data = self.folder("offsets").read(str(epoch))
        if data is None:
            raise OptionError(f"offsets/{epoch} is not in {self.location}")
        try:
            return OffsetSeq.parse(data.decode())
        except ValueError as error:
            raise OptionError(f"offsets/{epoch} in {self.location}: {error}") from error

    def read_plan(self) -> tuple[str, PlannedOffsets]:
        """Return the id of the query and Spark's plan of its current epoch. Planner.

        Values that this process has read before are read again only if a listing of ``offsets``
        shows a change, or contains no versions.

        Raises:
            OptionError, CheckpointMismatch: As `query_id` and `planned_offsets`.
        """
        offsets = self.folder("offsets")
        versions = offsets.names()
        known = _known_ids.get(self)
        # Each entry of the log contains the time when its epoch was planned. So if an entry is
        # unchanged, so is the checkpoint, and the cached id is valid.
        if known is not None and versions.get(known.entry) == known.version:
            query = known.query
        else:
            query = self.query_id()
        planned = self._newest(offsets, versions)
        entry = str(planned.epoch)
        if version := versions[entry]:
            _known_ids.put(self, _KnownId(query, entry, version))
        return query, planned

    def planned_offsets(self) -> PlannedOffsets:
        """Return Spark's plan of the current epoch. Driver, operator.

        Spark writes ``offsets/<epoch>`` before it creates the writer of the epoch, so the newest
        entry belongs to the current epoch (``MicroBatchExecution``: ``walCommit``, then
        ``runBatch``).

        Raises:
            OptionError: If there is no plan.
            CheckpointMismatch: If the previous epoch is missing: a driver that ran while the
                checkpoint was rewound continues from its memory, and leaves out the rows between.
        """
        offsets = self.folder("offsets")
        return self._newest(offsets, offsets.names())

    def _newest(self, offsets: Folder, versions: Mapping[str, str]) -> PlannedOffsets:
        epochs = _epochs(versions)
        if not epochs:
            raise OptionError(
                f"no offsets in {self.location}/offsets, although Spark writes them before it "
                "starts an epoch; 'checkpointLocation' must be the one that Spark uses, "
                "readable from the driver's machine"
            )
        epoch = max(epochs)
        ends = self._ends(epoch, offsets, versions)
        begins = self._begins(epoch, offsets, versions)
        if begins is None:
            raise CheckpointMismatch(
                f"{self.location}/offsets has epoch {epoch}, but lacks epoch {epoch - 1}, which "
                "Spark always keeps and needs for a start: the checkpoint was rewound, or files "
                "of it were removed, while a driver of the query ran, so that rows would be lost. "
                "Nothing was written. Stop that driver; then 'krishiv-spark checkpoint rewind' "
                "with --to and the epoch before the missing ones, and start the query again"
            )
        return PlannedOffsets.of(epoch, begins, ends)

    def offsets_of(self, epoch: int) -> PlannedOffsets:
        """Return Spark's plan of an epoch.

        It starts at the end of the previous epoch, if that is known.

        Raises:
            FileNotFoundError: If Spark has removed it (``spark.sql.streaming.minBatchesToRetain``).
            ValueError: As `OffsetSeq.parse`.
        """
        offsets = self.folder("offsets")
        ends = self._ends(epoch, offsets, {})
        return PlannedOffsets.of(epoch, self._begins(epoch, offsets, {}) or {}, ends)

    def _begins(
        self, epoch: int, offsets: Folder, versions: Mapping[str, str]
    ) -> Mapping[str, str] | None:
        """Return the ends of the previous epoch, none before epoch 0; None if they are missing."""
        if epoch == 0:
            return {}
        try:
            return self._ends(epoch - 1, offsets, versions)
        except FileNotFoundError:
            return None

    def _ends(self, epoch: int, offsets: Folder, versions: Mapping[str, str]) -> Mapping[str, str]:
        """Return the offsets at the end of an epoch; `versions` are of a listing just made."""
        version = versions.get(str(epoch))
        text = _texts.get((self, epoch, version)) if version else None
        if text is None:
            text = self._text(epoch, offsets)
            if version:
                _texts.put((self, epoch, version), text)
        return OffsetSeq.parse(text).sources

    def is_committed(self, epoch: int) -> bool:
        """Return True if Spark has logged an epoch as completed (``commits/<epoch>``).

        Spark logs it after the sink's commit has returned, and before the next epoch starts.

        Raises:
            OSError: If a disk cannot be read. A caller must not treat this as False: it would end
                transactions again whose ids may be in use.
            StorageError: Likewise, in another store.
        """
        try:
            self._text(epoch, self.folder("commits"))
        except FileNotFoundError:
            return False
        return True

    def was_committed(self, epoch: int) -> bool:
        """Return True if a rewind removed an epoch that was completed. Operator.

        The newest rewind that removed the epoch decides: an epoch of this number may have been
        planned again after an earlier one. Returns False if the checkpoint has planned the epoch
        again since.

        Raises:
            OSError, StorageError: As `is_committed`.
        """
        if epoch in self.epochs():
            return False
        for name in sorted(self.folder(REWOUND).names(), reverse=True):
            place = StoreUrl.parse(self.location) / f"{REWOUND}/{name}"
            removed = replace(self, location=str(place))
            if epoch in removed.epochs():
                return removed.is_committed(epoch)
        return False

    def epochs(self) -> list[int]:
        """Return the epochs in Spark's offset log, in ascending order."""
        return sorted(_epochs(self.folder("offsets").names()))

    def committed_epochs(self) -> list[int]:
        """Return the epochs in Spark's commit log, in ascending order."""
        return sorted(_epochs(self.folder("commits").names()))

    def has_offsets(self) -> bool:
        """Return True if Spark has planned any epoch."""
        return bool(self.epochs())

    def has_commits(self) -> bool:
        """Return True if Spark has logged any epoch as completed."""
        return bool(self.committed_epochs())

    @staticmethod
    def _text(name: str | int, folder: Folder) -> str:
        """Return the text of one of Spark's files, such as the entry of an epoch in a log.

        Raises:
            FileNotFoundError: If the file does not exist.
        """
        data = folder.read(str(name))
        if data is None:
            raise FileNotFoundError(f"{folder!r}/{name} does not exist")
        return data.decode()

    def folder(self, name: str = "") -> Folder:
        """Return the text of one of Spark's files, such as an entry of a log."""
        url = StoreUrl.parse(self.location)
        return self.storage.folder(url / name if name else url)


def _target_file(output: str | None) -> str:
    return "target.json" if output is None else f"target.{output}.json"


def _id_in(text: str) -> str:
    """Return the id in a file such as ``metadata``.

    Raises:
        ValueError, LookupError, TypeError: If there is no valid id.
    """
    return checked_id(json.loads(text)["id"])


def _epochs(names: Iterable[str]) -> list[int]:
    """Return the epochs among the file names of one of Spark's logs, unsorted."""
    # Other names are ``9.compact`` and those of Hadoop's temporary and checksum files.
    return list(map(int, filter(str.isdigit, names)))


class _KnownId(NamedTuple):
    query: str
    entry: str
    version: str


_known_ids: LruCache[SparkCheckpoint, _KnownId] = LruCache(64)
"""The query's id by checkpoint, with an entry of the offset log that existed when it was read."""

_recorded: LruCache[SparkCheckpoint, str] = LruCache(64)
"""The query id that is known to be recorded in a checkpoint."""

_next_write_s: LruCache[SparkCheckpoint, float] = LruCache(64)
"""The time of the next attempt for a checkpoint in which a record could not be stored."""

_REST_S = 600.0
"""Pause after a failed attempt: each attempt may take seconds and logs a warning."""

_texts: LruCache[tuple[SparkCheckpoint, int, str], str] = LruCache(64)
"""Entries of offset logs, by checkpoint, epoch and the version in a listing."""
