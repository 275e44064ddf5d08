"""Uploads to Azure: blocks of a blob that are not committed.

A blob of which no block is committed is in no ordinary listing and cannot be read. Whoever knows
the ids of its blocks can commit them, in one step (Put Block List), under the condition that there
is no such blob. Once committed they are gone as uncommitted ones, so that to commit them again is
refused: then the blob is looked at, which bears the upload's nonce in its metadata.

Azure has no verb to throw blocks away. An empty list of blocks does it, as a blob of no bytes,
which is then removed. In between everybody sees it, and if the process dies there, until somebody
aborts again. So what nobody is going to complete is left alone: Azure removes it after a week. Only
where a late driver might still complete it, it is buried in this way.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

from krishiv_spark.errors import KrishivError, StorageError
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.storage.extras import require_client
from krishiv_spark.storage.hints import refusal, silence
from krishiv_spark.storage.parts import PartsUpload
from krishiv_spark.storage.patience import Patience
from krishiv_spark.storage.settings import AZURE_ENDPOINTS, AzureSettings, said
from krishiv_spark.storage.uploads import Became, PendingUpload, Upload
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["AzureClient", "AzureUploads", "code_of"]


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


_T = TypeVar("_T")

# Names of metadata are those of C#'s identifiers.
_NONCE = "krishiv_nonce"
_BURIED = "krishiv_buried"

_ABSENT = frozenset({"BlobNotFound"})
_REFUSED = frozenset({"BlobAlreadyExists", "ConditionNotMet", "InvalidBlockList"})
_CHANGED = _ABSENT | {"ConditionNotMet"}

_PROBE = "_krishiv/probe"


class AzureUploads:
    """See `krishiv_spark.storage.Uploads`.

    Args:
        url: The place below which they are.
        settings: How the store is reached.

    Raises:
        OptionError: If Azure's client is missing.
    """

    def __init__(self, url: StoreUrl, settings: AzureSettings) -> None:
        require_client("azure")
        self.url = url
        self._client = AzureClient(url, settings)

    def open(self, key: str) -> PartsUpload:
        """See `Uploads`. No file of no bytes: Azure has no empty block."""
        return PartsUpload(key, _AzureSender(self, key))

    def complete(self, upload: Upload) -> bool:
        """See `Uploads`."""
        return self._commit("complete", upload, _NONCE) or self._is_visible(upload)

    def look(self, upload: Upload) -> Became:
        """See `Uploads`."""
        if self._is_open(upload):
            return Became.OPEN
        return Became.VISIBLE if self._is_visible(upload) else Became.GONE

    def abort(self, upload: Upload) -> None:
        """See `Uploads`. Also takes away what one that died halfway has left."""
        if self._is_open(upload):
            self._commit("abort", upload.model_copy(update={"parts": ()}), _BURIED)
        found = self._found(upload)
        if found is not None and found.metadata.get(_BURIED) == upload.nonce:
            self.ask("abort", upload.key, partial(_remove, found.etag), _CHANGED)

    def discard(self, upload: Upload) -> None:
        """See `Uploads`. Azure does it, a week after the last block."""

    def pending(self) -> Iterator[PendingUpload]:
        """See `Uploads`. None: nobody can remove them unseen."""
        return iter(())

    def verify(self) -> None:
        """See `Uploads`. Blocks cannot be listed by who may not begin one."""
        probe = self.open(f"{_PROBE}-{uuid.uuid4().hex}")
        probe.write(b"?")
        self.abort(probe.close())

    # --- asking

    def ask(
        self,
        verb: str,
        key: str,
        function: Callable[[Any], _T],
        passed_over: frozenset[str] = frozenset(),
    ) -> _T | None:
        """What a function makes of the client of a blob; None if Azure refuses by such a code."""
        from azure.core.exceptions import HttpResponseError

        path = (self.url / key).path

        def ask(container: Any) -> _T | None:
            try:
                return function(container.get_blob_client(path))
            except HttpResponseError as error:
                if code_of(error) in passed_over:
                    return None
                raise

        return self._client.ask(f"{verb} the upload of {self.url}/{key}", ask)

    def _commit(self, verb: str, upload: Upload, name: str) -> bool:
        """Commit blocks, with the nonce under a name; False if they are not there, or a blob is."""
        commit = partial(_commit, upload.parts, {name: upload.nonce})
        return self.ask(verb, upload.key, commit, _REFUSED) is not None

    def _is_open(self, upload: Upload) -> bool:
        found = self.ask("look at", upload.key, _uncommitted, _ABSENT)
        return found is not None and found.issuperset(upload.parts) and bool(upload.parts)

    def _is_visible(self, upload: Upload) -> bool:
        found = self._found(upload)
        return found is not None and found.metadata.get(_NONCE) == upload.nonce

    def _found(self, upload: Upload) -> Any:
        """What the blob of an upload is; None if there is none."""

        def look(blob: Any) -> Any:
            return blob.get_blob_properties()

        return self.ask("look for the end of", upload.key, look, _ABSENT)


class _AzureSender:
    """One upload. See `krishiv_spark.storage.parts.PartSender`."""

    def __init__(self, uploads: AzureUploads, key: str) -> None:
        self._uploads = uploads
        self._key = key

    def begin(self, nonce: str) -> str:
        """The first block begins it."""
        del nonce
        return ""

    def send(self, number: int, data: bytes) -> str:
        if not data:
            raise StorageError(
                f"{self._uploads.url}/{self._key} has no bytes: no block can be empty"
            )
        block = f"{number:05}"  # all ids of a blob are of the same length, and there are 50 000
        self._uploads.ask("write to", self._key, lambda blob: blob.stage_block(block, data))
        return block

    def discard(self) -> None:
        """See `AzureUploads.discard`."""


def _commit(blocks: tuple[str, ...], metadata: Mapping[str, str], blob: Any) -> object:
    from azure.core import MatchConditions
    from azure.storage.blob import BlobBlock, BlockState

    # Of uncommitted ones alone: some servers would commit again what is committed.
    listed = [BlobBlock(block, state=BlockState.UNCOMMITTED) for block in blocks]
    return blob.commit_block_list(
        listed, metadata=dict(metadata), match_condition=MatchConditions.IfMissing
    )


def _uncommitted(blob: Any) -> set[str]:
    return {block.id for block in blob.get_block_list("uncommitted")[1]}


def _remove(etag: str, blob: Any) -> None:
    from azure.core import MatchConditions

    blob.delete_blob(etag=etag, match_condition=MatchConditions.IfNotModified)
