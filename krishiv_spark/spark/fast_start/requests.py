"""The protocol between launchers and the zygote of their JVM, on a Unix socket of one user."""

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
"""The first byte that a zygote sends when it is ready; no request was sent before that.

Change the letter with each change of the protocol: after an upgrade, a launcher may be newer than
the zygote.
"""

SERVED = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")
"""The modules that Spark starts for each query. Of its other modules it starts one process at
most."""

SECRET = "PYTHON_WORKER_FACTORY_SECRET"  # noqa: S105  the name of a variable
"""Variable with the secret by which a JVM and one Python process authenticate each other."""

_SPACE = "/proc/self/ns/pid"
_SPACES = ("pid", "mnt")
"""Namespaces that differ between containers: those of process ids and of mounts."""

_MOST_BYTES = 16 * 2**20
"""Limit of a request. The kernel limits the environment of a process to 2 MiB, or 6 MiB at most."""

_STREAMS = (0, 1, 2)
_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")

ALLOCATOR = "JE_ARROW_MALLOC_CONF"
"""Variable with settings of PyArrow's jemalloc, which is used only if it is requested."""

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
"""Variables that PySpark reads when it needs them, so that a fork may have other values than the
zygote."""


class Request(NamedTuple):
    """A process that Spark has started, and that a fork is to replace.

    Attributes:
        module: The module that is run as ``__main__``.
        arguments: The arguments after the module.
        folder: The working directory.
        environment: All environment variables.
        python: Path and version of the interpreter.
    """

    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    python: list[str]

    @classmethod
    def own(cls, module: str, arguments: list[str]) -> Request:
        """Return the request of this process."""
        return cls(module, arguments, os.getcwd(), dict(os.environ), [sys.executable, sys.version])

    def fits(self) -> bool:
        """Return True if a fork of this process is equivalent to a new interpreter."""
        here = Request.own("", [])
        return self.python == here.python and _lasting(self.environment) == _lasting(
            here.environment
        )


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter, or a library that it loads, reads once."""
    kept = {name: text for name, text in environment.items() if name not in _OF_EACH_START}
    # Spark sets it for tasks. A planner needs one thread, but would start one for each processor.
    kept.setdefault("OMP_NUM_THREADS", "1")
    # The search for formats gets the same folders twice.
    paths = kept.get("PYTHONPATH", "").split(os.pathsep)
    kept["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return kept


class Parent(NamedTuple):
    """The JVM that has started a process. Its process id alone may be reused by a later process.

    Attributes:
        number: Its process id.
        begun: Its start time, in the kernel's ticks since the boot.
        space: The namespace of the process id: containers that share a folder have separate ids.
    """

    number: int
    begun: int
    space: int

    @property
    def name(self) -> str:
        """The name of the socket of its zygote."""
        return "-".join(map(str, self))

    @classmethod
    def of_this_process(cls) -> Parent:
        """Return the process that has started this process."""
        return cls.at(os.getppid())

    @classmethod
    def at(cls, number: int) -> Parent:
        """Return the process with this process id.

        Raises:
            OSError: If there is no such process, or no ``/proc``.
        """
        return cls(number, int(_stat_of(number)[19]), os.stat(_SPACE).st_ino)

    def is_elsewhere(self) -> bool:
        """Return True if the process is in another container, so that its state is unknown here."""
        return self.space != os.stat(_SPACE).st_ino

    def is_alive(self) -> bool:
        """Return True if the process runs. Not for a process of another container."""
        try:
            return Parent.at(self.number) == self
        except FileNotFoundError:
            return False


def private_folder() -> str:
    """Return the folder of the sockets; create it if it does not exist.

    Raises:
        OSError: If it cannot be created, or if other users have access to it.
    """
    home = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  accessible to this user only
    folder = os.path.join(home, f"krishiv-spark-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def is_own(connection: socket.socket) -> bool:
    """Return True if the peer is a process of this user and of this container.

    A container with the same user may share the folder of sockets. Its processes have no process id
    here (0), or other namespaces.
    """
    number, user, _ = _peer(connection)
    try:
        return user == os.geteuid() and _spaces(number) == _spaces(os.getpid())
    except OSError:  # it has no process id here, or has ended
        return False


def is_child_of(connection: socket.socket, parent: Parent) -> bool:
    """Return True if the peer was started by a JVM, as launchers are."""
    try:
        return _parent_of(_peer(connection)[0]) == parent.number and parent.is_alive()
    except OSError:
        return False


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group of the process that connected, or that listened last."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    number, user, group = _CREDENTIALS.unpack(found)
    return number, user, group


def _spaces(number: int) -> list[tuple[int, int]]:
    found = [os.stat(f"/proc/{number}/ns/{name}") for name in _SPACES]
    return [(each.st_dev, each.st_ino) for each in found]


def _stat_of(number: int) -> list[str]:
    """Return the fields of ``/proc/<number>/stat`` after the name of the program."""
    with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
        # The name may contain any character, but ends at the last bracket.
        return file.read().rpartition(")")[2].split()


def _parent_of(number: int) -> int:
    return int(_stat_of(number)[1])


def send(connection: socket.socket, request: Request) -> None:
    """Send a request, with the standard streams of this process."""
    text = json.dumps(request).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(text))], _STREAMS)
    connection.sendall(text)


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    """Return a request, and the descriptors of the three standard streams of its sender.

    Raises:
        OSError: If it does not arrive completely.
        ValueError, TypeError: If it is not a request, or one that no launcher sends.
    """
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, len(_STREAMS))
    try:
        if len(head) != _LENGTH.size or len(streams) != len(_STREAMS):
            raise ConnectionError("a launcher has gone")
        (length,) = _LENGTH.unpack(head)
        if length > _MOST_BYTES:
            raise ValueError(f"a request of {length} bytes")
        with connection.makefile("rb") as stream:
            return _validate(json.loads(stream.read(length))), streams
    except BaseException:
        for each in streams:
            os.close(each)
        raise


def _validate(given: object) -> Request:
    """Return a request after checking the types of its parts, and that its module is served."""
    if not isinstance(given, list):
        raise TypeError("a request is a list")
    request = Request(*given)
    texts = [request.module, request.folder, *request.arguments, *request.python]
    texts += [part for pair in dict(request.environment).items() for part in pair]
    if not all(isinstance(text, str) for text in texts) or request.module not in SERVED:
        raise ValueError("no process of Spark's is started like this")
    return request
