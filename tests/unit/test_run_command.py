"""The promises of ``./run`` about parts that fail."""

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


@pytest.mark.parametrize("fails", [False, True])
def test_postgresql_is_installed_without_a_cluster_and_the_setting_is_as_before(tmp_path, fails):
    """Debian's package reads the setting while it is installed."""
    config, seen, apt = tmp_path / "createcluster.conf", tmp_path / "seen", tmp_path / "apt-get"
    config.write_text("#create_main_cluster = true\n")
    ends = f'cp "$CREATECLUSTER" {seen}; exit {int(fails)}'
    apt.write_text(f'#!/bin/sh\ncase "$*" in *postgresql) {ends};; esac\n')
    apt.chmod(0o755)
    given = f"export PATH={tmp_path}:$PATH CREATECLUSTER={config}"
    done = run_parts(tmp_path, f"{given}\npart install install_postgresql")
    assert done.returncode == int(fails), done.stderr
    assert seen.read_text().splitlines()[-1] == "create_main_cluster = false"
    assert config.read_text() == "#create_main_cluster = true\n"
    assert sorted(path.name for path in tmp_path.glob("create*")) == ["createcluster.conf"]


def test_a_python_that_the_newest_pyspark_does_not_support_has_the_line_before(tmp_path):
    def line_for(version):
        return run_parts(tmp_path, f"PYTHON={version}\nnewest_line").stdout.strip()

    assert [line_for(version) for version in ("3.10", "3.10.13", "3.11", "3.14")] == [
        *("4.2", "4.2"),
        *("4.3", "4.3"),
    ]


@pytest.mark.long  # runs xdist in xdist
@pytest.mark.xdist_group("some")
def test_xdist_keeps_groups_together(request):
    """Tests that share a broker run in one process; otherwise each process would start one."""
    if not hasattr(request.config, "workerinput") or not request.config.getoption("loadgroup"):
        pytest.skip("not one of several processes that pytest-xdist deals groups to")
    assert request.node.nodeid.endswith("@some")
