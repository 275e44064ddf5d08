"""PyIceberg's client of REST catalogs, guarded, and with timeouts.

PyIceberg 0.12 sets no timeout, so that a catalog that accepts a request and never responds would
block a query permanently, regardless of its `commitTimeout`. A catalog that has never responded
gets shorter timeouts: its address may be wrong (`krishiv_spark.runtime.contact`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AUTH_MANAGER
from pyiceberg.table import StagedTable, Table
from pyiceberg.typedef import EMPTY_DICT
from requests import Session
from typing_extensions import override

from krishiv_spark.iceberg.file_access import keep_users_choices, merge_vended
from krishiv_spark.iceberg.file_io import create_file_io
from krishiv_spark.iceberg.guarded_catalog import GuardedCatalog
from krishiv_spark.options.plain_secrets import warn_of_plain_http
from krishiv_spark.runtime.contact import has_contacted, record_contact
from krishiv_spark.storage.http_sessions import guard

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import TableResponse
    from pyiceberg.io import FileIO

__all__ = ["GuardedRestCatalog", "TimeoutRestCatalog"]

_CONNECT_S, _READ_S = 10.0, 60.0
"""The second is the time between two pieces of a response. A commit that takes longer may have
succeeded: the sink checks the table."""

_FIRST_CONNECT_S, _FIRST_READ_S = 4.0, 8.0


_LOGINS = ("auth", "credential", "token")


class GuardedRestCatalog(GuardedCatalog, RestCatalog):
    """A client of REST catalogs; the catalog may set hosts and credentials, but no classes."""

    user_settings: Mapping[str, Any] = EMPTY_DICT

    @override
    def _fetch_config(self) -> None:
        self.user_settings = self.properties
        super()._fetch_config()
        self.properties = keep_users_choices(self.properties, self.user_settings)

    @override
    def _response_to_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> Table:
        metadata, location = table_response.metadata, table_response.metadata_location or ""
        io, config = self._create_vended_io(table_response, location), table_response.config
        return self._guard(Table(identifier_tuple, metadata, location, io, self, config))

    @override
    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> StagedTable:
        metadata, location = table_response.metadata, table_response.metadata_location or ""
        io = self._create_vended_io(table_response, location)
        return StagedTable(identifier_tuple, metadata, location, io, self)

    def keep_choices_of(self, given: Mapping[str, Any]) -> None:
        """Make the user's settings take precedence over those of the server.

        Args:
            given: The user's settings of the catalog.
        """
        self.user_settings = given
        self.properties = keep_users_choices(self.properties, given)

    def _create_vended_io(self, response: TableResponse, location: str) -> FileIO:
        credentials = self._resolve_storage_credentials(response.storage_credentials, location)
        vended = {**response.config, **credentials}
        settings = merge_vended(self.properties, vended, self.user_settings)
        if self._auth_manager is not None:
            settings[AUTH_MANAGER] = self._auth_manager
        return create_file_io(settings, location)


class TimeoutRestCatalog(GuardedRestCatalog):
    """A client of REST catalogs that fails if the catalog does not respond. Driver."""

    def _config_headers(self, session: Session) -> None:
        # PyIceberg calls this first for a new session, before it may request a token.
        guard(session)
        if any(key in _LOGINS or key.startswith("header.") for key in self.properties):
            for uri in (self.uri, self.properties.get("oauth2-server-uri", "")):
                warn_of_plain_http(uri, "the login of the catalog ('catalog.uri')")
        session.request = partial(_send, session.request)  # type: ignore[method-assign]  # the only way in
        super()._config_headers(session)


def _send(request: Callable[..., Any], method: str, url: str, **given: Any) -> Any:
    """Send a request with a timeout, which is shorter if the server has never responded."""
    to = urlsplit(url)
    name = f"catalog {to.hostname}:{to.port}"
    timeout = (_FIRST_CONNECT_S, _FIRST_READ_S)
    if has_contacted(name):
        timeout = (_CONNECT_S, _READ_S)
    response = request(method, url, timeout=timeout, **given)
    record_contact(name)
    return response
