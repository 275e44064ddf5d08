"""A way to a registry that has no logins, which asks for one, as the services in clouds do."""

import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["running_guarded_registry"]

Allows = Callable[[Mapping[str, str]], bool]
"""Returns True if a request with these headers is answered."""


class _Handler(BaseHTTPRequestHandler):
    target: str
    allows: Allows

    def do_GET(self) -> None:
        if type(self).allows(self.headers):
            self._forward()
        else:
            login = self.headers.get("Authorization", "no login")
            text = f'{{"error_code": 40101, "message": "Unauthorized: {login}"}}'
            self._send(401, text.encode())

    def do_POST(self) -> None:
        self.do_GET()

    def _forward(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else None
        sent = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(self.target + self.path, body, sent, method=self.command)
        try:
            with urllib.request.urlopen(request) as answer:
                self._send(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            self._send(error.code, error.read())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def running_guarded_registry(
    target: str, allows: Allows = lambda _: True, certificate: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """Run the server, and yield its address.

    Args:
        target: The registry.
        allows: Checks the login. The answer to another one repeats it, as some proxies do.
        certificate: The file of a certificate and that of its key, for TLS. Clients must show this
            certificate themselves.
    """
    handler = type("Handler", (_Handler,), {"target": target, "allows": staticmethod(allows)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        context.load_verify_locations(certificate[0])
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
