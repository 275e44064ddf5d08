"""Servers of HTTP that fail in each way in which a client's error may show a login."""

import contextlib
import json
import socket
import ssl
import struct
import subprocess
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from servers.threads import serve_in_thread

STATUSES = (401, 403, 404, 409, 500, 503)
REDIRECTS = {
    "redirect to another host": "http://127.0.0.2:{port}{path}",
    "relative Location": "{path}&more=1",
    "redirect to a bad scheme": "ftp://127.0.0.1{path}",
    "redirect to a bad host": "http://[::bad{path}",
    "redirects without end": "{path}",
}
WAYS = [
    "refused",
    "reset",
    "reset in mid-answer",
    "no answer",
    "no TLS",
    "bad JSON",
    *(f"{status} that repeats" for status in STATUSES),
    *REDIRECTS,
]


class Hostile(BaseHTTPRequestHandler):
    """Attributes that a class made for one way has: `way`, `asked`, `other`."""

    protocol_version = "HTTP/1.1"

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.path, dict(self.headers)))
        said = f"{self.path} {dict(self.headers)} {body[:300]!r}"
        way = self.server.way
        if way == "reset":
            return self._reset()
        if way == "no answer":
            time.sleep(2)
            return self._reset()
        if way in REDIRECTS:
            where = REDIRECTS[way].format(port=self.server.other, path=self.path)
            return self._send(307, b"", {"Location": where})
        if way == "bad JSON":
            return self._send(200, said.encode())
        if way == "reset in mid-answer":
            self._send(200, said.encode(), size=10_000)
            return self._reset()
        error = {"message": said, "type": "NotAuthorizedException", "code": 401}
        remote = {"exception": "X", "message": said}
        page = json.dumps({"error": error, "RemoteException": remote})
        return self._send(int(way.partition(" ")[0]), page.encode())

    def _reset(self):
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _send(self, status, body, headers=(), size=None):
        self.send_response(status)
        for name, text in dict(headers).items():
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.wfile.flush()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, way, host="127.0.0.1", other=0):
        super().__init__((host, 0), Hostile)
        self.way, self.other, self.asked = way, other, []

    def handle_error(self, *_):
        pass


@contextlib.contextmanager
def failing(way, folder):
    """Its URL, and what another host was asked."""
    with contextlib.ExitStack() as stack:
        if way == "refused":
            bound = stack.enter_context(socket.socket())
            bound.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{bound.getsockname()[1]}", []
            return
        other = stack.enter_context(serve_in_thread(Server("404 that repeats", "127.0.0.2")))
        made = Server(way, other=other.server_port)
        if way == "no TLS":
            made.way = "404 that repeats"
            made.socket = make_untrusted_certificate(folder).wrap_socket(
                made.socket, server_side=True
            )
        server = stack.enter_context(serve_in_thread(made))
        scheme = "https" if way == "no TLS" else "http"
        yield f"{scheme}://127.0.0.1:{server.server_port}", other.asked


def make_untrusted_certificate(folder):
    """A certificate that nobody has signed, for another name."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ),
            *("-nodes", "-keyout", key, "-out", certificate, "-days", "9", "-subj", "/CN=other"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
