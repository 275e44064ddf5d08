"""S3's own client, for what obstore has no verbs for: the parts of multipart uploads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from krishiv_spark.errors import KrishivError, StorageError
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.storage.hints import refusal, silence
from krishiv_spark.storage.patience import Patience
from krishiv_spark.storage.settings import S3_ENDPOINTS, S3Settings, said
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["S3Client", "code_of", "endpoint_of"]

_T = TypeVar("_T")

_ATTEMPTS = 12
"""Of one request, with pauses of up to 20 s in between, together 75 s or so: throttling lasts."""

_FIRST_ATTEMPTS = 2
"""As long as nobody has answered, together less than 10 s."""

_URL = re.compile(r"https?://[^/\s\"']+")

_CONNECTIONS = 16
"""As many as files are completed side by side."""


@dataclass(frozen=True)
class S3Client:
    """boto3's client of a bucket, kept for the life of the process.

    It is reached as obstore reaches it: by the same settings, and the same environment.

    Attributes:
        url: Of any place in the bucket.
        settings: Credentials, endpoint and the like.
    """

    url: StoreUrl
    settings: S3Settings

    def ask(self, what: str, function: Callable[[Any], _T]) -> _T:
        """What a function makes of boto3's client.

        Args:
            what: It does, for the message, as a verb and its object.
            function: Takes the client.

        Raises:
            StorageError: If that fails, in one line, without secrets.
        """
        place = (self.url.scheme, self.url.authority)
        patience = self.settings.patience(place)
        key: Any = (os.getpid(), self.url.bucket, self.settings, patience)
        try:
            found = function(_client(*key))
        except KrishivError:
            raise
        except Exception as error:  # noqa: BLE001  clients raise what they like
            why = self.settings.redacted(_explain(error))
            raise_alone(StorageError(f"cannot {what}: {why}"))
        self.settings.note_answer(place)
        return found


def code_of(error: Exception) -> str:
    """S3's code in an answer that refuses; a bare status where it has no body."""
    answer: Mapping[str, Any] = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _explain(error: Exception) -> str:
    if code := code_of(error):
        answer: Mapping[str, Any] = getattr(error, "response", None) or {}
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return refusal("s3", code, status, str(error).partition("operation: ")[2])
    where = _URL.search(str(error))
    return silence("s3", "the store" if where is None else where[0], f"{error!r} {error}")


@lru_cache(maxsize=32)
def _client(
    process: int,  # noqa: ARG001  connections do not survive a fork
    bucket: str,
    settings: S3Settings,
    patience: Patience,
) -> Any:
    from boto3.session import Session
    from botocore import UNSIGNED
    from botocore.config import Config

    attempts = _FIRST_ATTEMPTS if patience.is_short else _ATTEMPTS
    by_path = settings.path_style is not False
    proxy = settings.proxy.get_secret_value() if settings.proxy else None
    config = Config(
        s3={"addressing_style": "path" if by_path else "virtual"},
        signature_version=UNSIGNED if settings.anonymous else None,
        proxies={"http": proxy, "https": proxy} if proxy else None,
        connect_timeout=min(5, patience.request_s),
        max_pool_connections=_CONNECTIONS,
        read_timeout=patience.request_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        # Stores that speak S3's language refuse what they do not know.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        ignore_configured_endpoint_urls=True,  # obstore does not read them
    )
    profile = settings.profile if settings.access_key_id is None else None
    return Session(profile_name=profile).client(
        "s3",
        region_name=said(settings.region, "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1",
        endpoint_url=endpoint_of(bucket, settings),
        verify=settings.ca_file,
        config=config,
        **_credentials(settings),
    )


def endpoint_of(bucket: str, settings: S3Settings) -> str | None:
    """Where a bucket is, if not at Amazon.

    Without the bucket, which obstore wants in the host's name, and other clients put there.
    """
    found = said(settings.endpoint, *S3_ENDPOINTS)
    if found is None or settings.path_style is not False:
        return found
    return found.replace(f"://{bucket}.", "://", 1)


def _credentials(settings: S3Settings) -> dict[str, Any]:
    given = {
        "aws_access_key_id": settings.access_key_id,
        "aws_secret_access_key": settings.secret_access_key,
        "aws_session_token": settings.session_token,
    }
    return {name: value.get_secret_value() for name, value in given.items() if value is not None}
