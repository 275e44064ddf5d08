"""Azure's Blob Storage and Data Lake Storage: settings, logins and uploads by blocks.

obstore reaches the container (`krishiv_spark.storage.objects`). It has no calls for blocks that are
not committed, for which Azure's own client is used.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from pydantic import Field, SecretStr
from typing_extensions import override

from krishiv_spark.errors import StorageError
from krishiv_spark.runtime.contact import TimeoutPolicy
from krishiv_spark.storage.base import StoreUrl
from krishiv_spark.storage.clients import (
    CONNECTIONS,
    StoreClient,
    explain_refusal,
    explain_silence,
    require_packages,
)
from krishiv_spark.storage.objects import ObjectStore
from krishiv_spark.storage.settings import StoreSettings, option_or_variable, plain_values
from krishiv_spark.storage.uploads import (
    OpenUpload,
    PartSender,
    PartsUpload,
    PendingUpload,
    Upload,
    Uploads,
    UploadState,
)

__all__ = ["AzureSettings", "AzureStore"]

_T = TypeVar("_T")

_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
"""Environment variables of an endpoint, in the order in which obstore reads them."""

_PUBLIC_CLOUD = "core.windows.net"


class AzureSettings(StoreSettings):
    """Settings of Azure's Blob Storage and Data Lake Storage."""

    logins = (
        "AZURE_CLIENT_SECRET",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
    )

    account_name: str | None = Field(
        default=None, description="Storage account, if the URL does not name it."
    )
    account_key: SecretStr | None = Field(
        default=None, description="Account key of the storage account."
    )
    sas_token: SecretStr | None = Field(default=None, description="Shared access signature (SAS).")
    tenant_id: str | None = Field(default=None, description="Tenant of a service principal.")
    client_id: str | None = Field(
        default=None, description="Client id of a service principal or of a managed identity."
    )
    client_secret: SecretStr | None = Field(
        default=None, description="Client secret of a service principal."
    )

    @override
    def sends_login_on_redirect(self) -> bool:
        """Return True if obstore logs in by a shared access signature, which is in the URL."""
        others = (
            self.signs(),
            option_or_variable(
                self.client_secret, "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"
            ),
            option_or_variable(None, "AZURE_FEDERATED_TOKEN_FILE"),
        )
        return self.sas is not None and not any(others)

    def signs(self) -> bool:
        """Return True if requests are signed with an account key, which is not sent."""
        return self.key is not None

    @property
    def key(self) -> str | None:
        """The account's key, by option or by environment."""
        names = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")
        return option_or_variable(self.account_key, *names)

    @property
    def sas(self) -> str | None:
        """The shared access signature, by option or by environment."""
        names = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
        return option_or_variable(self.sas_token, *names)

    @override
    def config(self) -> dict[str, Any]:
        return plain_values(
            endpoint=self.endpoint,
            account_name=self.account_name,
            account_key=self.account_key,
            sas_key=self.sas_token,
            tenant_id=self.tenant_id,
            client_id=self.client_id,
            client_secret=self.client_secret,
        )


@dataclass(frozen=True)
class AzureStore(ObjectStore):
    """A location in a container of Azure."""

    kind = "azure"
    schemes = ("abfss", "abfs", "wasbs", "wasb", "az")
    settings_type = AzureSettings
    title = "Azure"
    login_options = "'storage.azure.accountKey' or '.sasToken'"
    authority_form = re.compile(r"[^/?#@\\]+(@[A-Za-z0-9.-]+(:\d+)?)?")
    packages: ClassVar = {
        "azure.storage.blob": "azure-storage-blob",
        "azure.identity": "azure-identity",
    }
    lists_from_key = False
    reads_suffixes = False

    settings: AzureSettings

    @override
    def open_obstore(self, **limits: Any) -> Any:
        from obstore import store

        config: Any = self.settings.config()
        if self.url.account:
            config = {"account_name": self.url.account, **config}
        if self.url_endpoint is not None:
            config = {"endpoint": self.url_endpoint, **config}
        return store.AzureStore(self.url.bucket, config=config, **limits)

    @override
    def public_endpoint(self) -> str | None:
        return option_or_variable(self.settings.endpoint or self.url_endpoint, *_ENDPOINTS)

    @property
    def url_endpoint(self) -> str | None:
        """The endpoint for blobs of the URL's account, if it is not in the public cloud."""
        return _endpoint_of(self.url)

    @override
    def uploads(self) -> AzureUploads:
        return AzureUploads(self)

    @override
    def is_named(self, named: Iterable[StoreUrl]) -> bool:
        if option_or_variable(self.settings.endpoint, *_ENDPOINTS) is not None:
            return True
        account = option_or_variable(self.settings.account_name, "AZURE_STORAGE_ACCOUNT_NAME")
        if self.url_endpoint is None and (account is not None or not self.url.account):
            return True  # the settings choose the account, whatever the URL contains
        return _account_of(self.url) in map(_account_of, named)

    @override
    def plain_logins(self) -> Iterator[tuple[str, str]]:
        if not self.settings.signs():
            endpoint = option_or_variable(self.settings.endpoint, *_ENDPOINTS)
            yield endpoint or "", "the token of Azure"


def _endpoint_of(url: StoreUrl) -> str | None:
    account, _, domain = url.host.partition(".")
    cloud = domain.partition(".")[2]
    return None if cloud in {"", _PUBLIC_CLOUD} else f"https://{account}.blob.{cloud}"


def _account_of(url: StoreUrl) -> tuple[str, str]:
    """Return account and endpoint of a URL; host names ignore case."""
    return url.account.lower(), (_endpoint_of(url) or "").lower()


# --- Azure's own client

_RETRIES = 7
"""Number of retries of one request, with pauses of 2 s to half a minute, since throttling lasts."""

_FIRST_RETRIES = 1
"""Number of retries before the first answer of the store, which take less than 15 s."""


@dataclass(frozen=True)
class AzureClient(StoreClient):
    """Azure's client of a container, by the settings and the environment that obstore uses."""

    store: AzureStore

    @override
    def open(self, timeouts: TimeoutPolicy) -> Any:
        from azure.storage.blob import ContainerClient, ExponentialRetry

        url, settings = self.store.url, self.store.settings
        named = settings.account_name or url.account or None
        account = option_or_variable(named, "AZURE_STORAGE_ACCOUNT_NAME") or ""
        endpoint = self.store.public_endpoint()
        retries = _FIRST_RETRIES if timeouts.is_first_contact else _RETRIES
        proxies: dict[str, Any] = {"proxies": settings.proxies()} if settings.proxy else {}
        return ContainerClient(
            endpoint or f"https://{account}.blob.{_PUBLIC_CLOUD}",
            url.bucket,
            credential=_credential(account, settings),
            retry_policy=ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=retries),
            transport=_transport(settings, timeouts),
            permit_redirects=False,  # a redirect would receive the signature of a SAS token
            **proxies,
        )

    @override
    def explain(self, error: Exception) -> str:
        if status := getattr(error, "status_code", None):
            return explain_refusal(self.store, _code_of(error), status, str(error))
        where = self.store.settings.endpoint or "the store"
        return explain_silence(self.store, where, f"{type(error).__name__}: {error}")


def _code_of(error: Exception) -> str:
    """Return Azure's error code for a refused request; empty for another error."""
    code = getattr(error, "error_code", None)
    # Codes that the client defines are members of an enum.
    return str(getattr(code, "value", code) or "")


def _transport(settings: AzureSettings, timeouts: TimeoutPolicy) -> Any:
    from azure.core.pipeline.transport import RequestsTransport
    from requests import Session
    from requests.adapters import HTTPAdapter

    from krishiv_spark.storage.http_sessions import bound_errors, ignore_netrc

    session = Session()
    ignore_netrc(session)
    bound_errors(session)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    return RequestsTransport(
        session=session,
        connection_timeout=min(5, timeouts.request_s),
        read_timeout=timeouts.request_s,
        connection_verify=settings.ca_file or True,
    )


def _credential(account: str, settings: AzureSettings) -> Any:
    """Return the login in obstore's order: keys first, and the machine's identity last."""
    from azure import identity
    from azure.core.credentials import AzureSasCredential

    if settings.key is not None:
        return {"account_name": account, "account_key": settings.key}
    tenant = option_or_variable(settings.tenant_id, "AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID")
    client = option_or_variable(settings.client_id, "AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID")
    secret = option_or_variable(
        settings.client_secret, "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"
    )
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


# --- uploads

# Names of metadata are identifiers of C#.
_NONCE = "krishiv_nonce"
_BURIED = "krishiv_buried"

_ABSENT = frozenset({"BlobNotFound"})
_REFUSED = frozenset({"BlobAlreadyExists", "ConditionNotMet", "InvalidBlockList"})
_CHANGED = _ABSENT | {"ConditionNotMet"}

_PROBE = "_krishiv/probe"


class AzureUploads(Uploads):
    """Blocks of blobs of Azure that are not committed.

    A blob without a committed block is in no ordinary listing and cannot be read. A process that
    knows the ids of its blocks can commit them in one step (Put Block List), under the condition
    that the blob does not exist. A second commit is refused, since the blocks are no longer
    uncommitted. Then the blob is read: its metadata contains the nonce of the upload.

    Azure has no call to delete blocks. An empty list of blocks replaces them by an empty blob,
    which is deleted next. In between the blob is visible, and if the process dies there, it remains
    until the next abort. So blocks that no process will complete are kept, and Azure deletes them
    after a week. They are deleted in this way only if a late driver might still complete them.

    Args:
        store: The location to which their keys are relative.

    Raises:
        OptionError: If Azure's client is missing.
    """

    def __init__(self, store: AzureStore) -> None:
        require_packages(AzureStore)
        self.url = store.url
        self._client = AzureClient(store)

    @override
    def open(self, key: str) -> OpenUpload:
        """Start an upload of at least one byte: Azure has no empty block."""
        return PartsUpload(key, _AzureSender(self, key))

    @override
    def complete(self, upload: Upload) -> bool:
        return self._commit("complete", upload, _NONCE) or self._is_visible(upload)

    @override
    def state(self, upload: Upload) -> UploadState:
        if self._is_open(upload):
            return UploadState.OPEN
        return UploadState.VISIBLE if self._is_visible(upload) else UploadState.MISSING

    @override
    def abort(self, upload: Upload) -> None:
        """Delete the blocks, and the empty blob of an interrupted abort."""
        if self._is_open(upload):
            self._commit("abort", upload.model_copy(update={"parts": ()}), _BURIED)
        found = self._read_properties(upload)
        if found is not None and found.metadata.get(_BURIED) == upload.nonce:
            self.ask("abort", upload.key, partial(_remove, found.etag), _CHANGED)

    @override
    def discard(self, upload: Upload) -> None:
        """Do nothing: Azure deletes the blocks a week after the last one was sent."""

    @override
    def pending(self) -> Iterator[PendingUpload]:
        """Yield nothing: no process can delete the blocks without making a file visible."""
        return iter(())

    @override
    def verify(self) -> None:
        """Start and abort an upload; the right to list blocks is the right to start it."""
        probe = self.open(f"{_PROBE}-{uuid.uuid4().hex}")
        probe.write(b"?")
        self.abort(probe.close())

    def ask(
        self,
        verb: str,
        key: str,
        function: Callable[[Any], _T],
        ignored: frozenset[str] = frozenset(),
    ) -> _T | None:
        """Return what a function returns for the client of a blob; None after an ignored code."""
        from azure.core.exceptions import HttpResponseError

        path = (self.url / key).path

        def ask(container: Any) -> _T | None:
            try:
                return function(container.get_blob_client(path))
            except HttpResponseError as error:
                if _code_of(error) in ignored:
                    return None
                raise

        return self._client.ask(f"{verb} the upload of {self.url}/{key}", ask)

    def _commit(self, verb: str, upload: Upload, name: str) -> bool:
        """Commit blocks with a named nonce; return False if they are missing or the blob exists."""
        commit = partial(_commit, upload.parts, {name: upload.nonce})
        return self.ask(verb, upload.key, commit, _REFUSED) is not None

    def _is_open(self, upload: Upload) -> bool:
        found = self.ask("inspect", upload.key, _list_uncommitted, _ABSENT)
        return found is not None and found.issuperset(upload.parts) and bool(upload.parts)

    def _is_visible(self, upload: Upload) -> bool:
        found = self._read_properties(upload)
        return found is not None and found.metadata.get(_NONCE) == upload.nonce

    def _read_properties(self, upload: Upload) -> Any:
        """Return the properties of an upload's blob; None if it does not exist."""

        def read(blob: Any) -> Any:
            return blob.get_blob_properties()

        return self.ask("find the end of", upload.key, read, _ABSENT)


class _AzureSender(PartSender):
    def __init__(self, uploads: AzureUploads, key: str) -> None:
        self._uploads = uploads
        self._key = key

    @override
    def begin(self, nonce: str) -> str:
        """Return an empty id: the first block starts the upload."""
        return ""

    @override
    def send(self, number: int, data: bytes) -> str:
        if not data:
            raise StorageError(
                f"{self._uploads.url}/{self._key} has no bytes: no block can be empty"
            )
        block = f"{number:05}"  # all ids of a blob have the same length; there are at most 50 000
        self._uploads.ask("write to", self._key, lambda blob: blob.stage_block(block, data))
        return block

    @override
    def discard(self) -> None:
        """Do nothing, as `AzureUploads.discard`."""


def _commit(blocks: tuple[str, ...], metadata: Mapping[str, str], blob: Any) -> object:
    from azure.core import MatchConditions
    from azure.storage.blob import BlobBlock, BlockState

    # Only uncommitted blocks are listed, since some servers would commit committed ones again.
    listed = [BlobBlock(block, state=BlockState.UNCOMMITTED) for block in blocks]
    return blob.commit_block_list(
        listed, metadata=dict(metadata), match_condition=MatchConditions.IfMissing
    )


def _list_uncommitted(blob: Any) -> set[str]:
    return {block.id for block in blob.get_block_list("uncommitted")[1]}


def _remove(etag: str, blob: Any) -> None:
    from azure.core import MatchConditions

    blob.delete_blob(etag=etag, match_condition=MatchConditions.IfNotModified)
