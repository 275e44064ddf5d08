"""examples/compose.yaml has the form that Compose reads; the images are not run here."""

import re
import shutil
import subprocess
import sys

import pytest
import yaml
from wheels import ROOT

from krishiv_spark.kafka.dev.brokers import KAFKA_VERSION
from servers.stores import VERSITYGW

FILE = ROOT / "examples" / "compose.yaml"


def services():
    return yaml.safe_load(FILE.read_text())["services"]


@pytest.mark.long  # starts check-jsonschema
def test_it_has_the_form_that_compose_reads():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, FILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_itself_reads_it():
    docker = shutil.which("docker")
    known = docker and subprocess.run(
        [docker, "compose", "version"], capture_output=True, check=False
    )
    if not known or known.returncode:
        pytest.skip("docker compose is not installed")
    done = subprocess.run(
        [docker, "compose", "--file", FILE, "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_broker_and_store_are_of_the_versions_that_are_tested():
    images = {name: service.get("image", "") for name, service in services().items()}
    broker, store = (images[name].partition("@sha256:")[0] for name in ("broker", "store"))
    assert broker == f"apache/kafka:{KAFKA_VERSION}"
    assert store.split(":v")[1] == VERSITYGW.split("@v")[1]
    without_digest = {name for name, image in images.items() if image and "@sha256:" not in image}
    assert without_digest == {"catalog"}


def test_nothing_listens_beyond_this_machine():
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_what_one_service_says_of_another_is_its_name():
    text = FILE.read_text()
    named = set(re.findall(r"(?:http|INSIDE)://([a-z]+):\d", text))
    assert named <= services().keys()
