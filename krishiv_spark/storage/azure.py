"""Azure's own client, for what obstore has no verbs for: the blocks of a blob."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from krishiv_spark.errors import KrishivError, StorageError
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.storage.hints import refusal, silence
from krishiv_spark.storage.patience import Patience
from krishiv_spark.storage.settings import AZURE_ENDPOINTS, AzureSettings, said
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["AzureClient", "code_of"]

_T = TypeVar("_T")

_RETRIES = 7
"""Of one request, with pauses that grow from 2 s to half a minute: throttling lasts."""

_FIRST_RETRIES = 1
"""As long as nobody has answered, together less than 15 s."""

_CONNECTIONS = 16
"""As many as files are completed side by side."""


@dataclass(frozen=True)
class AzureClient:
    """Azure's client of a container, kept for the life of the process.

    It is reached as obstore reaches it: by the same settings, and the same environment.

    Attributes:
        url: Of any place in the container.
        settings: Credentials, endpoint and the like.
    """

    url: StoreUrl
    settings: AzureSettings

    def ask(self, what: str, function: Callable[[Any], _T]) -> _T:
        """What a function makes of Azure's client of the container.

        Args:
            what: It does, for the message, as a verb and its object.
            function: Takes the client.

        Raises:
            StorageError: If that fails, in one line, without secrets.
        """
        place = (self.url.scheme, self.url.authority)
        key: Any = (os.getpid(), *place, self.settings, self.settings.patience(place))
        try:
            found = function(_client(*key))
        except KrishivError:
            raise
        except Exception as error:  # noqa: BLE001  clients raise what they like
            why = self.settings.redacted(_explain(error, self.settings))
            raise_alone(StorageError(f"cannot {what}: {why}"))
        self.settings.note_answer(place)
        return found


def code_of(error: Exception) -> str:
    """Azure's code in an answer that refuses; empty for what is no answer."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")  # the codes that the client knows are an enum


def _explain(error: Exception, settings: AzureSettings) -> str:
    if status := getattr(error, "status_code", None):
        return refusal("azure", code_of(error), status, str(error))
    return silence("azure", settings.endpoint or "the store", f"{type(error).__name__}: {error}")


@lru_cache(maxsize=32)
def _client(
    process: int,  # noqa: ARG001  connections do not survive a fork
    scheme: str,
    authority: str,
    settings: AzureSettings,
    patience: Patience,
) -> Any:
    from azure.storage.blob import ContainerClient, ExponentialRetry

    url = StoreUrl.parse(f"{scheme}://{authority}")
    named = settings.account_name or url.account or None
    account = said(named, "AZURE_STORAGE_ACCOUNT_NAME") or ""
    given = settings.endpoint or url.endpoint
    endpoint = said(given, *AZURE_ENDPOINTS)
    proxy = settings.proxy.get_secret_value() if settings.proxy else None
    retries = _FIRST_RETRIES if patience.is_short else _RETRIES
    more: dict[str, Any] = {"proxies": {"http": proxy, "https": proxy}} if proxy else {}
    return ContainerClient(
        endpoint or f"https://{account}.blob.core.windows.net",
        url.bucket,
        credential=_credential(account, settings),
        retry_policy=ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=retries),
        transport=_transport(settings, patience),
        permit_redirects=False,  # with the signature of a SAS token
        **more,
    )


def _transport(settings: AzureSettings, patience: Patience) -> Any:
    from azure.core.pipeline.transport import RequestsTransport
    from requests import Session
    from requests.adapters import HTTPAdapter

    from krishiv_spark.storage.http_sessions import bound_errors, ignore_netrc

    session = Session()
    ignore_netrc(session)
    bound_errors(session)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return RequestsTransport(
        session=session,
        connection_timeout=min(5, patience.request_s),
        read_timeout=patience.request_s,
        connection_verify=settings.ca_file or True,
    )


def _credential(account: str, settings: AzureSettings) -> Any:
    """What logs in: as obstore, keys first, and the machine's identity if nothing is said."""
    from azure import identity
    from azure.core.credentials import AzureSasCredential

    key = said(settings.account_key, "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")
    if key is not None:
        return {"account_name": account, "account_key": key}
    tenant = said(settings.tenant_id, "AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID")
    client = said(settings.client_id, "AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID")
    secret = said(settings.client_secret, "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET")
    if tenant and client and (token := os.environ.get("AZURE_FEDERATED_TOKEN_FILE")):
        return identity.WorkloadIdentityCredential(
            tenant_id=tenant, client_id=client, token_file_path=token
        )
    if tenant and client and secret:
        return identity.ClientSecretCredential(tenant, client, secret)
    if settings.sas is not None:
        return AzureSasCredential(settings.sas.lstrip("?"))
    if os.environ.get("AZURE_USE_AZURE_CLI", "").lower() in {"1", "true", "yes", "on", "y"}:
        return identity.AzureCliCredential()
    return identity.ManagedIdentityCredential(client_id=client)
