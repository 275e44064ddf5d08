"""A broker that answers ApiVersions and Metadata, in their oldest forms, as long as it is let."""

import contextlib
import socket
import struct
import threading

_API_VERSIONS, _UNSUPPORTED_VERSION = 18, 35
_HOST = b"127.0.0.1"


class ScriptedBroker:
    """It listens; each connection has a thread.

    Attributes:
        port: Where it listens.
    """

    def __init__(self):
        self._listening = socket.create_server((_HOST.decode(), 0))
        self.port = self._listening.getsockname()[1]
        self._connections, self._silent = [], set()
        threading.Thread(target=self._accept, daemon=True).start()

    def drop(self):
        """Nothing comes back any more over the connections that there are, as behind a firewall."""
        self._silent.update(self._connections)

    def close(self):
        """End it."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as incoming:
            while size := incoming.read(4):
                asked = incoming.read(*struct.unpack(">i", size))
                key, version, number = struct.unpack(">hhi", asked[:8])
                if connection not in self._silent:
                    body = self._versions(version) if key == _API_VERSIONS else self._metadata()
                    connection.sendall(struct.pack(">ii", len(body) + 4, number) + body)

    @staticmethod
    def _versions(asked):
        if asked:
            return struct.pack(">hi3h", _UNSUPPORTED_VERSION, 1, _API_VERSIONS, 0, 0)
        return struct.pack(">hi6h", 0, 2, 3, 0, 1, _API_VERSIONS, 0, 0)

    def _metadata(self):
        named = struct.pack(">iih", 1, 1, len(_HOST)) + _HOST
        return named + struct.pack(">ihii", self.port, -1, 1, 0)
