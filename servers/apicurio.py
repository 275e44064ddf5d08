"""Apicurio Registry, which has the interface of Confluent's."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from krishiv_spark.kafka.dev.clusters import free_ports
from krishiv_spark.kafka.dev.maven import Jar, bring, java
from krishiv_spark.runtime.caches import user_cache
from servers.processes import Server, expect_answer, running

__all__ = ["running_registry"]

_APP = Jar("io.apicurio", "apicurio-registry-app", "2.6.13.Final", "all", "tar.gz")
"""The newest version for Java 17; 3.x needs Java 21."""


def _unpack() -> Path:
    """Return the folder of the program, which the first call downloads and unpacks."""
    (archive,) = bring(f"apicurio-{_APP.version}", [_APP], transitive=False).iterdir()
    folder = user_cache() / f"apicurio-{_APP.version}-unpacked"
    if not folder.exists():
        with TemporaryDirectory(dir=user_cache()) as aside:
            with tarfile.open(archive) as packed:
                packed.extractall(Path(aside) / "files", filter="data")
            if not folder.exists():
                (Path(aside) / "files").rename(folder)
    return folder


@contextmanager
def running_registry(folder: Path) -> Iterator[tuple[str, Server]]:
    """Run a registry that keeps its schemas in memory.

    Yields:
        The address of Confluent's interface, and the process.
    """
    (port,) = free_ports(1)
    program = next(_unpack().glob("*-runner.jar"))
    command = [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1"]
    command += [f"-Dquarkus.http.port={port}", "-jar", str(program)]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with running(command, folder, lambda: expect_answer(f"{url}/subjects")) as server:
        yield url, server
