"""Servers on loopback that fail in a certain way, for connectors that are to report it."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias

__all__ = ["Way", "failing_server"]

Way: TypeAlias = Literal["refuses", "hangs up", "repeats"]
"""No process listens; connections are reset after the first bytes; each request is answered by 401
and a page that repeats it, headers and body included, as servers do that help to debug."""

_MOST = 64 * 2**10


@contextlib.contextmanager
def failing_server(way: Way) -> Iterator[str]:
    """Run a server that fails.

    Yields:
        Its address, as ``127.0.0.1:port``.
    """
    if way == "refuses":
        with socket.socket() as bound:  # it does not listen, and no other process gets the port
            bound.bind(("127.0.0.1", 0))
            yield f"127.0.0.1:{bound.getsockname()[1]}"
        return
    kind: type[socketserver.TCPServer] = _Server
    handler: type[socketserver.BaseRequestHandler] = _HangUp
    if way == "repeats":
        kind, handler = ThreadingHTTPServer, _Repeat
    server = kind(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


class _HangUp(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1)
        # With this option, closing resets the connection.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class _Repeat(BaseHTTPRequestHandler):
    def _repeat(self) -> None:
        size = min(int(self.headers.get("Content-Length") or 0), _MOST)
        said = f"{self.path} {dict(self.headers)} {self.rfile.read(size)!r}".encode()
        self.send_response(401)
        self.send_header("Content-Length", str(len(said)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _repeat  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name there
        """Nothing: standard error is pytest's."""
