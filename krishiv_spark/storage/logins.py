"""Which server is given the login of a store: the one that the user has named, and no other.

A URL may come from a file in a table, which others can write. A login that was configured for the
places of a query must not follow it to another host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

from krishiv_spark.errors import OptionError
from krishiv_spark.options.plain_secrets import warn_of_plain_http
from krishiv_spark.storage.hadoop import web_addresses
from krishiv_spark.storage.settings import (
    AZURE_ENDPOINTS,
    S3_ENDPOINTS,
    AzureSettings,
    GcsSettings,
    HdfsSettings,
    S3Settings,
    StoreSettings,
    said,
)
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["check_login"]


@lru_cache(maxsize=256)
def check_login(root: str, settings: StoreSettings, places: frozenset[str] | None) -> None:
    """Refuse to log in at a server that no option names; warn of a login that is not encrypted.

    Logins of S3 and Google always go to the endpoint of the settings, or to the provider.

    Args:
        root: Scheme and authority of what is about to be reached.
        settings: How it is reached.
        places: Scheme and authority of each place that the user has named; None if that is not
            known.

    Raises:
        OptionError: If it would be sent to another server.
    """
    url = StoreUrl.parse(root)
    if places is not None and root not in places and not _is_own(url, settings, places):
        raise OptionError(
            f"{root} is on a server that no option of yours names, so it is given no login: name "
            f"the place itself, as by 'epochLog', or set 'storage.{url.kind}.endpoint'. Whoever "
            "may write into a table's folder can put an address there"
        )
    for address, login in _plain_logins(url, settings):
        warn_of_plain_http(address, login)


def _is_own(url: StoreUrl, settings: StoreSettings, places: Iterable[str]) -> bool:
    own = [place for place in map(StoreUrl.parse, places) if place.kind == url.kind]
    if isinstance(settings, HdfsSettings):
        has_login = settings.token is not None or settings.kerberos
        if not has_login or settings.endpoint is not None:
            return True
        return set(_addresses(url)) <= {address for place in own for address in _addresses(place)}
    if isinstance(settings, AzureSettings):
        if said(settings.endpoint, *AZURE_ENDPOINTS) is not None:
            return True
        account = said(settings.account_name, "AZURE_STORAGE_ACCOUNT_NAME")
        if url.endpoint is None and (account is not None or not url.account):
            return True  # that account is asked, whatever the URL says
        return _account_of(url) in map(_account_of, own)
    return True


def _account_of(url: StoreUrl) -> tuple[str, str]:
    """Return Azure's account and endpoint; names of hosts have no case."""
    return url.account.lower(), (url.endpoint or "").lower()


def _addresses(url: StoreUrl) -> list[str]:
    with contextlib.suppress(OptionError):
        return web_addresses(url)
    return []


def _plain_logins(url: StoreUrl, settings: StoreSettings) -> Iterator[tuple[str, str]]:
    """Yield where each secret is sent as it is, and what it is. Signatures hide their keys."""
    if isinstance(settings, HdfsSettings) and settings.token is not None:
        for address in web_addresses(url, settings.endpoint):
            yield address, "the delegation token 'storage.hdfs.token'"
    elif isinstance(settings, S3Settings) and settings.login_on_redirect():
        yield said(settings.endpoint, *S3_ENDPOINTS) or "", "the session token of S3"
    elif isinstance(settings, GcsSettings) and not settings.anonymous:
        yield settings.endpoint or "", "the token of Google"
    elif isinstance(settings, AzureSettings) and not settings.signs():
        yield said(settings.endpoint, *AZURE_ENDPOINTS) or "", "the token of Azure"
