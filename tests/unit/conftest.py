"""Storage for the tests of logs: in memory, on a disk, in an object store; and tasks of Spark."""

import os
import urllib.request
import uuid
from types import SimpleNamespace

import pytest
from forgetting_proxy import forgetting
from journals import ModelJournal
from sink_life import close_pool
from small_disks import Disk

from krishiv_spark.lifecycle import epoch_write
from krishiv_spark.offsets.journal import open_journal


@pytest.fixture(scope="module", autouse=True)
def no_process_outlives_its_module():
    yield
    close_pool()


@pytest.fixture(scope="session")
def s3_server():
    from moto.server import ThreadedMotoServer

    import servers.moto_server  # noqa: F401  exclusive writes, one at a time

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def in_task(monkeypatch):
    """Pretend to be inside a task of Spark, which sets such properties for it."""

    def enter(
        epoch: int | None, partition: int = 0, attempt: int = 7, query: str = "spark's"
    ) -> None:
        properties = {"streaming.sql.batchId": None if epoch is None else str(epoch)}
        properties["sql.streaming.queryId"] = query
        context = SimpleNamespace(
            getLocalProperty=properties.get,
            partitionId=lambda: partition,
            taskAttemptId=lambda: attempt,
            attemptNumber=lambda: 0,
        )
        monkeypatch.setattr(epoch_write, "TaskContext", SimpleNamespace(get=lambda: context))

    return enter


@pytest.fixture
def refuse_to_list(monkeypatch):
    """Makes a folder one that may not be listed: root may, whatever its mode."""

    def refuse(folder):
        for name in ("listdir", "scandir"):
            monkeypatch.setattr(os, name, refusing(getattr(os, name), str(folder)))

    return refuse


def refusing(list_names, folder):
    def listed(path="."):
        named = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
        if os.path.normpath(str(named)) == folder:
            raise PermissionError(13, "Permission denied", folder)
        return list_names(path)

    return listed


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The URL of a fresh bucket."""
    return fresh_bucket(s3_server, s3_server, monkeypatch)


@pytest.fixture
def lying_s3(s3_server, monkeypatch):
    """The same behind a proxy that does not pass 'If-None-Match' on, as some stores ignore it."""
    with forgetting("If-None-Match", s3_server) as proxy:
        yield fresh_bucket(s3_server, proxy, monkeypatch)


def fresh_bucket(server, endpoint, monkeypatch):
    bucket = f"log-{uuid.uuid4().hex}"
    request = urllib.request.Request(f"{server}/{bucket}", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}"


@pytest.fixture(
    params=["model", "disk", "object in memory", pytest.param("s3", marks=pytest.mark.long)]
)
def journal(request, tmp_path):
    if request.param == "model":
        return ModelJournal()
    if request.param == "disk":
        return open_journal(tmp_path / "a" / "log")
    if request.param == "object in memory":
        return open_journal(f"memory://{uuid.uuid4().hex}/log")
    return open_journal(f"{request.getfixturevalue('s3')}/some/log/")


@pytest.fixture
def disk(tmp_path):
    opened = []

    def mount(options):
        opened.append(Disk(tmp_path / "disk", options))
        return opened[-1]

    yield mount
    for each in opened:
        each.close()
