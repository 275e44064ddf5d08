"""Prometheus's own programs, where they are installed, and a server of it."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE, await_that

from krishiv_spark.kafka.dev.clusters import free_ports

OPERATE = Path(__file__).parents[3] / "docs" / "operate"


def program_or_skip(name: str) -> str:
    """The path of "prometheus" or "promtool"."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian and Ubuntu: apt-get install prometheus)")
    return found


def promtool(*words: object) -> str:
    """Return the findings of promtool about files in docs/operate."""
    command = [program_or_skip("promtool"), *map(str, words)]
    done = subprocess.run(command, cwd=OPERATE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def prometheus_server(folder: Path, target: str) -> Iterator[str]:
    """The URL of a server that scrapes one target every second, and has our alerts."""
    program = program_or_skip("prometheus")
    (port,) = free_ports(1)
    text = (OPERATE / "prometheus.yml").read_text()
    text = text.replace("127.0.0.1:9464", target).replace(
        "scrape_interval: 15s", "scrape_interval: 1s"
    )
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(OPERATE / "alerts.yml", folder)
    command = [
        program,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
    ]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        await_that(
            lambda: running.poll() is not None or _is_ready(url), "Prometheus does not start"
        )
        yield url
    finally:
        running.terminate()
        running.wait(PATIENCE)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready") as answer:
            return answer.status == 200
    except OSError:
        return False


def query_prometheus(url: str, expression: str) -> list[dict]:
    """Return the answer of a server to an expression: labels and values."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}") as answer:
        return json.load(answer)["data"]["result"]


def rules(url: str) -> list[dict]:
    """The alerts that a server has loaded."""
    with urllib.request.urlopen(f"{url}/api/v1/rules") as answer:
        groups = json.load(answer)["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]
