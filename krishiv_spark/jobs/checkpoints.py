"""That a job goes on where it was, and does not read everything again. Driver."""

from __future__ import annotations

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.jobs.ready import ReadyJob, ReadyOutput
from krishiv_spark.storage import Storage, StoreUrl

__all__ = ["check_mode_is_kept"]

_WRITTEN = "metadata"
"""The file that Spark writes first into the checkpoint of a query (``StreamMetadata``)."""


def check_mode_is_kept(job: ReadyJob) -> None:
    """Refuse to begin anew beside the checkpoints of the other mode.

    With ``forEachBatchMode`` a job is one query, without it one for each output. If that is
    switched, the new queries would begin where a new query begins, and rows be written again.

    Raises:
        OptionError: If checkpoints of the other mode are there, and none of this one.
    """
    if job.checkpoint is None:
        return
    together = [(job.outputs[0], job.batches_checkpoint)]
    each = [(one, one.checkpoint or f"{job.checkpoint}/{one.model.name}") for one in job.outputs]
    own, others = (together, each) if job.writes_batches else (each, together)
    found = next((place for output, place in others if _is_there(output, place)), None)
    if found is None or any(_is_there(output, place) for output, place in own):
        return
    switched = "on" if job.writes_batches else "off"
    raise OptionError(
        f"job {job.name!r}: {found} is the checkpoint of a run before 'forEachBatchMode' was "
        f"switched {switched}: the rows would be written again. Switch it back; or set another "
        "'checkpointLocation', with 'startingOffsets' where the job is to start"
    )


def _is_there(output: ReadyOutput, location: str) -> bool:
    try:
        storage = Storage.given(output.place.options).also_at(location)
        return storage.folder(StoreUrl.parse(location)).read(_WRITTEN) is not None
    except (OptionError, StorageError, OSError):
        return False  # only Spark can read it, and will say what it finds
