"""What a launcher asks the zygote of its JVM for, on a Unix socket that only one user reaches."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Mapping
from typing import NamedTuple

__all__ = [
    "ALLOCATOR",
    "GREETING",
    "Parent",
    "Request",
    "is_own",
    "private_folder",
    "receive",
    "send",
]

GREETING = b"l"
"""What a zygote says when it is ready; before that, nobody has asked it for anything.

Another letter with each change of what follows: after an upgrade a launcher may be the newer one.
"""

_SPACE = "/proc/self/ns/pid"
_STREAMS = (0, 1, 2)
_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")

ALLOCATOR = "JE_ARROW_MALLOC_CONF"
"""Settings of PyArrow's jemalloc, which is not used unless somebody asks for it."""

_OF_EACH_START = frozenset(
    {
        ALLOCATOR,  # the zygote's own
        "PYSPARK_EXECUTOR_MEMORY_MB",
        "PYSPARK_PLANNER_MEMORY_MB",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE",
        "PYTHON_FAULTHANDLER_DIR",
        "PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS",
        "PYTHON_UDF_BATCH_SIZE",
        "PYTHON_UNIX_DOMAIN_ENABLED",
        "PYTHON_WORKER_FACTORY_PORT",
        "PYTHON_WORKER_FACTORY_SECRET",
        "PYTHON_WORKER_FACTORY_SOCK_DIR",
        "PYTHON_WORKER_FACTORY_SOCK_PATH",
        "SPARK_AUTH_SOCKET_TIMEOUT",
        "SPARK_BUFFER_SIZE",
        "SPARK_CONNECT_LOCAL_URL",
        "SPARK_HIDE_TRACEBACK",
        "SPARK_JOB_ARTIFACT_UUID",
        "SPARK_LOCAL_DIRS",
        "SPARK_PYTHON_RUNTIME",
        "SPARK_REUSE_WORKER",
        "SPARK_SIMPLIFIED_TRACEBACK",
        "SPARK_TRACEBACK_WITH_LOCALS",
    }
)
"""What PySpark reads when it needs it: a fork may have other values than the zygote had."""


class Request(NamedTuple):
    """What Spark has started, to be done by a fork.

    Attributes:
        module: To be run as ``__main__``.
        arguments: After it.
        folder: The working directory.
        environment: All variables.
        python: Path and version of the interpreter.
    """

    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    python: list[str]

    @classmethod
    def own(cls, module: str, arguments: list[str]) -> Request:
        """That of this process."""
        return cls(module, arguments, os.getcwd(), dict(os.environ), [sys.executable, sys.version])

    def fits(self) -> bool:
        """Whether a fork of this process is what a new interpreter would be."""
        here = Request.own("", [])
        return self.python == here.python and _lasting(self.environment) == _lasting(
            here.environment
        )


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that an interpreter, or a library that it loads, reads once."""
    kept = {name: text for name, text in environment.items() if name not in _OF_EACH_START}
    # Spark says it to tasks; a planner needs no more threads, and would have as many as processors.
    kept.setdefault("OMP_NUM_THREADS", "1")
    # What looks formats up is told the same folders twice.
    paths = kept.get("PYTHONPATH", "").split(os.pathsep)
    kept["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return kept


class Parent(NamedTuple):
    """The JVM that has started a process; its number alone may be that of a later process.

    Attributes:
        number: Its process id.
        begun: When it was started, in the kernel's ticks since the boot.
        space: Which numbers these are: containers that share a folder have numbers of their own.
    """

    number: int
    begun: int
    space: int

    @property
    def name(self) -> str:
        """Of the socket of its zygote."""
        return "-".join(map(str, self))

    @classmethod
    def of_this_process(cls) -> Parent:
        """Whoever has started this process."""
        return cls.at(os.getppid())

    @classmethod
    def at(cls, number: int) -> Parent:
        """The process of that number.

        Raises:
            OSError: If there is none, or no ``/proc``.
        """
        space = os.stat(_SPACE).st_ino
        with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
            # The name of the program may hold anything, but ends with the last bracket.
            after_name = file.read().rpartition(")")[2].split()
        return cls(number, int(after_name[19]), space)

    def is_elsewhere(self) -> bool:
        """Whether it is a process of another container, of which nothing can be said here."""
        return self.space != os.stat(_SPACE).st_ino

    def is_alive(self) -> bool:
        """Whether it runs; of one that is not elsewhere."""
        try:
            return Parent.at(self.number) == self
        except FileNotFoundError:
            return False


def private_folder() -> str:
    """Where the sockets are; made, if it is not there.

    Raises:
        OSError: If it cannot be made, or is not this user's alone.
    """
    home = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  what is made there lets nobody else in
    folder = os.path.join(home, f"krishiv-spark-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def is_own(connection: socket.socket) -> bool:
    """Whether this user is at the other end."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1]) == os.geteuid()


def send(connection: socket.socket, request: Request) -> None:
    """Hand a request on, with the standard streams of this process."""
    text = json.dumps(request).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(text))], _STREAMS)
    connection.sendall(text)


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    """A request, and descriptors of the three streams of who has sent it.

    Raises:
        OSError: If it does not come whole.
        ValueError, TypeError: If it is none.
    """
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, len(_STREAMS))
    try:
        if len(head) != _LENGTH.size or len(streams) != len(_STREAMS):
            raise ConnectionError("a launcher has gone")
        with connection.makefile("rb") as stream:
            return Request(*json.loads(stream.read(*_LENGTH.unpack(head)))), streams
    except BaseException:
        for each in streams:
            os.close(each)
        raise
