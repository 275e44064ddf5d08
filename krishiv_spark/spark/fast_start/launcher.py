"""The program that Spark starts as its Python; it imports very little, since Spark waits for it.

``krishiv-spark-python`` runs it by ``python -I``, without Spark's archives on the path: searching
them takes longer than all the rest.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys

from krishiv_spark.spark.fast_start.requests import (
    ALLOCATOR,
    GREETING,
    SECRET,
    SERVED,
    Parent,
    Request,
    is_own,
    private_folder,
    send,
)

__all__ = ["main"]

_ZYGOTE = "krishiv_spark.spark.fast_start.zygote"
_PATIENCE_S = 5.0
"""Time limit for a zygote to import; Spark waits 10 to 15 s for the process."""


def main() -> None:
    """Replace this process: by a fork of the zygote, or by a new interpreter."""
    options = sys.argv[1:]
    if options[:1] == ["-m"] and options[1:2] and options[1] in SERVED:
        with contextlib.suppress(OSError, AttributeError):
            if (connection := _reach(Parent.of_this_process())) is not None:
                _ask(connection, Request.own(options[1], options[2:]))
    os.execv(sys.executable, [sys.executable, *options])  # noqa: S606  the command that Spark has given


def _reach(parent: Parent) -> socket.socket | None:
    """Return a connection to the zygote of a JVM, and start the zygote if none was started.

    A zygote that has died is not started again, since the cause of its failure may remain.
    """
    folder = private_folder()
    # A socket's path has at most 107 bytes, and folders of containers are often longer.
    place = f"/proc/self/fd/{os.open(folder, os.O_RDONLY)}/{parent.name}"
    if not os.path.exists(place):
        _start(place, folder, parent)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    connection.settimeout(_PATIENCE_S)
    is_ready = is_own(connection) and connection.recv(1) == GREETING
    connection.settimeout(None)
    return connection if is_ready else None


def _start(place: str, folder: str, parent: Parent) -> None:
    """Start a zygote.

    Its socket listens before it gets its name, so that every client is accepted.
    """
    import subprocess

    os.pidfd_open  # noqa: B018  AttributeError where it would fail: not Linux
    aside = f"{place}.{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(aside)
        listener.listen(128)
        try:
            os.link(aside, place)
        except FileExistsError:
            return  # another launcher was faster
        finally:
            os.unlink(aside)
        subprocess.Popen(  # noqa: S603  ourselves
            [sys.executable, "-m", _ZYGOTE, folder, str(listener.fileno()), *map(str, parent)],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # signals to a terminal's processes do not reach it
        )


def _environment() -> dict[str, str]:
    """Return the environment of a zygote, which all processes of this user can read while it runs.

    So it does not contain this start's secret; each fork receives its own with its request.
    """
    kept = {name: text for name, text in os.environ.items() if name != SECRET}
    # Threads do not survive a fork. NumPy starts some, and so does an allocator of Arrow.
    return {"OMP_NUM_THREADS": "1", ALLOCATOR: "background_thread:false", **kept}


def _ask(connection: socket.socket, request: Request) -> None:
    """Let a fork do the request and exit with its code.

    Returns if the zygote has not started one.
    """
    ends = _hear_of_sigterm()
    send(connection, request)
    _, forked, _, _ = socket.recv_fds(connection, 1, 1)
    if forked:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Spark's daemon has left the terminal's group
        os._exit(_stand_in(connection, forked[0], ends))  # nothing remains to be closed or written
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if select.select([ends], [], [], 0)[0]:
        signal.raise_signal(signal.SIGTERM)


def _hear_of_sigterm() -> int:
    """Return a descriptor that becomes readable at SIGTERM, even if it arrived before the wait."""
    ends, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return ends


def _stand_in(connection: socket.socket, child: int, ends: int) -> int:
    """Forward SIGTERM until the process has ended; return its exit code."""
    while child not in (ready := select.select([child, ends], [], [])[0]):
        os.read(ends, len(ready))
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            signal.pidfd_send_signal(child, signal.SIGTERM)
    told = connection.recv(1)  # empty if the zygote was killed
    return told[0] if told else 1


if __name__ == "__main__":
    main()
