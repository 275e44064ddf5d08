"""A Spark Connect server on loopback, from PySpark's own jars: for clients in any language."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import quick_jvm

from krishiv_spark.kafka.dev.clusters import free_ports
from servers.processes import running

MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The address of a server; it is killed at the end.

    What it finds of formats, it finds by itself: nothing is registered, and no client is Python's.
    """
    (port,) = free_ports(1)
    folder.mkdir()
    own = (f"KRISHIV_MEMORY_DIR={folder}/memory", f"PYSPARK_PYTHON={sys.executable}")
    command = ["env", *own, f"SPARK_HOME={quick_jvm.home()}", *_submitted(port, folder)]
    with running(command, folder, partial(_connect, port)):
        yield f"sc://127.0.0.1:{port}"


def _submitted(port: int, folder: Path) -> list[str]:
    submit = os.path.join(quick_jvm.home(), "bin", "spark-submit")
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.ui.enabled": "false",
    }
    given = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    java = ("--driver-memory", "1g", "--driver-java-options", quick_jvm.options())
    return [submit, "--class", MAIN, "--master", "local[2]", *java, *given, "spark-internal"]


def _connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
