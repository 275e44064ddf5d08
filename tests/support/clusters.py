"""A Spark cluster of two hosts on loopback: speculation never runs twins on one host."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import quick_jvm
from typing_extensions import Self

HOME = Path(quick_jvm.home())


class Cluster:
    """A standalone master on 127.0.0.1, and workers with one core each on 127.0.0.2 and .3."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self.url = ""

    def __enter__(self) -> Self:
        self.url = self._start(
            "master.Master", r"Starting Spark master at (spark://\S+)", "127.0.0.1"
        )
        for host in ("127.0.0.2", "127.0.0.3"):
            work = str(self._folder / host)
            self._start(
                "worker.Worker", "(Successfully registered)", host, "--cores", "1",
                "--memory", "768M", "--work-dir", work, self.url,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()
            process.stdout.close()

    def _start(self, name: str, sign: str, host: str, *args: str) -> str:
        process = subprocess.Popen(
            [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}",
             "--host", host, "--port", "0", "--webui-port", "0", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "SPARK_HOME": str(HOME),
                "SPARK_LOCAL_IP": host,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": quick_jvm.options(),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOG_LEVEL": "INFO",
            },
        )  # fmt: skip
        self._processes.append(process)
        found = _await_sign(process.stdout, sign)
        threading.Thread(target=process.stdout.read, daemon=True).start()
        return found


def _await_sign(lines: IO[str], sign: str) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        if match := re.search(sign, line):
            return match[1]
    raise AssertionError(f"no {sign!r} in:\n" + "".join(seen))
