"""A way to a registry that has no logins, which asks for one, as the services in clouds do."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from registry_server import RegistryHandler, running_registry_server

__all__ = ["running_guarded_registry"]

Allows = Callable[[Mapping[str, str]], bool]
"""Returns True if a request with these headers is answered."""


class _Handler(RegistryHandler):
    allows: Allows

    def do_GET(self) -> None:
        if type(self).allows(self.headers):
            super().do_GET()
            return
        login = self.headers.get("Authorization", "no login")
        self.send(401, f'{{"error_code": 40101, "message": "Unauthorized: {login}"}}'.encode())


@contextmanager
def running_guarded_registry(
    target: str, allows: Allows = lambda _: True, certificate: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """Run the server, and yield its address.

    Args:
        target: The registry.
        allows: Checks the login. The answer to another one repeats it, as some proxies do.
        certificate: See `running_registry_server`.
    """
    given = {"allows": staticmethod(allows)}
    with running_registry_server(_Handler, target, certificate, **given) as url:
        yield url
