"""Threads in which the servers of tests answer."""

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from typing import TypeVar

Server = TypeVar("Server", bound=socketserver.BaseServer)


@contextlib.contextmanager
def serve_in_thread(server: Server) -> Iterator[Server]:
    """Let a server answer in a thread of its own, and close it at the end.

    Args:
        server: A server that listens. It ends within 20 ms; by the library's default, a test would
            wait for it up to half a second.
    """
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
