"""moto's server, which answers as S3 does where an upload is no more.

It fails there with a KeyError, which clients take for a server in trouble: they try for a minute.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from moto import server
from moto.s3.exceptions import NoSuchUpload
from moto.s3.models import S3Backend


def refusing(verb: Callable[..., Any]) -> Callable[..., Any]:
    """A verb of moto's S3, whose second argument, after the bucket, is the id of an upload."""

    @wraps(verb)
    def refuses(backend: Any, bucket_name: str, multipart_id: str, *rest: Any, **named: Any) -> Any:
        if multipart_id not in backend.get_bucket(bucket_name).multiparts:
            raise NoSuchUpload(upload_id=multipart_id)
        return verb(backend, bucket_name, multipart_id, *rest, **named)

    return refuses


S3Backend.complete_multipart_upload = refusing(S3Backend.complete_multipart_upload)
S3Backend.upload_part = refusing(S3Backend.upload_part)

if __name__ == "__main__":
    server.main()
