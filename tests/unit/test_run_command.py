"""What ``./run`` promises about parts that fail."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_parts(folder, parts):
    """The functions of ``./run``, and some parts in the place of its commands."""
    script = folder / "run"
    script.write_text((ROOT / "run").read_text().replace('\nmain "$@"\n', f"\n{parts}\nsummary\n"))
    return subprocess.run(["bash", script], capture_output=True, text=True, check=False)


def test_every_part_runs_and_the_summary_names_those_that_failed(tmp_path):
    breaks = "breaks() { false; echo not reached; }"
    done = run_parts(tmp_path, f"{breaks}\npart first breaks\npart second echo reached")
    assert (done.returncode, done.stdout) == (1, "reached\n")
    first, second = done.stderr.splitlines()[-3:-1]
    assert first.startswith("\033[1mFAILED")
    assert first.endswith("first")
    assert second.startswith("passed")


def test_when_every_part_passes_so_does_the_command(tmp_path):
    done = run_parts(tmp_path, "part first true\npart second true")
    assert done.returncode == 0, done.stderr


@pytest.mark.xdist_group("some")
def test_xdist_keeps_groups_together(request):
    """What shares a broker is dealt out otherwise, and each process starts one for itself."""
    if not hasattr(request.config, "workerinput") or not request.config.getoption("loadgroup"):
        pytest.skip("not one of several processes that pytest-xdist deals groups to")
    assert request.node.nodeid.endswith("@some")
