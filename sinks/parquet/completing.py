"""What becomes visible in a folder of a store, and when. Driver.

Files are uploads that nobody has completed yet; an intent names them, and whoever finishes it
completes them, side by side. To complete one again does nothing. But an upload that is gone, while
its file is not there, may have been aborted, or completed, and the file removed since: by another
job that overwrites the table, or by its owner. So `finish` leaves a mark when all is visible, and
who finds it looks no further.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from krishiv_spark.errors import CommitRejected, CommitUnknown, SinkError, StorageError
from krishiv_spark.parquet.identity import table_id
from krishiv_spark.parquet.store_progress import StoreTableLog
from krishiv_spark.runtime.retry import map_in_parallel
from krishiv_spark.sinks.base import Epoch, OutputMode
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableLogView, TableParticipant
from krishiv_spark.sinks.parquet.tables import StoreTable
from krishiv_spark.sinks.parquet.unfinished import discard_open, is_due
from krishiv_spark.sinks.parquet.values import StagedUpload, StagedUploads
from krishiv_spark.sinks.participant import LostIntentError
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage import UploadState

__all__ = ["UploadParticipant"]

_LOOKED_AT_AFTER_MS = 3_600_000
_EXPIRES_AFTER_MS = 86_400_000
"""Rules of a bucket that abort uploads count in days. A younger one was aborted by a person, or its
file was visible and has been removed: an epoch of such is not simply staged again."""


class UploadParticipant(TableParticipant[StagedUploads]):
    """Completes the uploads of a query, and aborts those that nobody will complete.

    Args:
        options: Of the sink.
        table: The table's folder.
        mode: Whether epochs add or replace.
        view: Of the log.
        streaming: Whether epochs follow one another.
    """

    staged_type = StagedUploads

    def __init__(
        self,
        options: ParquetSinkOptions,
        table: StoreTable,
        mode: OutputMode,
        view: TableLogView,
        *,
        streaming: bool,
    ) -> None:
        super().__init__(table, options, view, streaming=streaming)
        self._table = table
        self._mode = mode
        self._is_due = False
        self._newest: dict[str, int | None] = {}

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[StagedUploads], salvaged: Sequence[StagedUploads]
    ) -> Sequence[StagedUploads]:
        """Committer: uploads that are old may have been aborted. In mode REPLACE, what will go.

        Raises:
            CommitRejected: If one is gone.
        """
        del salvaged  # no part of an epoch is ever salvaged
        old = [file for file in _files(staged) if _age_ms(file) > _LOOKED_AT_AFTER_MS]
        gone = [file for file, became in self._look(old).items() if became is UploadState.MISSING]
        if gone:
            raise CommitRejected(
                f"epoch {epoch.number}: {self._shown(gone)} before it was published; nothing is "
                "visible of the epoch: restart the query, which stages it again"
            )
        if self._mode is OutputMode.APPEND:
            return staged
        return [*staged, StagedUploads(removes=tuple(self.replaced(epoch)))]

    def finish(self, epoch: Epoch, staged: Sequence[StagedUploads]) -> None:
        """Driver: complete every upload side by side, then remove what is replaced.

        Raises:
            LostIntentError: If uploads are so old that the store may have aborted them, and nothing
                is visible.
            CommitUnknown: If some are gone otherwise, or the store does not answer.
        """
        try:
            files = _files(staged)
            completed = map_in_parallel(self._table.uploads.complete, [f.upload for f in files])
            gone = [file for file, visible in zip(files, completed, strict=True) if not visible]
            if gone:
                raise self._lost(epoch, gone, is_visible=any(completed))
            self._remove_replaced(staged)
            self._table.log_of(epoch.query).mark_finished(epoch.generation or 0)
        except StorageError as error:
            raise self._unknown(epoch, error) from error

    def finish_or_salvage(self, epoch: Epoch, staged: Sequence[StagedUploads]) -> None:
        """Driver: `finish`, unless an upload is gone: then nothing more shall become visible.

        Raises:
            LostIntentError: As `finish`.
            CommitUnknown: As `finish`.
        """
        try:
            found = self._look(_files(staged))
            gone = [file for file, became in found.items() if became is UploadState.MISSING]
            if gone and UploadState.VISIBLE not in found.values() and _may_have_expired(gone):
                self._abort(staged)
                found = self._look(_files(staged))  # somebody else may have completed some
        except StorageError as error:
            raise self._unknown(epoch, error) from error
        if gone:
            raise self._lost(epoch, gone, is_visible=UploadState.VISIBLE in found.values())
        self.finish(epoch, staged)

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: `finish` leaves a mark; and Spark does, when the commit of a stream has returned.

        The mark of a generation may be lost to an older driver, which finishes late.
        """
        if self._table.log_of(epoch.query).is_finished(epoch.generation or 0):
            return True
        is_job = epoch.query.startswith(BATCH_PREFIX)
        checkpoint = None if is_job else self._options.checkpoint_of_epochs()
        return checkpoint is not None and checkpoint.is_committed(epoch.number)

    def discard(self, staged: Sequence[StagedUploads]) -> None:
        """Driver: remove what no intent names."""
        map_in_parallel(self._table.uploads.discard, [file.upload for file in _files(staged)])

    def abandon(self, epoch: Epoch) -> None:
        """Driver: remove what failed attempts have left open."""
        discard_open(self._table, epoch, self._view.is_owner)

    def forget(self, query: str) -> None:
        """Driver: a batch job is over; its folder goes."""
        self._table.meta(query).destroy()

    # --- planner

    def target(self) -> str | None:
        """Planner: as on a disk; asked for once in a process."""
        found = _table_id(self._table)
        return f"Parquet table {found}" if self._streaming else None

    def newest_generation(self, query: str) -> int | None:
        """Planner: by the mark that `finish` leaves. A request, whose answer `contains` uses."""
        self._newest[query] = self._table.log_of(query).finished_generation()
        return self._newest[query]

    def contains(self, epoch: Epoch, staged: Sequence[StagedUploads]) -> bool | None:
        """Planner: by the mark; one that is older is believed if no file is there either.

        A driver that was taken over from may have written its own mark over a later one.
        """
        if epoch.query not in self._newest:
            self.newest_generation(epoch.query)
        finished = self._newest[epoch.query]
        if finished is None and self._has_begun(epoch.query):
            return True  # an earlier version has finished all
        if finished is not None and finished >= (epoch.generation or 0):
            return True
        files = _files(staged)
        return UploadState.VISIBLE in self._look(files).values() if files else None

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: whatever is open of this query is of earlier generations.

        When the query begins, after an epoch that failed, and now and then: of attempts that were
        lost, nobody has heard.
        """
        self._is_due = is_due(self._table, query, clean=clean)
        if not self._is_due:
            return
        self._point_to_log(query)
        # Before this generation publishes: of a log that was begun anew, generations begin at 1.
        self._table.log_of(query).forget_mark_from(generation)
        discard_open(self._table, Epoch(query, -1, generation), self._view.is_owner)

    def orphaned_jobs(self) -> Iterator[StoreTableLog]:
        """Driver: batch jobs, whose drivers may have died.

        Looked for as often as `sweep` does, and by whoever overwrites.
        """
        is_asked = self._is_due or self._mode is not OutputMode.APPEND
        for name in self._table.meta().names() if is_asked else ():
            if name.startswith(BATCH_PREFIX):
                job = self._table.log_of(name, self._options.epoch_logs)
                if job.may_be_finished():
                    yield job

    # --- operator

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedUploads], *, committed: bool
    ) -> None:
        """Operator: complete what can be, or abort the rest and take away what is visible.

        Files that the epoch has replaced do not come back.
        """
        if committed:
            uploads = [file.upload for file in _files(staged)]
            map_in_parallel(self._table.uploads.complete, uploads)
            self._remove_replaced(staged)
            self._table.log_of(epoch.query).mark_finished(epoch.generation or 0)
        else:
            self._abort(staged)
            self._table.remove(file.upload.key for file in _files(staged))

    # --- files

    def _remove_replaced(self, staged: Sequence[StagedUploads]) -> None:
        self._table.remove(name for item in staged for name in item.removes)

    def _abort(self, staged: Sequence[StagedUploads]) -> None:
        """An intent names them, and who was taken over from may be about to complete them."""
        map_in_parallel(self._table.uploads.abort, [file.upload for file in _files(staged)])

    def _look(self, files: Sequence[StagedUpload]) -> Mapping[StagedUpload, UploadState]:
        found = map_in_parallel(self._table.uploads.state, [file.upload for file in files])
        return dict(zip(files, found, strict=True))

    def _lost(self, epoch: Epoch, gone: Sequence[StagedUpload], *, is_visible: bool) -> SinkError:
        text = f"epoch {epoch.number}: {self._shown(gone)} before it was completed"
        if not is_visible and _may_have_expired(gone):
            return LostIntentError(
                f"{text}; nothing is visible of the epoch: restart the query, which stages it again"
            )
        return CommitUnknown(
            f"{text}, or the file was there and has been removed. 'krishiv-spark log resolve "
            "--assume committed' skips it; '--assume aborted' reverts the epoch, which is "
            "staged again"
        )

    def _shown(self, gone: Sequence[StagedUpload]) -> str:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        first = f"{self._table}/{gone[0].upload.key}"
        return f"the store or another program has aborted the upload of {first}{more}"

    def _unknown(self, epoch: Epoch, error: StorageError) -> CommitUnknown:
        return CommitUnknown(
            f"epoch {epoch.number}: its intent is logged, but not all of its files could be "
            f"made visible: {error}; restart the query, which resolves it"
        )


@lru_cache(maxsize=64)
def _table_id(table: StoreTable) -> str | None:
    return table_id(table.meta())


def _may_have_expired(gone: Sequence[StagedUpload]) -> bool:
    return all(_age_ms(file) > _EXPIRES_AFTER_MS for file in gone)


def _age_ms(file: StagedUpload) -> int:
    return time.time_ns() // 1_000_000 - file.upload.begun_ms


def _files(staged: Sequence[StagedUploads]) -> list[StagedUpload]:
    return [file for item in staged for file in item.files]
