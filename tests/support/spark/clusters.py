"""Spark's standalone clusters on loopback: speculation never runs twins on one host."""

import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import psutil
import quick_jvm
from machines import Machine
from typing_extensions import Self

HOME = Path(quick_jvm.home())


class Daemon:
    """A master or a worker of Spark.

    Args:
        main: Its class, below ``org.apache.spark.deploy``.
        host: Its address.
        more: Its arguments.
        sign: What it says when it is ready.
        machine: On which it runs, if not on this one.
    """

    def __init__(
        self, main: str, host: str, *more: str, sign: str, machine: Machine | None = None
    ) -> None:
        command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{main}"]
        command += ["--host", host, "--port", "0", "--webui-port", "0", *more]
        own = os.environ if machine is None else machine.environment()
        self._process = subprocess.Popen(
            command if machine is None else machine.command(*command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**own, "SPARK_LOCAL_IP": host, **_SETTINGS},
        )
        self.said = _await_sign(self._process.stdout, sign)
        threading.Thread(target=self._process.stdout.read, daemon=True).start()

    def kill(self) -> None:
        """``kill -9``; a worker's executors end a moment later by themselves."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def end(self) -> None:
        """Ask it to end, and wait for that."""
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()


_SETTINGS = {
    "SPARK_HOME": str(HOME),
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": quick_jvm.options(),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOG_LEVEL": "INFO",
}


def start_master(host: str = "127.0.0.1", machine: Machine | None = None) -> Daemon:
    """A master; what it said is its URL."""
    sign = r"Starting Spark master at (spark://\S+)"
    return Daemon("master.Master", host, sign=sign, machine=machine)


def start_worker(
    url: str, host: str, folder: str, *, cores: int = 1, machine: Machine | None = None
) -> Daemon:
    """A worker of the master at a URL."""
    given = ("--cores", str(cores), "--memory", f"{768 * cores}M", "--work-dir", folder, url)
    sign = "(Successfully registered)"
    return Daemon("worker.Worker", host, *given, sign=sign, machine=machine)


class Cluster:
    """A master on 127.0.0.1, and workers with one core each on 127.0.0.2 and .3."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[Daemon] = []
        self.url = ""

    def __enter__(self) -> Self:
        master = start_master()
        self.url = master.said
        self._daemons.append(master)
        for host in ("127.0.0.2", "127.0.0.3"):
            self._daemons.append(start_worker(self.url, host, str(self._folder / host)))
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.end()


class ManyMachines:
    """A master, two workers with two cores each, and drivers: each on a machine of its own.

    Attributes:
        url: Of the master.
        workers: The machines of the workers.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._daemons: dict[str, Daemon] = {}
        self._random = random.Random(0)  # which machine; when, is the killer's seed

    def __enter__(self) -> Self:
        self._master = start_master("127.0.0.4", self._machine("master", "127.0.0.4"))
        self.url = self._master.said
        self.workers = [self._machine(f"worker {n}", f"127.0.0.{n}") for n in (2, 3)]
        for machine in self.workers:
            self._start_worker(machine)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for daemon in (*self._daemons.values(), self._master):
            daemon.kill()

    def new_driver(self) -> Machine:
        """A machine on which no driver has run before."""
        return self._machine("driver", "127.0.0.1")

    def conf(self) -> Mapping[str, str]:
        """Settings of a session."""
        return {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "2",
            "spark.executor.extraJavaOptions": quick_jvm.options(),
        }

    def processes_of_workers(self) -> list[psutil.Process]:
        """Return the processes on the machines of the workers."""
        return [each for machine in self.workers for each in machine.processes()]

    def kill_executor(self) -> None:
        """``kill -9`` of one, if there is one; Spark starts another."""
        machine, other = self._random.sample(self.workers, 2)
        _ = machine.kill(_is_executor) or other.kill(_is_executor)

    def restart_worker(self) -> None:
        """``kill -9`` of all that runs on a worker's machine, and a new worker there."""
        machine = self._random.choice(self.workers)
        self._daemons.pop(machine.name).kill()
        machine.kill(_is_executor)
        machine.kill(is_python_worker)
        self._start_worker(machine)

    def _machine(self, name: str, host: str) -> Machine:
        return self._stack.enter_context(Machine(name, host))

    def _start_worker(self, machine: Machine) -> None:
        given = {"cores": 2, "machine": machine}
        daemon = start_worker(self.url, machine.host, "/tmp/work", **given)
        self._daemons[machine.name] = daemon


def _is_executor(command: Sequence[str]) -> bool:
    """Return True if a command line is that of Spark's executor."""
    return "org.apache.spark.executor.CoarseGrainedExecutorBackend" in command


def is_python_worker(command: Sequence[str]) -> bool:
    """Return True if a command line is that of a Python worker, or of its forking parent.

    The JVM's names PySpark too: its program is ``pyspark-shell``, in PySpark's folder.
    """
    return any(word.startswith("pyspark.") for word in command)


def _await_sign(lines: IO[str], sign: str) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        if match := re.search(sign, line):
            return match[1]
    raise AssertionError(f"no {sign!r} in:\n" + "".join(seen))
