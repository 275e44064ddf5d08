"""``krishiv-spark run`` as a process: exit codes, signals, and kills."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from iceberg_life import ids
from patience import PATIENCE, await_that
from slow_steps import write_slow_step
from tables import look, make_input
from three_targets import kill_again_and_again

COUNT, ROWS = 6, 10
JOB = """
inputs:
  - name: rows
    format: krishiv-parquet
    isStream: true
    options: {path: "${FOLDER}/in", maxFilesPerTrigger: 1}
outputs:
  - name: rows
    format: krishiv-parquet
    options: {path: "${FOLDER}/out"}
streaming: {checkpointLocation: "${FOLDER}/checkpoint"}
spark: {spark.ui.enabled: false, spark.driver.bindAddress: 127.0.0.1}
logLevel: 'OFF'
"""


@contextmanager
def command(folder, text, *arguments, session=("--master", "local[2]")):
    (folder / "job.yaml").write_text(text)
    line = [sys.executable, "-W", "ignore", "-m", "krishiv_spark", "run", str(folder / "job.yaml")]
    given = ["--set", f"FOLDER={folder}", *session, *arguments]
    with subprocess.Popen(
        [*line, *given], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def ended(folder, text, *arguments, **more):
    with command(folder, text, *arguments, **more) as process:
        said, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, said


@pytest.fixture
def rows(tmp_path):
    make_input(tmp_path / "in", COUNT, ROWS)


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_signal_ends_a_stream_in_good_order(tmp_path, number):
    with command(tmp_path, JOB) as process:
        await_that(lambda: look(tmp_path / "out")[0])
        os.kill(process.pid, number)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "ending after the current epoch" in said
    seen, distinct, _ = look(tmp_path / "out")
    assert (seen, seen % ROWS) == (distinct, 0)
    code, said = ended(tmp_path, JOB + "stopAfterIdle: 1 second\n")
    assert code == 0, said
    assert look(tmp_path / "out")[:2] == (COUNT * ROWS,) * 2


@pytest.mark.usefixtures("rows")
def test_a_dry_run_understands_and_starts_nothing(tmp_path):
    code, said = ended(tmp_path, JOB, "--dry-run")
    assert (code, "valid for Spark" in said) == (0, True), said
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("rows")
def test_what_fails_is_one_line_and_a_code(tmp_path):
    bad = "steps: [{name: bad, sql: SELECT nothing FROM rows}]\n"
    code, said = ended(tmp_path, JOB + bad, "--dry-run")
    assert code == 1, said
    assert "nothing" in said.splitlines()[-1]
    assert "Traceback" not in said
    code, said = ended(tmp_path, JOB + "timeout: 3\n")
    assert code == 2, said
    assert ":14:1: 'timeout': 3 has no unit" in said
    code, said = ended(tmp_path, JOB, session=("--master", "nothing"))
    assert code == 3, said
    assert "cannot open a Spark session" in said.splitlines()[-1]


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("signals", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_batch_that_never_gets_enough_time_ends_a_run_with_4(tmp_path, signals):
    """By a time limit, and by a signal. With enough time it goes on, and ends with 0."""
    write_slow_step(tmp_path, 3600)
    out = "outputs:\n  - name: rows\n"
    slow = JOB.replace(out, f"{out}    view: v\n")
    slow += "steps: [{name: v, python: 'slowstep:slow', inputs: [rows]}]\ngraceTime: 1s\n"
    limit = "" if signals else "timeout: 15s\n"
    with command(tmp_path, slow + limit) as process:
        if signals:
            await_that((tmp_path / "checkpoint/rows/offsets/0").exists)
            process.terminate()
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, said
    assert said.splitlines()[-1] == "not done: job.rows: completed no epoch"
    assert look(tmp_path / "out")[0] == 0
    if not signals:
        code, said = ended(tmp_path, JOB + "stopAfterIdle: 1s\n")
        assert (code, look(tmp_path / "out")[:2]) == (0, (COUNT * ROWS,) * 2), said


STANDARD = ("pandas", "numpy", "pyarrow", "kafka", "pyspark_krishiv_mine", "sitecustomize")


@pytest.mark.usefixtures("rows")
def test_a_module_beside_the_job_file_is_imported_only_if_a_step_names_it(tmp_path, monkeypatch):
    """As in a folder of downloads. Named modules are found there after all installed ones."""
    beside, cwd = tmp_path / "beside", tmp_path / "cwd"
    beside.mkdir()
    cwd.mkdir()
    for name in STANDARD:
        (beside / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})")
    (beside / "mine.py").write_text("def both(rows): return rows.union(rows)\n")
    (beside / "job.yaml").write_text(JOB)
    # As pip installs the command: `python -m` has the working directory first on its path.
    program = Path(sys.executable).with_name("krishiv-spark")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")

    def run(file):
        words = [program, "run", "--dry-run", "--master", "local[2]", "--set", f"FOLDER={tmp_path}"]
        return subprocess.run(
            [*words, file], capture_output=True, text=True, cwd=cwd, timeout=PATIENCE, check=False
        )

    done = run(beside / "job.yaml")
    assert (done.returncode, (tmp_path / "ran").exists()) == (0, False), done
    step = "steps: [{name: made, python: 'mine:both', inputs: [rows]}]\n"
    (beside / "job.yaml").write_text(
        JOB.replace("outputs:\n  - name: rows", "outputs:\n  - name: made") + step
    )
    done = run(beside / "job.yaml")
    assert (done.returncode, (tmp_path / "ran").exists()) == (0, False), done


@pytest.mark.usefixtures("rows")
def test_what_spark_says_of_a_job_shows_the_name_of_a_variable_and_not_its_value(tmp_path):
    options = ["--set", "SECRET=CANARY_of_this_test", "--dry-run"]
    bad = "steps: [{name: bad, sql: 'SELECT ${SECRET}, \"${SECRET}\" FROM rows'}]\n"
    code, said = ended(tmp_path, JOB + bad, *options)
    assert code == 1, said
    assert "${SECRET}" in said.splitlines()[-1]
    assert "canary" not in said.lower()
    escapes = 'steps: [{name: bad, sql: "SELECT `\\x1b]0;owned\\a\\n\\u202e` FROM rows"}]\n'
    code, said = ended(tmp_path, JOB + escapes, "--dry-run")
    assert code == 1, said
    assert r"\x1b]0;owned" in said
    assert not {"\x1b", "\a", "\u202e"} & set(said)


TWO = """
  - name: table
    view: rows
    format: iceberg
    options: {warehouse: "${FOLDER}/warehouse", path: db.rows}
streaming: {checkpointLocation: "${FOLDER}/checkpoint", batchMode: true, forEachBatchMode: true}
"""


@pytest.mark.once
@pytest.mark.long  # starts a server each time
@pytest.mark.usefixtures("rows")
def test_a_job_runs_over_spark_connect(tmp_path):
    """Test a job whose query id is known from the checkpoint only."""
    text = JOB.replace('\nstreaming: {checkpointLocation: "${FOLDER}/checkpoint"}', TWO.rstrip())
    for _ in range(2):
        code, said = ended(tmp_path, text, "--remote", "local[2]", session=())
        assert code == 0, said
        assert look(tmp_path / "out")[:2] == (COUNT * ROWS,) * 2
        assert ids(tmp_path / "warehouse") == list(range(COUNT * ROWS))


# --- kills


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.long  # two minutes; each_batch, which it runs on, is killed in tests of its own
@pytest.mark.timeout(2400)
def test_kills_of_a_job_lose_and_repeat_no_row(two_topics, tmp_path):
    kill_again_and_again("job_copy.py", two_topics.bootstrap, tmp_path, 800, 4)


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_tens_of_kills_of_a_job_lose_and_repeat_no_row(two_topics, tmp_path):
    kill_again_and_again("job_copy.py", two_topics.bootstrap, tmp_path, 4000, 30)
