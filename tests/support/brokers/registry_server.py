"""Servers before a real registry, which change requests or answers on their way."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from servers.threads import serve_in_thread

__all__ = ["RegistryHandler", "running_registry_server"]


class RegistryHandler(BaseHTTPRequestHandler):
    """A handler that forwards requests.

    Attributes:
        target: Address of the registry.
    """

    target = ""

    def do_GET(self) -> None:
        self.send(*self.forward(self.path))

    def do_POST(self) -> None:
        self.do_GET()

    def forward(self, path: str) -> tuple[int, bytes]:
        """Send the request to the registry; return status and body of its answer."""
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else None
        sent = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(self.target + path, body, sent, method=self.command)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def send(self, status: int, body: bytes) -> None:
        """Answer with a JSON text."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def running_registry_server(
    kind: type[RegistryHandler],
    target: str,
    certificate: tuple[Path, Path] | None = None,
    **state: object,
) -> Iterator[str]:
    """Run a server, and yield its address.

    Args:
        kind: The class of the handler.
        target: The registry.
        certificate: The file of a certificate and that of its key, for TLS. Clients must show this
            certificate themselves.
        state: Attributes of the handler's class, for this server.
    """
    handler = type("Handler", (kind,), {"target": target, **state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        context.load_verify_locations(certificate[0])
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with serve_in_thread(server):
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
