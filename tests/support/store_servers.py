"""Stores on loopback, each with a folder and a port of its own: S3, Azure, HDFS.

Each is what others have written and use to test against: moto, Azurite, Hadoop's mini cluster.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from patience import PATIENCE

from krishiv_spark.caches import user_cache
from krishiv_spark.kafka.dev.clusters import free_ports
from krishiv_spark.maven import Jar, bring, java

HADOOP = "3.5.0"
AZURITE = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, which its documentation names."""


@dataclass
class Store:
    """A store with a place to write to.

    Attributes:
        url: Of an empty bucket or folder.
        options: How it is reached.
        process: Its server's id, to be paused or killed; 0 for one inside this process.
        secrets: Texts that no error may show.
    """

    url: str
    options: Mapping[str, str]
    process: int = 0
    secrets: tuple[str, ...] = field(default=())


@contextmanager
def open_s3(folder: Path) -> Iterator[Store]:
    """moto's server."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    endpoint = f"http://127.0.0.1:{port}"

    def made() -> None:
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/box", method="PUT"), timeout=5)

    with _running(command, folder, made) as process:
        options = {
            "endpoint": endpoint,
            "region": "us-east-1",
            "accessKeyId": "somebody",
            "secretAccessKey": "hunter2-very-secret",
        }
        named = {f"storage.s3.{name}": value for name, value in options.items()}
        yield Store("s3a://box/some/place", named, process, ("hunter2-very-secret",))


@contextmanager
def open_azure(folder: Path) -> Iterator[Store]:
    """Azurite, from npm."""
    from azure.storage.blob import BlobServiceClient

    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    where = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder))
    command = ["node", _azurite(), *where, "--silent", "--skipApiVersionCheck"]

    def made() -> None:
        once = {"retry_total": 0, "connection_timeout": 5}
        BlobServiceClient(endpoint, credential=KEY, **once).create_container("box")

    with _running(command, folder, made) as process:
        options = {"storage.azure.endpoint": endpoint, "storage.azure.accountKey": KEY}
        yield Store(f"abfss://box@{ACCOUNT}.dfs.core.windows.net/some", options, process, (KEY,))


def _azurite() -> str:
    """Its program; the first call installs it."""
    folder = user_cache() / f"azurite-{AZURITE}"
    if not folder.exists():
        aside = folder.with_name(f".azurite-{os.getpid()}")
        command = ["npm", "install", "--silent", "--prefix", str(aside), f"azurite@{AZURITE}"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        if not folder.exists():
            aside.rename(folder)
    return str(folder / "node_modules" / ".bin" / "azurite-blob")


def has_npm() -> bool:
    """Whether Azurite can be had."""
    return shutil.which("npm") is not None


@contextmanager
def open_hdfs(folder: Path) -> Iterator[Store]:
    """A NameNode and a DataNode in one process."""
    rpc, http = free_ports(2)
    own = bring(
        f"hadoop-minicluster-{HADOOP}",
        [Jar("org.apache.hadoop", "hadoop-client-minicluster", HADOOP)],
        transitive=False,
    )
    junit = bring(
        "junit-5.13.4", [Jar("org.junit.jupiter", "junit-jupiter-api", "5.13.4")], transitive=True
    )
    jars = ":".join(f"{each}/*" for each in (own, junit, f"{pyspark.__path__[0]}/jars"))
    main = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
    ports = ("-nnport", str(rpc), "-nnhttpport", str(http))
    command = [java(), "-Xmx512m", "-cp", jars, main, "-format", "-nomr", *ports]
    command += ["-datanodes", "1", "-D", f"hadoop.tmp.dir={folder}"]
    endpoint = f"http://127.0.0.1:{http}"

    def made() -> None:
        beans = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        said = urllib.request.urlopen(f"{endpoint}/{beans}", timeout=5).read()
        assert b'"NumLiveDataNodes" : 1' in said

    with _running(command, folder, made) as process:
        options = {"storage.hdfs.endpoint": endpoint, "storage.hdfs.user": "root"}
        yield Store(f"hdfs://127.0.0.1:{rpc}/some/place", options, process)


@contextmanager
def _running(command: list[str], folder: Path, ready: Callable[[], object]) -> Iterator[int]:
    """A server's process, once `ready` raises nothing; killed at the end, or with this process."""
    tool = shutil.which("setpriv")  # of util-linux
    keeper = [tool, "--pdeathsig", "KILL"] if tool else []
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*keeper, *command], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _await(ready, server, folder / "log")
        yield server.pid
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()


def _await(ready: Callable[[], object], server: subprocess.Popen, log: Path) -> None:
    until_s = time.monotonic() + PATIENCE
    while True:
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            ready()
        except Exception:  # noqa: BLE001  whatever a client of it raises while it starts
            assert time.monotonic() < until_s, log.read_text()[-2000:]
            time.sleep(0.1)
        else:
            return
