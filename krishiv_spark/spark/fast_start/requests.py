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
    "SECRET",
    "SERVED",
    "Parent",
    "Request",
    "is_child_of",
    "is_own",
    "private_folder",
    "receive",
    "send",
]

GREETING = b"l"
"""What a zygote says when it is ready; before that, nobody has asked it for anything.

Another letter with each change of what follows: after an upgrade a launcher may be the newer one.
"""

SERVED = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")
"""Modules that Spark starts for each query; of what else it starts there is one at most."""

SECRET = "PYTHON_WORKER_FACTORY_SECRET"  # noqa: S105  the name of a variable
"""What a JVM and one Python process know each other by."""

_SPACE = "/proc/self/ns/pid"
_SPACES = ("pid", "mnt")
"""Namespaces that differ between containers: of the numbers of processes, and of folders."""

_MOST_BYTES = 16 * 2**20
"""Of a request: the kernel gives a process 2 MiB for its variables, 6 MiB at most."""

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
        SECRET,
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
        return cls(number, int(_stat_of(number)[19]), os.stat(_SPACE).st_ino)

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
    """Return True if a process of this user and of this container is at the other end.

    A container with the same user may share the folder of sockets. Its processes have no number
    here (0), or other namespaces.
    """
    number, user, _ = _peer(connection)
    try:
        return user == os.geteuid() and _spaces(number) == _spaces(os.getpid())
    except OSError:  # it has no number here, or has ended
        return False


def is_child_of(connection: socket.socket, parent: Parent) -> bool:
    """Return True if the process at the other end was started by a JVM, as launchers are."""
    try:
        return _parent_of(_peer(connection)[0]) == parent.number and parent.is_alive()
    except OSError:
        return False


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group that connected, or that listened last."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    number, user, group = _CREDENTIALS.unpack(found)
    return number, user, group


def _spaces(number: int) -> list[tuple[int, int]]:
    found = [os.stat(f"/proc/{number}/ns/{name}") for name in _SPACES]
    return [(each.st_dev, each.st_ino) for each in found]


def _stat_of(number: int) -> list[str]:
    """Return the fields of ``/proc/<number>/stat`` after the name of the program."""
    with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
        # The name may contain anything, but ends with the last bracket.
        return file.read().rpartition(")")[2].split()


def _parent_of(number: int) -> int:
    return int(_stat_of(number)[1])


def send(connection: socket.socket, request: Request) -> None:
    """Hand a request on, with the standard streams of this process."""
    text = json.dumps(request).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(text))], _STREAMS)
    connection.sendall(text)


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    """A request, and descriptors of the three streams of who has sent it.

    Raises:
        OSError: If it does not come whole.
        ValueError, TypeError: If it is none, or one that no launcher sends.
    """
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, len(_STREAMS))
    try:
        if len(head) != _LENGTH.size or len(streams) != len(_STREAMS):
            raise ConnectionError("a launcher has gone")
        (length,) = _LENGTH.unpack(head)
        if length > _MOST_BYTES:
            raise ValueError(f"a request of {length} bytes")
        with connection.makefile("rb") as stream:
            return _checked(json.loads(stream.read(length))), streams
    except BaseException:
        for each in streams:
            os.close(each)
        raise


def _checked(given: object) -> Request:
    """Return a request whose parts are what they have to be, of a module that is served."""
    if not isinstance(given, list):
        raise TypeError("a request is a list")
    request = Request(*given)
    texts = [request.module, request.folder, *request.arguments, *request.python]
    texts += [part for pair in dict(request.environment).items() for part in pair]
    if not all(isinstance(text, str) for text in texts) or request.module not in SERVED:
        raise ValueError("no process of Spark's is started like this")
    return request
