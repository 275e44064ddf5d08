"""Overwrites of one table at the same time: of two that overlap, at most one is committed. Driver.

The intent of an overwrite names the visible files that it replaces. Rows that another overwrite
commits after they were listed would stay, which no order of the two jobs gives.

So each overwrite puts a mark into its folder in ``_krishiv`` before it lists the files, and then
reads the marks of the others. Of two, at least one finds the mark of the other. If the other has no
intent yet, this one takes its log over, and it can commit no more: neither does a job that died
after its mark block others. If it has one, its files must be visible before they are listed.
"""

from __future__ import annotations

from collections.abc import Iterable

from krishiv_spark.errors import CommitRejected
from krishiv_spark.offsets import State
from krishiv_spark.parquet.table_identity import read_text
from krishiv_spark.parquet.table_logs import QueryLog
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.log_checks import operators_claim
from krishiv_spark.storage import Folder

__all__ = ["exclude_other_overwrites"]

_MARK = "overwrites"
"""File in the folder of a query or job: the generation that overwrites the table."""


def exclude_other_overwrites(epoch: Epoch, own: Folder, logs: Iterable[QueryLog]) -> None:
    """Ensure that no other overwrite commits rows that this one does not replace. Committer.

    To be called before the files of the table are listed.

    Args:
        epoch: The epoch that overwrites the table.
        own: The folder of its query in ``_krishiv``.
        logs: The logs of the table, its own included; read after the own mark is written.

    Raises:
        CommitRejected: If another overwrite has an intent, and not all of it is visible.
        LogError: If the log of another overwrite is damaged, or may not be read.
    """
    own.replace(_MARK, str(epoch.generation).encode())
    for log in logs:
        mark = None if log.query == epoch.query else read_text(log.own, _MARK)
        if mark is not None:
            _exclude(epoch, log, mark)


def _exclude(epoch: Epoch, other: QueryLog, mark: str) -> None:
    def check(state: State) -> None:
        """Raise `_Harmless` if the job cannot commit any more."""
        if state.intent is not None and str(state.intent_generation) == mark:
            if other.is_unfinished(state):
                raise CommitRejected(
                    f"epoch {epoch.number} of {epoch.query}: {other.query} overwrites "
                    f"{other.table_url} at the same time, and its rows are not all visible yet, so "
                    "they could not be replaced. Nothing of this job is visible: run it again "
                    "when the other one has ended"
                )
            raise _Harmless
        if str(state.owner) != mark:
            raise _Harmless

    state = other.log.state()
    try:
        check(state)
        other.log.begin(operators_claim(other.query, state), check)
    except _Harmless:
        return


class _Harmless(Exception):  # noqa: N818  it is no error
    """An overwrite that has ended, or that another driver has excluded."""
