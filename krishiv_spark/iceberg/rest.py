"""PyIceberg's client of REST catalogs, with an end to its patience.

PyIceberg 0.12 sets no timeout, so that a catalog that takes a request and never answers would hold
a query for ever, whatever its `commitTimeout`. One that has never answered is given up soon: its
address may be wrong (`krishiv_spark.reached`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from requests import Session

from krishiv_spark.http_sessions import guard
from krishiv_spark.iceberg.guarded import GuardedRestCatalog
from krishiv_spark.plain_secrets import warn_of_plain_http
from krishiv_spark.reached import note_reached, was_reached

__all__ = ["PatientRestCatalog", "TimeoutRestCatalog"]

_CONNECT_S, _READ_S = 10.0, 60.0
"""The latter between two pieces of an answer. A commit that took longer may have happened: it is
looked up."""

_FIRST_CONNECT_S, _FIRST_READ_S = 4.0, 8.0


_LOGINS = ("auth", "credential", "token")


class TimeoutRestCatalog(GuardedRestCatalog):
    """Fails when the catalog does not answer. Driver."""

    def _config_headers(self, session: Session) -> None:
        # The first that PyIceberg does with a new session; next it may ask for a token.
        guard(session)
        if any(key in _LOGINS or key.startswith("header.") for key in self.properties):
            for uri in (self.uri, self.properties.get("oauth2-server-uri", "")):
                warn_of_plain_http(uri, "the login of the catalog ('catalog.uri')")
        session.request = partial(_ask, session.request)  # type: ignore[method-assign]  # the only way in
        super()._config_headers(session)


def _ask(request: Callable[..., Any], method: str, url: str, **given: Any) -> Any:
    """Send a request, and wait for its answer as long as befits who is asked."""
    to = urlsplit(url)
    name = f"catalog {to.hostname}:{to.port}"
    usual = was_reached(name)
    patience = (_CONNECT_S, _READ_S) if usual else (_FIRST_CONNECT_S, _FIRST_READ_S)
    answer = request(method, url, timeout=patience, **given)
    note_reached(name)
    return answer


PatientRestCatalog = TimeoutRestCatalog
"""Its name in earlier releases, which a user's ``py-catalog-impl`` may hold."""
