"""The requests of an epoch, sent again by Amazon's own client, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from benchmarks.bare_commits import Loop
from benchmarks.requests import BEGIN, COMPLETE, LIST, PART, Request
from benchmarks.stores import Place

__all__ = ["repeated"]

_Uploads = dict[str, tuple[str, list[str]]]
"""By key, the id of an upload and the tags of its parts."""


def repeated(requests: Sequence[Request], of: Place, place: Place) -> Loop:
    """Return a loop that sends the requests one after the other, repeatedly.

    Args:
        requests: What an epoch has asked.
        of: Where the table was; what is read there is read there again.
        place: Takes what is written, under a name of each round.

    Raises:
        KeyError: If there is a kind of request that is not known here.
    """
    client = place.client()
    verbs = [(_VERBS[request.kind], request) for request in requests]

    def commit(number: int) -> None:
        uploads: _Uploads = {}
        for verb, request in verbs:
            written = request.key.replace(of.prefix, f"{place.prefix}/{number}", 1)
            verb(client, place.bucket, request, written, uploads)

    return Loop(commit)


# --- verbs: the client, the bucket, the request, the key that is written instead, the uploads


def _list(client: Any, bucket: str, request: Request, _written: str, _open: _Uploads) -> None:
    given = {"StartAfter": request.query.get("start-after"), "Prefix": request.query.get("prefix")}
    client.list_objects_v2(Bucket=bucket, **{k: v for k, v in given.items() if v is not None})


def _read(client: Any, bucket: str, request: Request, _written: str, _open: _Uploads) -> None:
    """Check that old data is not slower to answer."""
    with suppress(client.exceptions.NoSuchKey):
        client.get_object(Bucket=bucket, Key=request.key)["Body"].read()


def _look(client: Any, bucket: str, request: Request, _written: str, _open: _Uploads) -> None:
    from botocore.exceptions import ClientError

    try:
        client.head_object(Bucket=bucket, Key=request.key)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise


def _put(client: Any, bucket: str, request: Request, written: str, _open: _Uploads) -> None:
    client.put_object(Bucket=bucket, Key=written, Body=request.body)


def _delete(client: Any, bucket: str, _request: Request, written: str, _open: _Uploads) -> None:
    client.delete_object(Bucket=bucket, Key=written)


def _begin(client: Any, bucket: str, _request: Request, written: str, uploads: _Uploads) -> None:
    begun = client.create_multipart_upload(Bucket=bucket, Key=written)["UploadId"]
    uploads[written] = (begun, [])


def _send(client: Any, bucket: str, request: Request, written: str, uploads: _Uploads) -> None:
    begun, tags = uploads[written]
    named = {"Bucket": bucket, "Key": written, "UploadId": begun, "PartNumber": len(tags) + 1}
    tags.append(client.upload_part(Body=request.body, **named)["ETag"])


def _complete(client: Any, bucket: str, _request: Request, written: str, uploads: _Uploads) -> None:
    begun, tags = uploads[written]
    parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
    named = {"Bucket": bucket, "Key": written, "UploadId": begun}
    client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **named)


_VERBS: dict[str, Callable[[Any, str, Request, str, _Uploads], None]] = {
    LIST: _list,
    "GET": _read,
    "HEAD": _look,
    "PUT": _put,
    "DELETE": _delete,
    BEGIN: _begin,
    PART: _send,
    COMPLETE: _complete,
}
