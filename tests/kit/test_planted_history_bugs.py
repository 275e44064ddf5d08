"""The kit must find each bug that is planted into the history of a table."""

import numpy as np
import pytest
from kit_histories import HistorySuite
from planted_bugs import open_player

from krishiv_spark.sinks.iceberg.history import history_updates, version_chains, version_values
from krishiv_spark.sinks.iceberg.history.history_updates import HistoryUpdate
from krishiv_spark.sinks.iceberg.history.repeated_events import NewChanges
from krishiv_spark.sinks.iceberg.history.version_chains import Events
from krishiv_spark.testing import Begin, Broken, Commit, Rule, Stage

EPOCH = (Begin(rows=40), Stage(0), Stage(1), Commit())

COMPUTE, ARRANGE = version_chains.compute_intervals, version_chains.arrange_records


def find_first_versions(events):
    return np.unique(events.groups[: events.stored], return_index=True)[1]


def find_all_changes(events, **_):
    order = events.changes[np.argsort(events.arrivals[events.changes])]
    return NewChanges(events, order[~events.reads[order]], np.empty(0, np.int64))


def arrange_upserts(events, new):
    order = ARRANGE(events, new)
    return order[~events.deletes[order]]


def start_all_at_once(events, order):
    found = COMPUTE(events, order)
    found.starts[events.stored :] = found.starts.max(initial=0)
    return found


BUGS = {
    "a wrong version is closed": (Events, "current", property(find_first_versions)),
    "a closed version remains": (HistoryUpdate, "_delete_rows", lambda *_: ((), ())),
    "repeats open a version twice": (history_updates, "find_new_changes", find_all_changes),
    "a delete closes nothing": (history_updates, "arrange_records", arrange_upserts),
    "all changes of an epoch have one time": (
        history_updates,
        "compute_intervals",
        start_all_at_once,
    ),
    "a kept value is lost": (
        version_values,
        "find_events_before",
        lambda events, _: np.full(len(events.groups), -1),
    ),
    "a row that is read again opens a version": (
        version_values.VersionValues,
        "drop_equal",
        lambda values, _: values._order,
    ),
}


@pytest.mark.long  # a life of the table for each
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_history_is_found(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with open_player(HistorySuite(), tmp_path, "") as play, pytest.raises(Broken) as caught:
        play.well(*EPOCH * 3)
    assert caught.value.rule in {Rule.RESULT_OF_EPOCHS, Rule.WORKS}
    print(caught.value.rule, caught.value.seen)


def test_the_history_without_a_bug_passes(tmp_path):
    with open_player(HistorySuite(), tmp_path, "") as play:
        play.well(*EPOCH * 3)
