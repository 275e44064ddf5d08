"""Spark Connect's client for the JVM, with the Scala compiler: both are among PySpark's jars."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from patience import PATIENCE
from quick_jvm import INSTALLED, OPTIONS

from krishiv_spark.kafka.dev.maven import java, run_java

JARS = INSTALLED / "jars"
SOURCE = Path(__file__).with_name("connect_copy.scala")
# Arrow reaches into memory, as Spark's own programs let it.
OPENED = "--add-opens=java.base/java.nio=ALL-UNNAMED"


class Stopped(NamedTuple):
    """The report of the client about a query before its end."""

    query: str
    rows: int
    active: bool


def compile_client(folder: Path) -> Path:
    """The folder with the classes of the client; `folder` has to be there."""
    compiler = (*OPTIONS.split(), "-cp", f"{JARS}/*", "scala.tools.nsc.Main")
    run_java(
        *compiler, "-d", str(folder), "-cp", _client(), str(SOURCE), failure="Scala refuses it"
    )
    return folder


def run_client(classes: Path, *arguments: str) -> Stopped:
    """Run the client to its end, by its own arguments."""
    with start_client(classes, *arguments) as client:
        out, _ = client.communicate(timeout=2 * PATIENCE)
    assert client.returncode == 0, out
    (said,) = (line for line in out.splitlines() if line.startswith("STOPPED "))
    _, query, rows, active = said.split()
    return Stopped(query, int(rows), active == "true")


def start_client(classes: Path, *arguments: str) -> subprocess.Popen:
    """The client, running; `communicate` reads what it prints, errors among it."""
    program = ("-Xmx256m", OPENED, "-cp", f"{classes}:{_client()}", "ConnectCopy", *arguments)
    return subprocess.Popen(
        [java(), *OPTIONS.split(), *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _client() -> str:
    """The client first: it brings its own kind of session, which a server's jars have too."""
    (client,) = (JARS / "connect-repl").glob("spark-connect-client-jvm_*.jar")
    servers = ("spark-sql_", "spark-connect_")
    others = (jar for jar in JARS.glob("*.jar") if not jar.name.startswith(servers))
    return ":".join(map(str, (client, *others)))
