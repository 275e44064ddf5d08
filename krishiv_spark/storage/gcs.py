"""Google Cloud Storage: settings, and uploads by copies within a bucket.

obstore sends all requests (`krishiv_spark.storage.objects`), including those of uploads.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import Field, SecretStr
from typing_extensions import override

from krishiv_spark.errors import StorageError
from krishiv_spark.storage.base import StoreUrl
from krishiv_spark.storage.objects import ObjectClient, ObjectStore
from krishiv_spark.storage.settings import StoreSettings, plain_values
from krishiv_spark.storage.uploads import RenameUploads, StagedEntry, StagedWriter, StagingStore

__all__ = ["CopiedObjects", "GcsSettings", "GcsStore"]

_NO_KEY = json.dumps(
    {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
)
"""A key without credentials, since obstore requests a token even for unsigned deletions."""


class GcsSettings(StoreSettings):
    """Settings of Google Cloud Storage."""

    credentials_file: str | None = Field(
        default=None, description="Path of a service account's key file, on every machine."
    )
    service_account_key: SecretStr | None = Field(
        default=None, description="Content of a service account's key file."
    )
    anonymous: bool | None = Field(default=None, description="If `true`, requests are not signed.")

    @override
    def config(self) -> dict[str, Any]:
        return plain_values(
            base_url=self.endpoint,
            application_credentials=self.credentials_file,
            service_account_key=_NO_KEY if self.anonymous else self.service_account_key,
            skip_signature=self.anonymous,
        )


@dataclass(frozen=True)
class GcsStore(ObjectStore):
    """A location in a bucket of Google Cloud Storage."""

    kind = "gcs"
    schemes = ("gs", "gcs")
    settings_type = GcsSettings
    login_options = "'storage.gcs.credentialsFile'"
    authority_form = re.compile(r"[A-Za-z0-9._-]+")

    settings: GcsSettings

    @override
    def open_obstore(self, **limits: Any) -> Any:
        from obstore import store

        config: Any = self.settings.config()
        return store.GCSStore(self.url.bucket, config=config, **limits)

    @override
    def uploads(self) -> RenameUploads:
        return RenameUploads(self.url, CopiedObjects(self))

    @override
    def plain_logins(self) -> Iterator[tuple[str, str]]:
        if not self.settings.anonymous:
            yield self.settings.endpoint or "", "the token of Google"


# --- uploads

_PART = 8 * 2**20
"""Size of a part: 10 000 parts, which is Google's limit, contain 80 GB."""

_SENDERS = 2


class CopiedObjects(StagingStore):
    """Staged objects that the bucket copies to their keys.

    A copy within a bucket takes one request for any size, since the bytes are shared. It is
    requested under the condition that the target does not exist, and fails if the staged object
    does not exist.

    Args:
        store: The location to which paths are relative.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._url = store.url
        self._client = ObjectClient(store)

    @override
    def create(self, path: str) -> StagedWriter:
        return _ObjectWriter(self._client, self._url / path)

    @override
    def move(self, path: str, to: str) -> bool:
        """Copy and delete the file.

        After a crash in between, the next call finds that the name exists.
        """
        try:
            found = self._copy(path, to)
        except StorageError:  # the answer may be lost: obstore does not repeat conditional requests
            found = self._copy(path, to)
        if found is not None:
            self.delete(path)
        return bool(found)

    def _copy(self, path: str, to: str) -> bool | None:
        """Copy an object; return False if the target exists, None if the source does not."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def copy(store: Any) -> bool:
            source, target = (self._url / path).path, (self._url / to).path
            try:
                obstore.copy(store, source, target, overwrite=False)
            except AlreadyExistsError:
                return False
            return True

        return self._client.find(f"copy {self._url}/{path} to {self._url}/{to}", copy)

    @override
    def exists(self, path: str) -> bool:
        import obstore

        def read_status(store: Any) -> object:
            return obstore.head(store, (self._url / path).path)

        return self._client.find(f"inspect {self._url}/{path}", read_status) is not None

    @override
    def delete(self, path: str) -> None:
        import obstore

        def delete(store: Any) -> None:
            obstore.delete(store, (self._url / path).path)

        self._client.find(f"remove {self._url}/{path}", delete)

    @override
    def files(self, path: str) -> Iterator[StagedEntry]:
        import obstore

        prefix = f"{(self._url / path).path}/"
        found = self._client.ask(
            f"list {self._url}/{path}",
            lambda store: obstore.list_with_delimiter(store, prefix=prefix),
        )
        for item in found["objects"]:
            modified_ms = int(item["last_modified"].timestamp() * 1000)
            yield StagedEntry(item["path"][len(prefix) :], modified_ms)


class _ObjectWriter(StagedWriter):
    """A staged object that is written by one multipart upload, or by one request if it is small."""

    def __init__(self, client: ObjectClient, url: StoreUrl) -> None:
        self._client = client
        self._url = url
        self._file: Any = None
        self._part = bytearray()

    @override
    def write(self, data: bytes) -> None:
        self._part += data
        if len(self._part) >= _PART:
            self._send()

    @override
    def close(self) -> None:
        self._send(is_last=True)

    @override
    def abort(self) -> None:
        """Complete the object, so that it can be deleted. Its parts could not."""
        if self._file is not None and not self._file.closed():
            with contextlib.suppress(StorageError):
                self.close()

    def _send(self, *, is_last: bool = False) -> None:
        import obstore

        def send(store: Any) -> None:
            if self._file is None:
                self._file = obstore.open_writer(
                    store, self._url.path, buffer_size=_PART, max_concurrency=_SENDERS
                )
            self._file.write(bytes(self._part))
            self._part.clear()
            if is_last:
                self._file.close()

        self._client.ask(f"write {self._url}", send)
