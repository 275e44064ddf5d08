"""The display of options by Spark: plans, UI, event log. Values of references are not shown."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

SCRIPT = Path(__file__).parents[1] / "support" / "spark" / "shown_options.py"
KEY, CREDENTIAL = "hunter-of-keys", "hunter-of-credentials"


def shown(folder: Path, mode: str, options: dict[str, str]) -> tuple[dict[str, str], str]:
    """The texts, by place, and what the driver has logged."""
    command = [sys.executable, str(SCRIPT), str(folder / "spark"), mode, json.dumps(options)]
    own = {"ACCOUNT_KEY": KEY, "CATALOG": catalog_of(folder), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **own}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return json.loads(lines[0].removeprefix("RESULT ")), done.stderr


def catalog_of(folder: Path) -> str:
    """One whose URI is as good as a password."""
    (folder / "hunter-of-catalogs").mkdir(exist_ok=True)
    return f"sqlite:///{folder}/hunter-of-catalogs/catalog.db"


# Under Connect, Spark shows everything that a client sends: it is the harder one.
@pytest.mark.parametrize("mode", [pytest.param("classic", marks=pytest.mark.long), "connect"])
def test_nothing_is_shown_of_what_a_reference_names(tmp_path, mode):
    (tmp_path / "credential").write_text(f"{CREDENTIAL}\n")
    options = {
        "warehouse": str(tmp_path / "warehouse"),
        "catalog.uri": "${env:CATALOG}",
        "catalog.credential": f"${{file:{tmp_path}/credential}}",
        "storage.azure.accountKey": "${env:ACCOUNT_KEY}",
    }
    texts, log = shown(tmp_path, mode, options)
    assert not [place for place, text in {**texts, "log": log}.items() if "hunter" in text]
    assert "${env:CATALOG}" in texts["stream plan"], "it was not looked at what Spark shows"
    assert "is written out" not in log


@pytest.mark.long
def test_a_secret_that_is_written_out_works_and_is_told_of(tmp_path):
    options = {
        "warehouse": str(tmp_path / "warehouse"),
        "catalog.uri": catalog_of(tmp_path),
        "catalog.credential": CREDENTIAL,
        "storage.azure.accountKey": KEY,
    }
    texts, log = shown(tmp_path, "classic", options)
    # By its name Spark knows none of both for a secret, as docs/secrets.md says.
    assert all(KEY in texts[place] for place in ("stream plan", "events", "plans of REST"))
    assert CREDENTIAL not in texts["checkpoint"]
    told = [line for line in log.splitlines() if "a secret is written out" in line]
    assert all("catalog.credential, storage.azure.accountkey" in line for line in told)
    assert 1 <= len(told) <= 6, "once for each process"


# A store that is down is waited for, for some minutes.
@pytest.mark.parametrize("way", ["repeats", pytest.param("down", marks=pytest.mark.long)])
def test_no_signature_is_shown_when_a_store_fails_while_a_task_writes(tmp_path, way):
    script = str(SCRIPT.with_name("azure_goes_down.py"))
    own = {"SIGNATURE": "hunter7f3a+b/c=", "SPARK_LOCAL_IP": "127.0.0.1"}
    most = {"SPARK_TRACEBACK_WITH_LOCALS": "1"}  # all that Spark can be told to show
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **own, **most}
    done = subprocess.run(
        [sys.executable, script, str(tmp_path / "spark"), way],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    shown = {**json.loads(lines[0].removeprefix("RESULT ")), "log": done.stderr}
    assert "cannot write to the upload of az://c/table" in shown["exception"]
    assert [place for place, text in shown.items() if "hunter7f3a" in text] == []
