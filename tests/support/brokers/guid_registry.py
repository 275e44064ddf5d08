"""A way to a registry that has no GUIDs, which gives each schema one, as Confluent's registry does.

Apicurio stores and checks the schemas. This server adds ``guid`` to its answers, and answers
``/schemas/guids/GUID``.
"""

import json
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["find_guid", "running_guid_registry"]

_SPACE = uuid.UUID(int=39)
_GUIDS = "/schemas/guids/"


def find_guid(number: int) -> uuid.UUID:
    """The GUID of a schema's id."""
    return uuid.uuid5(_SPACE, str(number))


class _Handler(BaseHTTPRequestHandler):
    target = ""
    numbers: dict[str, int]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(_GUIDS):
            number = self.numbers.get(path.removeprefix(_GUIDS))
            if number is None:
                self._send(404, b'{"error_code": 40403, "message": "Schema not found"}')
            else:
                self._forward(f"/schemas/ids/{number}", number)
            return
        self._forward(self.path)

    def do_POST(self) -> None:
        self._forward(self.path)

    def _forward(self, path: str, number: int | None = None) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else None
        sent = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(self.target + path, body, sent, method=self.command)
        try:
            with urllib.request.urlopen(request) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            self._send(error.code, error.read())
            return
        if isinstance(found, dict) and (number := found.get("id", number)) is not None:
            guid = str(find_guid(number))
            self.numbers[guid] = number
            found["guid"] = guid
        self._send(200, json.dumps(found).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def running_guid_registry(target: str) -> Iterator[str]:
    """Run the server, and yield its address."""
    handler = type("Handler", (_Handler,), {"target": target, "numbers": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
