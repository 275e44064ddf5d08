"""The Delta sink with one mistake each, which its suite must find."""

import pytest
from delta_kit import delta_sink
from deltalake import CommitProperties, DeltaTable, Transaction
from planted_bugs import find_failure

from krishiv_spark.errors import CommitRejected
from krishiv_spark.sinks.base import CommittedEpoch
from krishiv_spark.sinks.delta import epoch_commit
from krishiv_spark.sinks.delta.epoch_commit import DeltaCommit, DeltaCommitter
from krishiv_spark.sinks.delta.task_files import delete_files
from krishiv_spark.testing import Rule, SinkConformance

REAL_COMMIT = DeltaCommit._commit_version


class Suite(SinkConformance):
    __test__ = False
    case = ""

    def sink(self, folder):
        return delta_sink(folder, self.case)


def reads_no_marks_before_a_commit(patch):
    """No look at the log between the planner's and the commit."""
    patch.setattr(DeltaCommit, "_check", lambda *_: None)


def _commit_apart(self, table, version, *, marks_first):
    """Rows and marks in two versions."""

    def mark(at):
        properties = CommitProperties(
            custom_metadata=self._describe(),
            max_commit_retries=0,
            app_transactions=[
                Transaction(self._epoch.query, self._epoch.number),
                Transaction(f"krishiv.version/{self._epoch.query}", at),
            ],
        )
        known = table.metadata().partition_columns
        table.create_write_transaction(
            [], "append", table.schema(), known, commit_properties=properties
        )

    def rows():
        properties = CommitProperties(custom_metadata=self._describe(), max_commit_retries=0)
        mode = "overwrite" if self._replaces else "append"
        known = table.metadata().partition_columns
        table.create_write_transaction(
            self._list_adds(), mode, table.schema(), known, commit_properties=properties
        )

    steps = [lambda: mark(version), rows] if marks_first else [rows, lambda: mark(version + 1)]
    for step in steps:
        step()
        table.update_incremental()


def marks_first(patch):
    """The mark in a version before the rows."""
    patch.setattr(
        DeltaCommit, "_commit_version", lambda *args: _commit_apart(*args, marks_first=True)
    )


def marks_last(patch):
    """The mark in a version after the rows."""
    patch.setattr(
        DeltaCommit, "_commit_version", lambda *args: _commit_apart(*args, marks_first=False)
    )


def takes_an_error_for_no(patch):
    """An error of the commit is taken for a refusal."""

    def attempt(self, table, version):
        try:
            REAL_COMMIT(self, table, version)
        except Exception as error:
            raise CommitRejected(str(error)) from error

    patch.setattr(DeltaCommit, "_attempt", attempt)


def deletes_what_is_named(patch):
    """After an error of the commit, the files are deleted without a look at the log."""
    takes_an_error_for_no(patch)

    def discard(self, staged):
        delete_files(self._options, (file.path for item in staged for file in item.files))

    patch.setattr(DeltaCommitter, "discard", discard)


def keeps_no_digest(patch):
    """The digest of an epoch is not compared."""
    real = epoch_commit.read_mark

    def read(options, table, query):
        found = real(options, table, query)
        return found and CommittedEpoch(found.epoch)

    patch.setattr(epoch_commit, "read_mark", read)


def marks_without_a_query(patch):
    """All queries share one mark."""
    # In no variable of the module: there, the kit would put its counter.
    real, real_write = DeltaTable.transaction_version, DeltaTable.create_write_transaction

    def version(self, app):
        return real(self, "krishiv.version/x" if "/" in app else "x")

    def write(self, *args, commit_properties, **named):
        marks = commit_properties.app_transactions or []
        commit_properties.app_transactions = [
            Transaction("krishiv.version/x" if "/" in one.app_id else "x", one.version)
            for one in marks
        ]
        real_write(self, *args, commit_properties=commit_properties, **named)

    patch.setattr(DeltaTable, "transaction_version", version)
    patch.setattr(DeltaTable, "create_write_transaction", write)


def adds_in_complete_mode(patch):
    """An epoch that replaces leaves the rows before it."""
    real_write = DeltaTable.create_write_transaction

    def write(self, actions, mode, *args, **named):
        del mode
        real_write(self, actions, "append", *args, **named)

    patch.setattr(DeltaTable, "create_write_transaction", write)


def commits_file_by_file(patch):
    """Each file in a version, the last one with the mark."""

    def commit(self, table, version):
        for add in self._list_adds()[:-1]:
            known = table.metadata().partition_columns
            table.create_write_transaction([add], "append", table.schema(), known)
            table.update_incremental()
            version += 1
        patch_list = self._list_adds()[-1:]
        self._list_adds = lambda: patch_list
        REAL_COMMIT(self, table, version)

    patch.setattr(DeltaCommit, "_commit_version", commit)


def discards_nothing(patch):
    """Staged files of an aborted epoch stay."""
    patch.setattr(DeltaCommitter, "discard", lambda *_: None)


FOUND = [
    (reads_no_marks_before_a_commit, "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    (marks_first, "death_at_any_call", Rule.NO_ROW_LOST),
    (marks_last, "death_at_any_call", Rule.NO_ROW_TWICE),
    (takes_an_error_for_no, "an_unknown_outcome_is_looked_up", Rule.NO_IS_NO),
    (deletes_what_is_named, "an_unknown_outcome_is_looked_up", Rule.READABLE),
    (keeps_no_digest, "a_rolled_back_checkpoint_is_refused", Rule.NO_ROW_LOST),
    (marks_without_a_query, "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    (adds_in_complete_mode, "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    (commits_file_by_file, "death_at_any_call", Rule.WHOLE_EPOCHS),
    (discards_nothing, "nothing_stays_staged", Rule.NOTHING_LEFT),
]


ONE_CALL = {
    reads_no_marks_before_a_commit,
    marks_first,
    marks_last,
    takes_an_error_for_no,
    commits_file_by_file,
}
"""Shown by one call only, which a look at one in four calls may leave out."""


@pytest.mark.long  # a case for each, until it fails
@pytest.mark.parametrize(
    ("plant", "case", "rule"), [pytest.param(*one, id=one[0].__name__) for one in FOUND]
)
def test_the_suite_finds_it(plant, case, rule, tmp_path, monkeypatch, request):
    plant(monkeypatch)
    config = None if plant in ONE_CALL else request.config
    suite = Suite()
    suite.case = case
    assert find_failure(suite, case, tmp_path, config, again=False).rule is rule
