"""The kit must find each bug that is planted into the decoder, or into the mirror of a table."""

import numpy as np
import pyarrow as pa
import pytest
from kit_mirrors import MirrorSuite
from planted_bugs import open_player

from krishiv_spark.changes import debezium, decoded, encodings, event_rows
from krishiv_spark.sinks.iceberg.upserts import epoch_changes, unchanged_values
from krishiv_spark.testing import Begin, Broken, Commit, Rule, Stage

EPOCH = (Begin(rows=40), Stage(0), Stage(1), Commit())


def mark_nothing(values, *_):
    return pa.array(np.zeros(len(values), np.bool_))


def insert_keys(decoder, *given, **how):
    for found in DELETE_BY_KEYS(decoder, *given, **how):
        yield decoded.Changes(
            found.rows, mark_nothing(found.rows), found.kept, found.positions, found.records
        )


DELETE_BY_KEYS = debezium.DebeziumDecoder._delete_by_keys

BUGS = {
    "a tombstone is an insert": (debezium.DebeziumDecoder, "_delete_by_keys", insert_keys),
    "a placeholder is written": (
        encodings._ValueColumn,
        "is_placeholder",
        lambda _, texts: mark_nothing(texts),
    ),
    "a kept value is null": (
        event_rows,
        "list_kept_names",
        lambda _, count: pa.nulls(count, pa.list_(pa.string())),
    ),
    "a changed key leaves the old row": (
        event_rows,
        "_have_equal_keys",
        lambda one, *_: np.ones(len(one), np.bool_),
    ),
    "a changed key leaves its values behind": (
        unchanged_values,
        "follow_moves",
        lambda _, before: before,
    ),
    "a kept value is that of the table": (
        unchanged_values,
        "find_rows_before",
        lambda found, _: unchanged_values.in_table(found.groups),
    ),
    "the first change of a key wins": (
        epoch_changes.EpochChanges,
        "_sort_changes",
        lambda _, changes: np.arange(changes.num_rows)[::-1],
    ),
}


@pytest.mark.long  # a life of the table for each
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_mirror_is_found(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with open_player(MirrorSuite(), tmp_path, "") as play, pytest.raises(Broken) as caught:
        play.well(*EPOCH * 3)
    assert caught.value.rule in {Rule.RESULT_OF_EPOCHS, Rule.WORKS}
    print(caught.value.seen)


def test_the_mirror_without_a_bug_passes(tmp_path):
    with open_player(MirrorSuite(), tmp_path, "") as play:
        play.well(*EPOCH * 3)
