"""Random histories of a table, read by PyIceberg, DuckDB and this package; and bugs they find.

`tests/spark/test_iceberg_histories.py` has more of them, with Iceberg-Java.
"""

import pytest
from duck_iceberg import open_duckdb
from lake_histories import play_once, read_results
from lake_history import Mismatch, play

from krishiv_spark.sinks.iceberg.upserts import upsert_updates
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import RowLookup


@pytest.fixture(scope="module")
def duck():
    with open_duckdb() as opened:
        yield opened


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 7])
def test_readers_agree_with_the_model_after_each_step(tmp_path, duck, seed):
    history = play(tmp_path, seed, duck, None, steps=8)
    assert history.counts["PyIceberg"] >= 8
    assert history.counts["readChanges"] >= 5


@pytest.mark.long  # 2 s
def test_a_delete_that_is_left_out_is_found(tmp_path, duck, monkeypatch):
    real = RowLookup.find_positions

    def find_positions(lookup, file, keys):
        return real(lookup, file, keys)[:-1]

    monkeypatch.setattr(RowLookup, "find_positions", find_positions)
    assert find_failures(tmp_path, duck)


def find_failures(folder, duck):
    """Return the seeds at which histories fail by what a reader returns."""
    failed = []
    for seed in range(6):
        (folder / f"{seed}").mkdir()
        try:
            play(folder / f"{seed}", seed, duck, None, steps=8)
        except Mismatch:
            failed.append(seed)
    return failed


def test_a_failed_history_has_its_seed_and_its_steps(duck, monkeypatch):
    monkeypatch.setattr(upsert_updates.MergeOnRead, "plan", None)
    monkeypatch.setattr(upsert_updates.CopyOnWrite, "plan", None)
    line = play_once(5, (duck, None), 1)
    assert "seed 5:" in line["failed"]
    assert "epoch 0: " in line["failed"]


def test_saved_results_are_read_again(tmp_path):
    file = tmp_path / "results.jsonl"
    assert read_results(file) == {}
    lines = [(3, "x"), (4, ""), (3, "")]
    file.write_text("".join(f'{{"seed": {seed}, "failed": "{text}"}}\n' for seed, text in lines))
    assert read_results(file) == {
        3: {"seed": 3, "failed": ""},
        4: {"seed": 4, "failed": ""},
    }
