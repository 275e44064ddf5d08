"""A view is in each of its snapshots what the table was in one, whatever fails in between."""

import functools
import random
from collections.abc import Callable

import pytest
from iceberg_life import table_of
from killers import Killer
from pyspark.errors import StreamingQueryException
from view_states import VIEW, assert_each_state, change_table, keep_view

from krishiv_spark.sinks.iceberg.views.aggregate import ViewKeeper

STEPS = ("_find_committed", "_read_touched", "_write", "_commit_empty_batch")


class StepFailedError(Exception):
    """Instead of a crash between two steps."""


@pytest.fixture
def chance():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def interrupted(step: Callable, chance: random.Random) -> Callable:
    """A step that sometimes fails before or after, or that another driver does as well."""

    @functools.wraps(step)
    def run(*arguments):
        fate = chance.choice(["well"] * 5 + ["before", "after", "twice"])
        if fate == "before":
            raise StepFailedError(step.__name__)
        if fate == "twice":
            step(*arguments)
        done = step(*arguments)
        if fate == "after":
            raise StepFailedError(step.__name__)
        return done

    return run


def keep_to_the_end(spark, folder):
    """Start the query until it has come to the end; how often it was interrupted."""
    interruptions = 0
    while True:
        query = keep_view(spark, folder)
        try:
            query.processAllAvailable()
        except StreamingQueryException as error:
            assert "StepFailedError" in str(error)  # noqa: PT017  the text of what Spark's error holds
            interruptions += 1
        else:
            return interruptions
        finally:
            query.stop()


def keep_while_interrupted(spark, folder, chance, monkeypatch, snapshots):
    for name in STEPS:
        step = getattr(ViewKeeper, name)
        monkeypatch.setattr(ViewKeeper, name, interrupted(step, chance))
    change_table(folder, snapshots, chance)
    print(f"{keep_to_the_end(spark, folder)} interruptions")
    assert_each_state(folder)


def test_interruptions_between_steps_leave_the_view_exact(spark, tmp_path, chance, monkeypatch):
    keep_while_interrupted(spark, tmp_path, chance, monkeypatch, 3)


@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_hundreds_of_batches_with_interruptions(spark, tmp_path, chance, monkeypatch):
    keep_while_interrupted(spark, tmp_path, chance, monkeypatch, 200)


# --- kills


def kill_again_and_again(folder, chance, snapshots, kills):
    change_table(folder, snapshots, chance)
    conf = {"spark.master": "local[2,8]"}  # a task whose worker was killed is tried again
    Killer("view_states.py", {"folder": str(folder), "conf": conf}).run(kills)
    assert_each_state(folder)
    assert len(table_of(folder, VIEW).metadata.snapshots) >= snapshots


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.long
@pytest.mark.timeout(2400)
def test_kills_leave_the_view_exact(tmp_path, chance):
    kill_again_and_again(tmp_path, chance, 30, 6)


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_tens_of_kills_leave_the_view_exact(tmp_path, chance):
    kill_again_and_again(tmp_path, chance, 200, 60)
