"""Random histories of a table, also changed and read by Iceberg-Java."""

import os

import pytest
from duck_iceberg import open_duckdb
from lake_history import play

HISTORIES = int(os.environ.get("KRISHIV_HISTORIES", "20"))
"""Number of histories, two seconds each."""


@pytest.mark.timeout(60 + 10 * HISTORIES)
def test_all_engines_read_what_the_model_has(tmp_path, java):
    with open_duckdb() as duck:
        for seed in range(1000, 1000 + HISTORIES):
            (tmp_path / f"{seed}").mkdir()
            play(tmp_path / f"{seed}", seed, duck, java)
