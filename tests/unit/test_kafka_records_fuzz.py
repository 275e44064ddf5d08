"""Mutated batches with right checksums, for as long as the soak lets it: errors, and no crash.

    KRISHIV_FUZZ_S=600 KRISHIV_FUZZ_SEED=7 ./run soak tests/unit/test_kafka_records_fuzz.py

The batches are decoded in a child process, whose death shows the seed of the input that ended it.
"""

import os
import random
import subprocess
import sys

import pytest
from wheels import ROOT

SECONDS = float(os.environ.get("KRISHIV_FUZZ_S", "1800"))
SEED = int(os.environ.get("KRISHIV_FUZZ_SEED", random.SystemRandom().randrange(2**32)))


@pytest.mark.long
@pytest.mark.parametrize(
    "seconds", [pytest.param(3, id="some"), pytest.param(SECONDS, marks=pytest.mark.soak, id="all")]
)
def test_mutated_batches_are_rows_or_errors(seconds):
    command = [
        sys.executable,
        str(ROOT / "tests/support/brokers/record_fuzzer.py"),
        str(seconds),
        str(SEED),
    ]
    print("seed", SEED)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (SEED, done.stdout[-500:], done.stderr[-3000:])
    counts = dict(line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
    print(counts)
    assert int(counts["decoded"]) > 0
    assert int(counts["refused"]) > 0
