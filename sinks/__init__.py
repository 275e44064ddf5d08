"""Sinks: what authors use of the contract is here; `base` and `participant` are its specification.

A folder for each format holds what that alone needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.runtime.lazy import find

if TYPE_CHECKING:
    from krishiv_spark.sinks.base import (
        AtLeastOnceWriter,
        CommittedEpoch,
        Epoch,
        Guarantee,
        OutputMode,
        Ownership,
        Publisher,
        Salvaged,
        SupportsGenerations,
        SupportsRecall,
        Task,
        TwoPhaseCommitter,
        TwoPhaseWriter,
        Writer,
    )
    from krishiv_spark.sinks.logged import LogCommitter
    from krishiv_spark.sinks.logged_writer import LoggedWriter, LogView
    from krishiv_spark.sinks.numbered import NumberedJobOptions
    from krishiv_spark.sinks.participant import LoggedJob, LostIntentError, Participant
    from krishiv_spark.spark.query_target import QueryTarget
    from krishiv_spark.storage.paths import FileName, FolderWithin, NameWithin

__all__ = [
    "AtLeastOnceWriter",
    "CommittedEpoch",
    "Epoch",
    "FileName",
    "FolderWithin",
    "Guarantee",
    "LogCommitter",
    "LogView",
    "LoggedJob",
    "LoggedWriter",
    "LostIntentError",
    "NameWithin",
    "NumberedJobOptions",
    "OutputMode",
    "Ownership",
    "Participant",
    "Publisher",
    "QueryTarget",
    "Salvaged",
    "SupportsGenerations",
    "SupportsRecall",
    "Task",
    "TwoPhaseCommitter",
    "TwoPhaseWriter",
    "Writer",
]

_HOMES = {
    **dict.fromkeys(__all__, "krishiv_spark.sinks.base"),
    **dict.fromkeys(("FileName", "FolderWithin", "NameWithin"), "krishiv_spark.storage.paths"),
    "LogCommitter": "krishiv_spark.sinks.logged",
    "LogView": "krishiv_spark.sinks.logged_writer",
    "LoggedWriter": "krishiv_spark.sinks.logged_writer",
    "LoggedJob": "krishiv_spark.sinks.participant",
    "LostIntentError": "krishiv_spark.sinks.participant",
    "NumberedJobOptions": "krishiv_spark.sinks.numbered",
    "Participant": "krishiv_spark.sinks.participant",
    "QueryTarget": "krishiv_spark.spark.query_target",
}


def __getattr__(name: str) -> object:
    return find(__name__, _HOMES, name)
