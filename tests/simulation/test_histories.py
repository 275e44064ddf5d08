"""Histories of the epoch log and of the Kafka sink that never happened, but may."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulation.campaign import run
from simulation.histories import Kind, prepare
from simulation.mutations import MUTATIONS
from simulation.play import play
from simulation.seams import installed

ROOT = Path(__file__).parents[2]
QUICK = 20
SEED = int(os.environ.get("KRISHIV_SEED", "0"))


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    with installed():
        yield


@pytest.mark.parametrize("sink", ["shelf", "kafka"])
def test_no_row_is_lost_or_repeated_in_50_000_steps(sink):
    found = run(SEED, steps=50_000, kind=Kind({"sink": sink}))
    assert found.failure is None, str(found.failure)
    assert found.incidents > found.histories


@pytest.mark.soak
@pytest.mark.parametrize("sink", ["shelf", "kafka"])
def test_no_row_is_lost_or_repeated_in_5_million_steps(sink):
    found = run(10_000_000 + SEED, steps=5_000_000, kind=Kind({"sink": sink}))
    print(found)
    assert found.failure is None, str(found.failure)


@pytest.mark.long
def test_a_seed_tells_the_same_story_in_every_process():
    """Sets have an order of their own in each."""
    command = [sys.executable, "-m", "simulation", "--sink", "kafka", "--tell", "--seed", "7"]
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    told = subprocess.run(command, env=env, capture_output=True, timeout=600, check=True).stdout
    here = play(*prepare(7, Kind({"sink": "kafka"})), tell=True).tale
    assert told.decode().splitlines() == list(here)
    assert "EndTxn" in told.decode()


@pytest.mark.long
def test_a_history_that_fails_is_made_short_and_says_how_to_see_it_again():
    rule = MUTATIONS["held"]
    with rule.switched_off():
        found = run(SEED, histories=rule.within, kind=rule.kind).failure
    assert found is not None
    assert len(found.incidents) <= 3
    assert f"--seed {found.seed} --histories 1" in str(found)
    with rule.switched_off():
        assert play(found.scenario, found.incidents).violation
    assert not play(*prepare(found.seed, rule.kind)).violation


def _rules() -> list[object]:
    rare = pytest.mark.long
    return [pytest.param(k, marks=[rare] if m.within > QUICK else []) for k, m in MUTATIONS.items()]


@pytest.mark.long
@pytest.mark.parametrize("name", _rules())
def test_code_without_one_of_its_rules_fails_soon(name):
    rule = MUTATIONS[name]
    assert rule.caught(SEED) is not None, (
        f"{rule.rule} Nobody misses that in {rule.within} histories"
    )
