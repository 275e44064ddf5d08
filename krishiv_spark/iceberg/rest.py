"""PyIceberg's client of REST catalogs, with an end to its patience.

PyIceberg 0.12 sets no timeout, so that a catalog that takes a request and never answers would hold
a query for ever, whatever its `commitTimeout`.
"""

from __future__ import annotations

from functools import partial

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

__all__ = ["PatientRestCatalog", "TimeoutRestCatalog"]

_CONNECT_S = 10.0
_READ_S = 60.0
"""Between two pieces of an answer. A commit that took longer may have happened: it is looked up."""


class TimeoutRestCatalog(RestCatalog):
    """Fails when the catalog does not answer. Driver."""

    def _config_headers(self, session: Session) -> None:
        # The first that PyIceberg does with a new session; next it may ask for a token.
        patience = (_CONNECT_S, _READ_S)
        session.request = partial(session.request, timeout=patience)  # type: ignore[method-assign]  # the only way in
        super()._config_headers(session)


PatientRestCatalog = TimeoutRestCatalog
"""Its name in earlier releases, which a user's ``py-catalog-impl`` may hold."""
