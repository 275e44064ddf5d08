"""A service with events over HTTP, for tests, in a process of its own, with all state in files.

    GET  /NAME           {"next": the number after the newest}
    GET  /NAME?before=N  and "newest_ms", the newest of the times before that number
    GET  /NAME?after=N   {"events": a page of them, from number N on}; 410 if N was deleted
    POST /NAME           adds lines of JSON

A file in its folder with the name of a request is the recorded response to that request.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit
from urllib.request import urlopen

_PAGE = 500


class Events:
    """The events of one name."""

    def __init__(self, root: Path, name: str) -> None:
        self._file = root / f"{name}.jsonl"
        self._gone = root / f"{name}.gone"
        self._lines: list[str] = []
        self._read = 0  # bytes of the file that were read
        self._lock = Lock()

    def add(self, lines: Sequence[str]) -> None:
        """Add events, a line of JSON each."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def all(self) -> list[Any]:
        """Return all events, also deleted ones."""
        return [json.loads(line) for line in self._known()]

    def expire(self) -> None:
        """Delete the events that exist."""
        self._gone.write_text(str(len(self._known())))

    def answer(self, asked: dict[str, str]) -> Any:
        """Return the response to a request; None if it asks for deleted events."""
        lines = self._known()
        if "after" not in asked:
            end = int(asked.get("before", 0))
            times = (json.loads(line)["ms"] for line in lines[:end])
            return {"next": len(lines), "newest_ms": max(times, default=None)}
        first = int(asked["after"])
        if first < int(self._gone.read_text() if self._gone.exists() else 0):
            return None
        return {"events": [json.loads(line) for line in lines[first : first + _PAGE]]}

    def _known(self) -> list[str]:
        with self._lock, self._file.open("ab+") as file:
            file.seek(self._read)
            new, _, _ = file.read().rpartition(b"\n")
            if new:
                self._lines += new.decode().split("\n")
                self._read += len(new) + 1
            return self._lines


_events = cache(Events)


class _Handler(BaseHTTPRequestHandler):
    root: Path

    def do_GET(self) -> None:
        recorded = self.root / quote(self.path[1:], safe="")
        split = urlsplit(self.path)
        answer = _events(self.root, split.path[1:]).answer(dict(parse_qsl(split.query)))
        if recorded.exists():
            answer = json.loads(recorded.read_text(encoding="utf-8"))
        self._send(410 if answer is None else 200, json.dumps(answer))

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        _events(self.root, self.path[1:]).add(text.split("\n")[:-1])
        self._send(200, "{}")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name in the base class
        """Print nothing."""


def record(url: str, folder: Path) -> None:
    """Store a response of the real service, for tests without it."""
    split = urlsplit(url)
    name = quote(f"{split.path[1:]}{'?' if split.query else ''}{split.query}", safe="")
    with urlopen(url, timeout=30) as answer:
        (folder / name).write_bytes(answer.read())


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Run a service over a folder in a process of its own; yields its URL."""
    command = [sys.executable, __file__, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


if __name__ == "__main__":
    _Handler.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
