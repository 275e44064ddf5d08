"""A broker of Kafka that refuses each login, and repeats what it was sent."""

import contextlib
import socketserver
import ssl
import struct

from servers.threads import serve_in_thread

API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
UNSUPPORTED_VERSION, AUTHENTICATION_FAILED = 35, 58
KNOWN = ((API_VERSIONS, 0, 0), (HANDSHAKE, 0, 1), (AUTHENTICATE, 0, 0), (3, 0, 1))
"""The versions of each message that it understands; all older than tagged fields."""

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")


def text_of(value):
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Broker(socketserver.ThreadingTCPServer):
    """Attributes: `known`, a text that it repeats too; `asked`, the data of each login."""

    daemon_threads = True
    allow_reuse_address = True


class Refusing(socketserver.BaseRequestHandler):
    def handle(self):
        files = self.server.files
        with contextlib.suppress(OSError, struct.error):
            if files:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*files)
                self.request = context.wrap_socket(self.request, server_side=True)
            while True:
                (size,) = struct.unpack(">i", self._read(4))
                self._answer(self._read(size))

    def _read(self, size):
        data = b""
        while len(data) < size:
            piece = self.request.recv(size - len(data))
            if not piece:
                raise OSError
            data += piece
        return data

    def _answer(self, message):
        kind, version, number = struct.unpack(">hhi", message[:8])
        if kind == API_VERSIONS:
            error = 0 if version == 0 else UNSUPPORTED_VERSION
            body = struct.pack(">hi", error, len(KNOWN))
            body += b"".join(struct.pack(">hhh", *each) for each in KNOWN)
        elif kind == HANDSHAKE:
            body = struct.pack(">hi", 0, len(MECHANISMS)) + b"".join(map(text_of, MECHANISMS))
        else:
            (named,) = struct.unpack(">h", message[8:10])
            data = message[10 + named + 4 :]
            self.server.asked.append(data)
            said = f"refused: {data.decode('latin-1')} {self.server.known}"
            body = struct.pack(">h", AUTHENTICATION_FAILED) + text_of(said) + struct.pack(">i", 0)
        self.request.sendall(struct.pack(">ii", len(body) + 4, number) + body)


@contextlib.contextmanager
def refusing_broker(known="", files=None):
    """Run a broker.

    Args:
        known: A text that it repeats beside the data of the login.
        files: Its certificate and key; None without TLS.

    Yields:
        The server; its address is ``127.0.0.1`` and ``server_address[1]``.
    """
    server = Broker(("127.0.0.1", 0), Refusing)
    server.known, server.files, server.asked = known, files, []
    with serve_in_thread(server):
        yield server
