"""Threads in which the servers of tests answer."""

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from typing import TypeVar

Server = TypeVar("Server", bound=socketserver.BaseServer)


@contextlib.contextmanager
def serve(server: Server) -> Iterator[Server]:
    """Let a server answer in a thread of its own, and close it at the end.

    Args:
        server: A server that listens. It ends 20 ms after it was told to; by the library's default
            that is half a second, for which a test would wait.
    """
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
