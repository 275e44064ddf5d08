"""Randomly changed metadata, which must end no driver and use up no memory, time or file."""

import os

import pytest
from iceberg_fuzz import VARIANTS, run

SEED = int(os.environ.get("KRISHIV_SEED", "0"))
SOAK_S = 600
"""As long as the soak changes tables: about a thousand times on two cores."""


def check(count, wrong):
    print(f"{count} cases")
    assert not wrong, "\n\n".join(map(str, wrong[:10]))


@pytest.mark.long
def test_changed_metadata_gives_rows_or_an_error_of_ours(tmp_path):
    check(*run(tmp_path, 60, SEED, len(VARIANTS)))


@pytest.mark.soak
def test_changed_metadata_gives_rows_or_an_error_of_ours_for_long(tmp_path):
    check(*run(tmp_path, SOAK_S, 1_000_000 + SEED))
