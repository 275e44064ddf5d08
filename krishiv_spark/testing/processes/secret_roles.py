"""A connector whose external system fails, role by role, and the texts that show its secret."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import pickle
import socket
import socketserver
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, TypeAlias

from krishiv_spark.messages.exception_chains import texts_of, walk
from krishiv_spark.messages.redaction import without_secrets
from krishiv_spark.testing.drivers.ledger import Unit
from krishiv_spark.testing.drivers.queries import Checkpoint
from krishiv_spark.testing.processes import read_roles, write_roles
from krishiv_spark.testing.subjects import FailingConnector

__all__ = ["Way", "failing_server", "places_of", "play"]

Way: TypeAlias = Literal["refuses", "hangs up", "repeats"]
"""No process listens; connections are reset after the first bytes; each request is answered by 401
and a page that repeats it, headers and body included, as servers do that help to debug."""

_MOST = 64 * 2**10


@contextlib.contextmanager
def failing_server(way: Way) -> Iterator[str]:
    """Run a server that fails in one way.

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
        """Log nothing: standard error is pytest's."""


_ROWS = range(4)


def play(connector: FailingConnector, secret: str, folder: str) -> str:
    """Do what Spark does with a connector, each role until its first error.

    Returns:
        JSON: for each step that failed or showed the secret, its name, its error, and the texts
        that show the secret, by their location.
    """
    played = _Played(connector, secret, Path(folder))
    with played.capture_output():
        for role in (
            played.write_stream,
            played.write_batch,
            played.infer_schema,
            played.read_batch,
            played.read_stream,
        ):
            with contextlib.suppress(_FailedError):
                role()
    return json.dumps(played.found)


def places_of(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield each text in which an error may be shown, with the name of its location."""
    with contextlib.suppress(Exception):
        yield "text", str(error)
    yield "traceback", "".join(traceback.format_exception(error))
    for text in texts_of(error):
        yield "chain", text
    for linked in walk(error):
        # Some errors cannot be pickled; then none travels.
        with contextlib.suppress(Exception):
            yield "pickle", pickle.dumps(linked).decode("latin-1")


class _FailedError(Exception):
    """An error of a step, after which the role ends."""


@dataclass
class _Played:
    connector: FailingConnector
    secret: str
    folder: Path
    found: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    lines: io.StringIO = field(default_factory=io.StringIO)

    @contextlib.contextmanager
    def capture_output(self) -> Iterator[None]:
        """Gather the lines of the log, warnings and printed text."""
        logging.captureWarnings(capture=True)
        logging.getLogger().addHandler(logging.StreamHandler(self.lines))
        own = self.connector.source.__module__.partition(".")[0]
        for name in ("krishiv_spark", own):
            logging.getLogger(name).setLevel("DEBUG")
        with contextlib.redirect_stderr(self.lines), contextlib.redirect_stdout(self.lines):
            yield

    def write_stream(self) -> None:
        """Plan, stage, commit and abort an epoch."""
        if not self.connector.writes_streams:
            return
        checkpoint = Checkpoint(self.folder / "checkpoint")
        checkpoint.plan(Unit("epoch 0", _ROWS, "query 1"))
        self._write("stream", str(checkpoint.folder), checkpoint.query)

    def write_batch(self) -> None:
        """Plan, stage, commit and abort a batch job."""
        if self.connector.writes_batches:
            self._write("batch", None, None)

    def _write(self, kind: str, checkpoint: str | None, query: str | None) -> None:
        one = self.connector
        job = write_roles.Job(
            one.source, one.options, one.schema, one.row, checkpoint, query, overwrite=False
        )
        attempt = write_roles.Attempt(0, 0, 0, 0, "goes on")
        writer = self._do(f"plan of a {kind}", lambda: write_roles.plan(job), shows=False)
        try:
            staged = self._do(
                f"task of a {kind}", lambda: write_roles.write(job, writer, _ROWS, attempt)
            )
            self._do(f"commit of a {kind}", lambda: write_roles.commit(job, writer, [staged], 0))
        finally:
            self._do(f"abort of a {kind}", lambda: write_roles.abort(job, writer, [None], 0))

    def infer_schema(self) -> None:
        """Infer the columns."""
        if self.connector.reads:
            self._do("schema", lambda: self._load.make().schema())

    def read_batch(self) -> None:
        """Plan a batch and read it."""
        if not self.connector.reads_batches:
            return
        plan = self._do(
            "plan of a batch", lambda: read_roles.batch_partitions(self._load), shows=False
        )
        for part in plan[1]:
            self._do("task of a batch", partial(read_roles.rows, self._load, plan[0], part))

    def read_stream(self) -> None:
        """Choose offsets, plan and read."""
        if not self.connector.reads_streams:
            return
        is_told = self._do("start of a stream", lambda: read_roles.open_reader(self._load))
        start = self._do("initial offset", read_roles.initial)
        end = self._do("latest offset", lambda: read_roles.choose(start, is_told))
        parts, _ = self._do("plan", lambda: read_roles.partitions(self._load, start, end))
        reader = self._do("task's reader", lambda: read_roles.task_reader(self._load), shows=False)
        for part in parts:
            self._do("task", partial(read_roles.rows, self._load, reader, part))

    @property
    def _load(self) -> read_roles.Load:
        return read_roles.Load(self.connector.source, self.connector.options, self.connector.schema)

    def _do(self, name: str, step: Callable[[], Any], *, shows: bool = True) -> Any:
        """Do a step and search for the secret.

        Args:
            name: The name of the step, for people.
            step: The calls that Spark makes.
            shows: True if its result is shown or stored; a plan for tasks is neither.
        """
        before = self.lines.tell()
        try:
            value = step()
        except Exception as error:  # noqa: BLE001  whatever a connector raises is looked at
            self._note(name, error, [*places_of(error), self._read_log(before)])
            raise _FailedError from None
        texts = [("what it returns", _text(value))] if shows else []
        self._note(name, None, [*texts, self._read_log(before)])
        return value

    def _read_log(self, before: int) -> tuple[str, str]:
        return "log", self.lines.getvalue()[before:]

    def _note(self, name: str, error: Exception | None, texts: list[tuple[str, str]]) -> None:
        shown = {place: text for place, text in texts if self._find_secret(text)}
        what = "" if error is None else f"{type(error).__name__}: {error}"
        self.found.append((name, what, shown))

    def _find_secret(self, text: str) -> bool:
        return without_secrets(text, [self.secret]) != text


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else repr(value)
