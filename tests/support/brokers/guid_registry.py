"""A way to a registry that has no GUIDs, which gives each schema one, as Confluent's registry does.

Apicurio stores and checks the schemas. This server adds ``guid`` to its answers, and answers
``/schemas/guids/GUID``.
"""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from registry_server import RegistryHandler, running_registry_server

__all__ = ["find_guid", "running_guid_registry"]

_SPACE = uuid.UUID(int=39)
_GUIDS = "/schemas/guids/"


def find_guid(number: int) -> uuid.UUID:
    """The GUID of a schema's id."""
    return uuid.uuid5(_SPACE, str(number))


class _Handler(RegistryHandler):
    numbers: dict[str, int]

    def do_GET(self) -> None:
        path, number = self.path.partition("?")[0], None
        if path.startswith(_GUIDS):
            number = self.numbers.get(path.removeprefix(_GUIDS))
            if number is None:
                self.send(404, b'{"error_code": 40403, "message": "Schema not found"}')
                return
        status, body = self.forward(self.path if number is None else f"/schemas/ids/{number}")
        if status == 200:
            body = self._add_guid(body, number)
        self.send(status, body)

    def _add_guid(self, body: bytes, number: int | None) -> bytes:
        found = json.loads(body)
        if not isinstance(found, dict) or (number := found.get("id", number)) is None:
            return body
        guid = str(find_guid(number))
        self.numbers[guid] = number
        return json.dumps({**found, "guid": guid}).encode()


@contextmanager
def running_guid_registry(target: str) -> Iterator[str]:
    """Run the server, and yield its address."""
    numbers: dict[str, int] = {}
    with running_registry_server(_Handler, target, numbers=numbers) as url:
        yield url
