"""A proxy over HTTP that changes each request, or each answer: the server behind never learns."""

import contextlib
import http.client
import http.server
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from servers.threads import serve_in_thread

_OF_A_HOP = {"content-length", "transfer-encoding", "connection"}


@dataclass
class Message:
    """A request, or its answer, for which there is neither method nor path.

    Attributes:
        headers: By name, as written.
        body: All of it.
        method: Of a request.
        path: Of a request, with the query.
        status: Of an answer.
    """

    headers: dict[str, str]
    body: bytes
    method: str = ""
    path: str = ""
    status: int = 0


def _as_it_is(message: Message) -> Message:
    return message


def _untold(_request: Message, _answer: Message) -> None:
    pass


@contextlib.contextmanager
def forwarding(
    server: str,
    request: Callable[[Message], Message] = _as_it_is,
    answer: Callable[[Message], Message] = _as_it_is,
    told: Callable[[Message, Message], object] = _untold,
) -> Iterator[str]:
    """Its URL, while it runs in front of a server.

    Args:
        server: Its URL.
        request: Changes a request, or answers it: what has a status is not sent on.
        answer: Changes an answer.
        told: Called with each request that was sent on, and with the server's answer.
    """
    handler = _handler(urlsplit(server).netloc, request, answer, told)
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with serve_in_thread(proxy):
        yield f"http://127.0.0.1:{proxy.server_port}"


def _handler(
    behind: str,
    request: Callable[[Message], Message],
    answer: Callable[[Message], Message],
    told: Callable[[Message, Message], object],
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = request(Message(dict(self.headers.items()), body, self.command, self.path))
            if asked.status:
                self.give(asked)
                return
            with contextlib.closing(http.client.HTTPConnection(behind, timeout=30)) as connection:
                connection.request(asked.method, asked.path, asked.body, asked.headers)
                found = connection.getresponse()
                headers, content = dict(found.getheaders()), found.read()
            answered = Message(headers, content, status=found.status)
            told(asked, answered)
            self.give(answer(answered))

        def give(self, found: Message) -> None:
            self.send_response(found.status)
            for name, value in found.headers.items():
                if name.lower() not in _OF_A_HOP:
                    self.send_header(name, value)
            size = found.headers.get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", size or str(len(found.body)))
            self.end_headers()
            self.wfile.write(found.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815  as the class calls them

        def log_message(self, *_: object) -> None:
            pass

    return Handler
