"""Multipart uploads of S3, and of what speaks its language.

The parts of an upload that is not completed are in no listing, and whoever knows its id and the
parts' ETags can complete it. Completing it once more is answered by NoSuchUpload: then the object
is looked at, which bears the upload's nonce in its metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from krishiv_spark.errors import UploadGoneError
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.storage.extras import require_client
from krishiv_spark.storage.parts import PartsUpload
from krishiv_spark.storage.s3 import S3Client, code_of
from krishiv_spark.storage.settings import S3Settings
from krishiv_spark.storage.uploads import Became, PendingUpload, Upload
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["S3Uploads"]

_T = TypeVar("_T")

_NONCE = "krishiv-nonce"
_ABSENT = frozenset({"404", "NoSuchKey", "NoSuchUpload", "NotFound"})

_SETTLED_S = 5.0
"""An upload that is no more, and whose object is not there yet: somebody may be completing it."""

_PROBE = "_krishiv/probe"


class S3Uploads:
    """See `krishiv_spark.storage.Uploads`.

    Args:
        url: The place below which they are.
        settings: How the store is reached.

    Raises:
        OptionError: If boto3 is missing.
    """

    def __init__(self, url: StoreUrl, settings: S3Settings) -> None:
        require_client("s3")
        self.url = url
        self._client = S3Client(url, settings)

    def open(self, key: str) -> PartsUpload:
        """See `Uploads`."""
        return PartsUpload(key, _S3Sender(self, key))

    def complete(self, upload: Upload) -> bool:
        """See `Uploads`."""
        parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(upload.parts, 1)]

        def complete(client: Any, **named: str) -> object:
            return client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **named)

        if self.ask_of("complete", upload, complete) is not None:
            return True
        return self._has_appeared(upload)

    def look(self, upload: Upload) -> Became:
        """See `Uploads`."""
        if self.ask_of("look at", upload, _is_open):
            return Became.OPEN
        return Became.VISIBLE if self._has_appeared(upload) else Became.GONE

    def abort(self, upload: Upload) -> None:
        """See `Uploads`."""
        self.ask_of("abort", upload, lambda client, **named: client.abort_multipart_upload(**named))

    def discard(self, upload: Upload) -> None:
        """See `Uploads`."""
        self.abort(upload)

    def pending(self) -> Iterator[PendingUpload]:
        """See `Uploads`."""
        prefix = f"{self.url.path}/" if self.url.path else ""

        def pages(client: Any) -> list[dict[str, Any]]:
            pager = client.get_paginator("list_multipart_uploads")
            found = pager.paginate(Bucket=self.url.bucket, Prefix=prefix)
            return [item for page in found for item in page.get("Uploads", ())]

        for item in self._client.ask(f"list the multipart uploads of {self.url}", pages):
            begun_ms = int(item["Initiated"].timestamp() * 1000)
            key = item["Key"][len(prefix) :]
            upload = Upload(key=key, id=item["UploadId"], size=0, nonce="", begun_ms=begun_ms)
            shown = f"{self.url}/{key}  multipart upload {upload.id[:12]}"
            yield PendingUpload(upload, begun_ms, shown)

    def verify(self) -> None:
        """See `Uploads`."""
        sender = _S3Sender(self, _PROBE)
        sender.begin("")
        try:
            list(self.pending())
        finally:
            sender.discard()

    # --- asking

    def begin(self, key: str, nonce: str) -> str:
        """The id of a new upload, whose object will bear a nonce."""

        def begin(client: Any) -> str:
            named = {"Bucket": self.url.bucket, "Key": self._key(key)}
            return str(
                client.create_multipart_upload(Metadata={_NONCE: nonce}, **named)["UploadId"]
            )

        return self._client.ask(f"begin a multipart upload of {self.url}/{key}", begin)

    def ask_of(self, verb: str, upload: Upload, function: Callable[..., _T]) -> _T | None:
        """What a function makes of the client and of an upload; None if that is no more."""
        from botocore.exceptions import ClientError

        named = {"Bucket": self.url.bucket, "Key": self._key(upload.key), "UploadId": upload.id}

        def ask(client: Any) -> _T | None:
            try:
                return function(client, **named)
            except ClientError as error:
                if code_of(error) in _ABSENT:
                    return None
                raise

        return self._client.ask(f"{verb} the multipart upload of {self.url}/{upload.key}", ask)

    def _has_appeared(self, upload: Upload) -> bool:
        """Whether the object of an upload that is no more is there."""
        for _ in Backoff(_SETTLED_S, shortest_s=0.01).attempts():
            if self.ask_of("look for the end of", upload, partial(_is_visible, upload.nonce)):
                return True
        return False

    def _key(self, key: str) -> str:
        return (self.url / key).path


class _S3Sender:
    """One multipart upload. See `krishiv_spark.storage.parts.PartSender`."""

    def __init__(self, uploads: S3Uploads, key: str) -> None:
        self._uploads = uploads
        self._upload = Upload(key=key, id="", size=0, nonce="", begun_ms=0)

    def begin(self, nonce: str) -> str:
        begun = self._uploads.begin(self._upload.key, nonce)
        self._upload = self._upload.model_copy(update={"id": begun})
        return begun

    def send(self, number: int, data: bytes) -> str:
        def send(client: Any, **named: str) -> str:
            return str(client.upload_part(PartNumber=number + 1, Body=data, **named)["ETag"])

        tag = self._uploads.ask_of("write to", self._upload, send)
        if tag is None:
            raise UploadGoneError(
                f"the multipart upload of {self._uploads.url}/{self._upload.key} was aborted "
                "while it was being written"
            )
        return tag

    def discard(self) -> None:
        self._uploads.abort(self._upload)


def _is_open(client: Any, **named: str) -> bool:
    client.list_parts(MaxParts=1, **named)
    return True


def _is_visible(nonce: str, client: Any, **named: str) -> bool:
    del named["UploadId"]
    return bool(client.head_object(**named)["Metadata"].get(_NONCE) == nonce)
