"""Stores on loopback, each with a folder and a port of its own: S3, Google, Azure, HDFS.

Each is what others have written and use to test against: moto, versitygw, fake-gcs-server,
Azurite, Hadoop's mini cluster.
"""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from getpass import getuser
from pathlib import Path

import pyspark

from krishiv_spark.kafka.dev.clusters import free_ports
from krishiv_spark.kafka.dev.maven import Jar, bring, java
from servers.gcs_xml import speaking_xml
from servers.processes import Server, expect_answer, running
from servers.programs import from_go, from_npm

__all__ = ["ACCOUNT", "HADOOP", "KEY", "OPENED", "Store"]

HADOOP = "3.5.0"
AZURITE = Path(__file__).with_name("azurite")  # its version, and the hash of all that it needs
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, which its documentation names."""

USER, SECRET = "somebody", "hunter2-very-secret"


@dataclass
class Store:
    """A store with a place to write to.

    Attributes:
        url: Of an empty bucket or folder.
        options: How it is reached.
        process: Its server's id, to be paused or killed; 0 for one inside this process.
        secrets: Texts that no error may show.
        hadoop: How Spark's own client reaches it, as settings of Hadoop.
        restart: Kills its server and starts it again, if it keeps on a disk what it has.
    """

    url: str
    options: Mapping[str, str]
    process: int = 0
    secrets: tuple[str, ...] = field(default=())
    hadoop: Mapping[str, str] = field(default_factory=dict)
    restart: Callable[[], None] | None = None


@contextmanager
def open_s3(folder: Path) -> Iterator[Store]:
    """moto's server."""
    (port,) = free_ports(1)
    program = str(Path(__file__).with_name("moto_server.py"))
    command = [sys.executable, program, "-H", "127.0.0.1", "-p", str(port)]
    endpoint = f"http://127.0.0.1:{port}"

    def made() -> None:
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/box", method="PUT"), timeout=5)

    with running(command, folder, made) as server:
        yield _s3_store(endpoint, server)


@contextmanager
def open_versity(folder: Path) -> Iterator[Store]:
    """versitygw, which keeps objects as files and reads signatures."""
    (port,) = free_ports(1)
    box, aside, users = folder / "files" / "box", folder / "aside", folder / "users"
    for each in (box, aside, users):
        each.mkdir(parents=True)
    login = ("--access", USER, "--secret", SECRET)
    command = [from_go(VERSITYGW), *login, "--port", f"127.0.0.1:{port}", "--quiet"]
    command += ["--iam-dir", str(users), "posix"]
    command += ["--sidecar", str(aside), str(box.parent)]  # of attributes, which tmpfs has not
    endpoint = f"http://127.0.0.1:{port}"
    with running(command, folder, lambda: expect_answer(endpoint)) as server:
        yield replace(_s3_store(endpoint, server), restart=server.restart)


def _s3_store(endpoint: str, server: Server) -> Store:
    options = {"region": "us-east-1", "accessKeyId": USER, "secretAccessKey": SECRET}
    named = {f"storage.s3.{name}": value for name, value in options.items()}
    hadoop = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": USER,
        "secret.key": SECRET,
    }
    return Store(
        "s3a://box/some/place",
        {"storage.s3.endpoint": endpoint, **named},
        server.pid,
        (SECRET,),
        {f"fs.s3a.{name}": value for name, value in hadoop.items()},
    )


@contextmanager
def open_gcs(folder: Path) -> Iterator[Store]:
    """fake-gcs-server."""
    (port,) = free_ports(1)
    (folder / "data" / "box").mkdir(parents=True)
    command = [from_go(FAKE_GCS), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-data", str(folder / "data")]
    endpoint = f"http://127.0.0.1:{port}"
    command += ["-public-host", f"127.0.0.1:{port}", "-external-url", endpoint]
    with (
        running(command, folder, lambda: expect_answer(f"{endpoint}/storage/v1/b/box")) as server,
        speaking_xml(endpoint) as xml,
    ):
        options = {"storage.gcs.endpoint": xml, "storage.gcs.anonymous": "true"}
        hadoop = {
            "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
            "fs.gs.storage.root.url": f"{endpoint}/",
            "fs.gs.auth.service.account.enable": "false",
            "fs.gs.auth.null.enable": "true",
            "fs.gs.project.id": "any",
            **{f"fs.gs.{name}": str(2**23) for name in _SIZES_OF_GCS},
        }
        yield Store("gs://box/some/place", options, server.pid, hadoop=hadoop)


_SIZES_OF_GCS = (
    "block.size",
    "inputstream.inplace.seek.limit",
    "inputstream.min.range.request.size",
    "outputstream.buffer.size",
    "rewrite.max.chunk.size",
)
"""Sizes that Hadoop's own defaults have with units, and Google's client takes without."""


@contextmanager
def open_azure(folder: Path) -> Iterator[Store]:
    """Azurite, from npm."""
    from azure.storage.blob import BlobServiceClient

    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    where = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder))
    program = from_npm(AZURITE, "azurite-blob")
    command = ["node", program, *where, "--silent", "--skipApiVersionCheck"]

    def made() -> None:
        once = {"retry_total": 0, "connection_timeout": 5}
        BlobServiceClient(endpoint, credential=KEY, **once).create_container("box")

    with running(command, folder, made) as server:
        options = {"storage.azure.endpoint": endpoint, "storage.azure.accountKey": KEY}
        hadoop = {
            "abfs.endpoint": endpoint.split("/")[2],
            "account.key": KEY,
            "always.use.https": "false",
            "account.hns.enabled": "false",
            "fns.account.service.type": "BLOB",  # Azurite does not know the other one's requests
            "ingress.service.type": "BLOB",
            "networking.library": "JDK_HTTP_URL_CONNECTION",  # the other one wants HTTPS
        }
        named = {f"fs.azure.{name}": value for name, value in hadoop.items()}
        url = f"abfs://box@{ACCOUNT}.dfs.core.windows.net/some"
        yield Store(url, options, server.pid, (KEY,), named)


_LOOKS_AGAIN = "dfs.client.block.write.locateFollowingBlock.initial.delay.ms"
"""Delay until a DataNode asks again whether the NameNode knows of a block."""


@contextmanager
def open_hdfs(folder: Path) -> Iterator[Store]:
    """Start a NameNode and a DataNode in one process."""
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
    command += ["-D", f"{_LOOKS_AGAIN}=10"]  # half of all files wait so long, by default 400 ms
    endpoint = f"http://127.0.0.1:{http}"

    def made() -> None:
        beans = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        said = urllib.request.urlopen(f"{endpoint}/{beans}", timeout=5).read()
        assert b'"NumLiveDataNodes" : 1' in said

    with running(command, folder, made) as server:
        options = {"storage.hdfs.endpoint": endpoint, "storage.hdfs.user": getuser()}
        yield Store(f"hdfs://127.0.0.1:{rpc}/some/place", options, server.pid)


OPENED: Mapping[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "s3": open_s3,
    "versity": open_versity,
    "gcs": open_gcs,
    "azure": open_azure,
    "hdfs": open_hdfs,
}
