"""A proxy over HTTP that drops a header of each request: the server behind never learns of it."""

import contextlib
import http.client
import http.server
import threading
from urllib.parse import urlsplit


@contextlib.contextmanager
def forgetting(header: str, server: str):
    """Its URL, while it runs in front of a server."""
    behind = urlsplit(server).netloc

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept = {k: v for k, v in self.headers.items() if k.lower() != header.lower()}
            with contextlib.closing(http.client.HTTPConnection(behind, timeout=30)) as connection:
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                self.give(answer, answer.read())

        def give(self, answer, body):
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if self.command != "HEAD" else b"")

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815  as the class calls them

        def log_message(self, *_):
            pass

    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
