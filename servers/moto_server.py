"""moto's server, which answers as S3 and Glue do where moto itself does not.

Where an upload is no more it fails with a KeyError, which clients take for a server in trouble:
they try for a minute. It looks for an object and stores it in two steps, so that two requests with
If-None-Match can both succeed. And it updates a table of Glue whatever version that is to have
(parameter VersionId of UpdateTable, Glue's optimistic locking), so that one commit overwrites
another.
"""

from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any

from moto import server
from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse
from moto.s3.exceptions import NoSuchUpload
from moto.s3.models import S3Backend
from moto.s3.responses import S3Response

_ONE_AT_A_TIME = Lock()


def refusing(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an operation of moto's S3, whose second argument after the bucket is an upload's id."""

    @wraps(verb)
    def refuses(backend: Any, bucket_name: str, multipart_id: str, *rest: Any, **named: Any) -> Any:
        if multipart_id not in backend.get_bucket(bucket_name).multiparts:
            raise NoSuchUpload(upload_id=multipart_id)
        return verb(backend, bucket_name, multipart_id, *rest, **named)

    return refuses


S3Backend.complete_multipart_upload = refusing(S3Backend.complete_multipart_upload)
S3Backend.upload_part = refusing(S3Backend.upload_part)


def excluding(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that answers requests: one wrapped function runs at a time."""

    @wraps(verb)
    def excludes(*given: Any, **named: Any) -> Any:
        with _ONE_AT_A_TIME:
            return verb(*given, **named)

    return excludes


S3Response.put_object = excluding(S3Response.put_object)
_complete = S3Response._key_response_post  # noqa: SLF001  it looks for the object there
S3Response._key_response_post = excluding(_complete)  # noqa: SLF001

_update_table = GlueResponse.update_table


@excluding
def _updates_that_version(response: Any) -> Any:
    wanted, given = response.parameters.get("VersionId"), response.parameters
    table = response.glue_backend.get_table(given["DatabaseName"], given["TableInput"]["Name"])
    if wanted not in {None, table.as_dict()["VersionId"]}:
        raise GlueClientError("ConcurrentModificationException", "Update table failed")
    return _update_table(response)


GlueResponse.update_table = _updates_that_version

if __name__ == "__main__":
    server.main()
