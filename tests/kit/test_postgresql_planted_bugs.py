"""Bugs that are planted into the PostgreSQL sink: for each, one case of its suite fails.

Each bug is tried on the case that `BUGS` names, not on the whole suite. Not planted: a lost answer
of COMMIT that counts as a success or a failure, which `test_a_lost_answer_of_commit_is_looked_up`
tests; bugs in upserts, types and the route of a fan-out, which have tests of their own.
"""

from dataclasses import replace

import pytest
from pg_onlooker import make_sink
from planted_bugs import find_failure

from krishiv_spark.sinks.postgresql import table_committer
from krishiv_spark.sinks.postgresql.marks import Marks
from krishiv_spark.sinks.postgresql.table_committer import PostgresqlCommitter
from krishiv_spark.testing import Rule, SinkConformance

_write, _read, _lock = Marks.write, Marks.read, Marks.lock
_move = table_committer.move_rows


def write_early(self, transaction, epoch):
    """The mark is committed before the rows."""
    _write(self, transaction, epoch)
    transaction.connection.commit()


def write_anything(self, transaction, epoch):
    """A driver that slept through an epoch is not refused."""
    transaction.run(
        f"UPDATE {self.name.sql} SET epoch = %s, digest = %s WHERE query = %s",
        [epoch.number, epoch.digest, epoch.query],
    )


def write_no_digest(self, transaction, epoch):
    """An epoch with other offsets counts as the same."""
    _write(self, transaction, replace(epoch, offsets=None))


def read_as_one(self, transaction, query):
    """All queries share one mark."""
    del query
    return _read(self, transaction, "one")


def lock_as_one(self, transaction, query):
    del query
    return _lock(self, transaction, "one")


def write_as_one(self, transaction, epoch):
    _write(self, transaction, replace(epoch, query="one"))


def sweep_nothing(self, epoch):
    """Staging tables of dead attempts stay."""


def move_without_replacing(transaction, table, staged, effect, query):
    """Complete mode adds its rows to the earlier ones."""
    _move(transaction, table, staged, replace(effect, replaces=False), query)


BUGS = {
    "write_early": ([(Marks, "write", write_early)], "death_at_any_call", Rule.NO_ROW_LOST),
    "write_anything": (
        [(Marks, "write", write_anything), (Marks, "lock", _read)],
        "a_stale_driver_cannot_publish",
        Rule.NO_ROW_TWICE,
    ),
    "write_no_digest": (
        [(Marks, "write", write_no_digest)],
        "a_rolled_back_checkpoint_is_refused",
        Rule.NO_ROW_LOST,
    ),
    "one_mark_for_all": (
        [
            (Marks, "write", write_as_one),
            (Marks, "read", read_as_one),
            (Marks, "lock", lock_as_one),
        ],
        "queries_have_epochs_of_their_own",
        None,
    ),
    "sweep_nothing": (
        [(PostgresqlCommitter, "_sweep", sweep_nothing)],
        "lost_attempts_are_swept",
        Rule.NOTHING_LEFT,
    ),
    "move_without_replacing": (
        [(table_committer, "move_rows", move_without_replacing)],
        "complete_mode",
        Rule.NEWEST_EPOCH_ONLY,
    ),
}
"""The functions that are replaced, the case that finds it, and the broken rule."""


@pytest.mark.long  # a case for each, until it fails
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, database, tmp_path, monkeypatch):
    replaced, case, rule = BUGS[bug]
    for owner, name, function in replaced:
        monkeypatch.setattr(owner, name, function)

    class Suite(SinkConformance):
        def sink(self, folder):
            return make_sink(database, folder)

    broken = find_failure(Suite(), case, tmp_path, None, again=False)
    assert rule in {None, broken.rule}, str(broken)
