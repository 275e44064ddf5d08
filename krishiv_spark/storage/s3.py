"""S3, and stores that speak its protocol: settings, profiles and multipart uploads.

obstore sends the requests (`krishiv_spark.storage.objects`), except those for the parts of
multipart uploads, for which it has no calls. boto3 sends these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field, SecretStr
from typing_extensions import override

from krishiv_spark.errors import OptionError, UploadGoneError
from krishiv_spark.messages.exception_chains import describe, raise_alone
from krishiv_spark.runtime.contact import TimeoutPolicy
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.storage.base import Hint
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

__all__ = ["S3Settings", "S3Store", "find_endpoint", "profile_credentials"]

_T = TypeVar("_T")

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Environment variables of an endpoint, in the order in which obstore reads them."""


class S3Settings(StoreSettings):
    """Settings of S3 and of stores that speak its protocol."""

    logins = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

    region: str | None = Field(default=None, description="Region of the bucket, as `eu-central-1`.")
    access_key_id: SecretStr | None = Field(default=None, description="Access key id of a user.")
    secret_access_key: SecretStr | None = Field(
        default=None, description="Secret access key of that user."
    )
    session_token: SecretStr | None = Field(
        default=None, description="Session token of temporary credentials."
    )
    profile: str | None = Field(
        default=None,
        description="Profile in the AWS configuration files on every machine; requires `boto3`, "
        "installed by `krishiv-spark[s3]`.",
    )
    path_style: bool | None = Field(
        default=None,
        description="If `true`, the bucket is in the path of the URL, not in the host name.",
    )
    anonymous: bool | None = Field(default=None, description="If `true`, requests are not signed.")

    @override
    def sends_login_on_redirect(self) -> bool:
        """Return True if there is a session token. Clients remove signatures, but not that."""
        if self.anonymous:
            return False
        if self.access_key_id is not None or self.profile is not None:
            return self.session_token is not None or self.access_key_id is None
        return all(os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"))

    @override
    def config(self) -> dict[str, Any]:
        return plain_values(
            endpoint=self.endpoint,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            session_token=self.session_token,
            skip_signature=self.anonymous,
            virtual_hosted_style_request=None if self.path_style is None else not self.path_style,
        )


@dataclass(frozen=True)
class S3Store(ObjectStore):
    """A location in a bucket of S3, or of a store that speaks its protocol."""

    kind = "s3"
    schemes = ("s3", "s3a", "s3n")
    settings_type = S3Settings
    title = "S3"
    login_options = "'storage.s3.accessKeyId' and '.secretAccessKey'"
    endpoint_options = "'storage.s3.region' and 'storage.s3.endpoint'"
    authority_form = re.compile(r"[A-Za-z0-9._-]+")
    hints: ClassVar = {
        "AuthorizationHeaderMalformed": Hint(
            "the bucket is in another region", "set 'storage.s3.region' to the one of the bucket"
        ),
        "PermanentRedirect": Hint(
            "the bucket is in another region, or has another endpoint",
            "set 'storage.s3.region' and '.endpoint' to those of the bucket",
        ),
        "301": Hint("the bucket is in another region", "set 'storage.s3.region' to the one of it"),
    }
    packages: ClassVar = {"boto3": "boto3"}
    deletes_many = True

    settings: S3Settings

    @override
    def open_obstore(self, **limits: Any) -> Any:
        from obstore import store

        login = profile_credentials(self.settings)
        config: Any = self.settings.config()
        return store.S3Store(self.url.bucket, config=config, credential_provider=login, **limits)

    @override
    def public_endpoint(self) -> str | None:
        return option_or_variable(self.settings.endpoint, *_ENDPOINTS)

    @override
    def uploads(self) -> S3Uploads:
        return S3Uploads(self)

    @override
    def plain_logins(self) -> Iterator[tuple[str, str]]:
        if self.settings.sends_login_on_redirect():
            yield self.public_endpoint() or "", "the session token of S3"


def find_endpoint(bucket: str, settings: S3Settings) -> str | None:
    """Return the endpoint of a bucket, without the bucket; None if it is Amazon's.

    obstore takes the endpoint with the bucket in the host name, where other clients add it.
    """
    found = option_or_variable(settings.endpoint, *_ENDPOINTS)
    if found is None or settings.path_style is not False:
        return found
    return found.replace(f"://{bucket}.", "://", 1)


# --- credentials of profiles

_LIFETIME = timedelta(minutes=5)
"""boto3 renews credentials that expire within 15 minutes; with a longer interval between calls it
might be late."""

_LOGINS = ("aws_access_key_id", "credential_process", "role_arn", "sso_session", "sso_start_url")
_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}


def profile_credentials(settings: S3Settings) -> Any:
    """Return obstore's provider of the credentials of a profile; None if obstore needs none.

    obstore reads keys of environment variables, tokens of web identities (EKS), and the credentials
    of containers and instances. boto3 reads profiles with keys, roles, SSO or a
    ``credential_process``, as Amazon's own tools do. Keys in options precede a profile in options,
    and keys in the environment precede a profile there.

    Raises:
        OptionError: If only a profile contains a login, and boto3 is missing or cannot read it.
    """
    named = settings.profile
    if settings.anonymous or settings.access_key_id is not None:
        return None
    if named is None and ("AWS_ACCESS_KEY_ID" in os.environ or not _has_login(_current_profile())):
        return None
    shown = named or _current_profile()
    if find_spec("boto3") is None:
        raise OptionError(
            f"only the profile {shown!r} contains the login for S3, which needs boto3: install "
            "krishiv-spark[s3] on every machine; or give keys, by 'storage.s3.accessKeyId' and "
            "'storage.s3.secretAccessKey' or by environment variables"
        )
    import boto3
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=named), ttl=_LIFETIME)
    except (BotoCoreError, ValueError) as error:
        raise_alone(OptionError(f"the profile {shown!r} does not log in to S3: {describe(error)}"))


def _current_profile() -> str:
    return os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"


def _has_login(profile: str) -> bool:
    found: set[str] = set()
    for variable, usual in _FILES.items():
        parser = ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(Path(os.environ.get(variable, usual)).expanduser())
        except ConfigError:  # boto3, and other programs, report it in more detail
            continue
        for section in (profile, f"profile {profile}"):  # the latter in the file of settings
            found.update(parser[section] if parser.has_section(section) else ())
    return not found.isdisjoint(_LOGINS)


# --- boto3's client

_ATTEMPTS = 12
"""Number of attempts of one request, with pauses of up to 20 s, about 75 s together, since
throttling lasts."""

_FIRST_ATTEMPTS = 2
"""Number of attempts before the first answer of the store, which take less than 10 s."""

_URL = re.compile(r"https?://[^/\s\"']+")


@dataclass(frozen=True)
class S3Client(StoreClient):
    """boto3's client of a bucket, by the settings and the environment that obstore uses."""

    store: S3Store

    @override
    def open(self, timeouts: TimeoutPolicy) -> Any:
        from boto3.session import Session
        from botocore import UNSIGNED
        from botocore.config import Config

        settings, bucket = self.store.settings, self.store.url.bucket
        by_path = settings.path_style is not False
        config = Config(
            s3={"addressing_style": "path" if by_path else "virtual"},
            signature_version=UNSIGNED if settings.anonymous else None,
            proxies=settings.proxies() or None,
            connect_timeout=min(5, timeouts.request_s),
            max_pool_connections=CONNECTIONS,
            read_timeout=timeouts.request_s,
            retries={
                "mode": "standard",
                "total_max_attempts": _FIRST_ATTEMPTS if timeouts.is_first_contact else _ATTEMPTS,
            },
            # Other stores that speak S3's protocol reject checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            ignore_configured_endpoint_urls=True,  # obstore does not read them
        )
        profile = settings.profile if settings.access_key_id is None else None
        region = option_or_variable(settings.region, "AWS_REGION", "AWS_DEFAULT_REGION")
        return Session(profile_name=profile).client(
            "s3",
            region_name=region or "us-east-1",
            endpoint_url=find_endpoint(bucket, settings),
            verify=settings.ca_file,
            config=config,
            **plain_values(
                aws_access_key_id=settings.access_key_id,
                aws_secret_access_key=settings.secret_access_key,
                aws_session_token=settings.session_token,
            ),
        )

    @override
    def explain(self, error: Exception) -> str:
        if code := _code_of(error):
            answer: Mapping[str, Any] = getattr(error, "response", None) or {}
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            message = str(error).partition("operation: ")[2]
            return explain_refusal(self.store, code, status, message)
        where = _URL.search(str(error))
        shown = "the store" if where is None else where[0]
        return explain_silence(self.store, shown, f"{error!r} {error}")


def _code_of(error: Exception) -> str:
    """Return S3's error code for a refused request; its status if the answer has no body."""
    answer: Mapping[str, Any] = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


# --- uploads

_NONCE = "krishiv-nonce"
_ABSENT = frozenset({"404", "NoSuchKey", "NoSuchUpload", "NotFound"})

_SETTLED_S = 5.0
"""Maximum wait for the object of a missing upload, which another process may be completing."""

_PROBE = "_krishiv/probe"


class S3Uploads(Uploads):
    """Multipart uploads of S3.

    No listing contains the parts of an incomplete upload, and a process that knows its id and the
    parts' ETags can complete it. A second completion fails with NoSuchUpload. Then the object is
    read: its metadata contains the nonce of the upload.

    Args:
        store: The location to which their keys are relative.

    Raises:
        OptionError: If boto3 is missing.
    """

    def __init__(self, store: S3Store) -> None:
        require_packages(S3Store)
        self.url = store.url
        self._client = S3Client(store)

    @override
    def open(self, key: str) -> OpenUpload:
        return PartsUpload(key, _S3Sender(self, key))

    @override
    def complete(self, upload: Upload) -> bool:
        parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(upload.parts, 1)]

        def complete(client: Any, **named: str) -> object:
            return client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **named)

        if self.ask("complete", upload, complete) is not None:
            return True
        return self._await_object(upload)

    @override
    def state(self, upload: Upload) -> UploadState:
        if self.ask("inspect", upload, _is_open):
            return UploadState.OPEN
        return UploadState.VISIBLE if self._await_object(upload) else UploadState.MISSING

    @override
    def abort(self, upload: Upload) -> None:
        self.ask("abort", upload, lambda client, **named: client.abort_multipart_upload(**named))

    @override
    def discard(self, upload: Upload) -> None:
        self.abort(upload)

    @override
    def pending(self) -> Iterator[PendingUpload]:
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

    @override
    def verify(self) -> None:
        sender = _S3Sender(self, _PROBE)
        sender.begin("")
        try:
            list(self.pending())
        finally:
            sender.discard()

    def begin(self, key: str, nonce: str) -> str:
        """Start an upload whose object will contain a nonce, and return its id."""

        def begin(client: Any) -> str:
            named = {"Bucket": self.url.bucket, "Key": self._path(key)}
            return str(
                client.create_multipart_upload(Metadata={_NONCE: nonce}, **named)["UploadId"]
            )

        return self._client.ask(f"start a multipart upload of {self.url}/{key}", begin)

    def ask(self, verb: str, upload: Upload, function: Callable[..., _T]) -> _T | None:
        """Return a function's result for the client and an upload; None if it is missing."""
        from botocore.exceptions import ClientError

        named = {"Bucket": self.url.bucket, "Key": self._path(upload.key), "UploadId": upload.id}

        def ask(client: Any) -> _T | None:
            try:
                return function(client, **named)
            except ClientError as error:
                if _code_of(error) in _ABSENT:
                    return None
                raise

        return self._client.ask(f"{verb} the multipart upload of {self.url}/{upload.key}", ask)

    def _await_object(self, upload: Upload) -> bool:
        """Return True if the object of a missing upload appears."""
        for _ in Backoff(_SETTLED_S, shortest_s=0.01).attempts():
            if self.ask("find the end of", upload, partial(_is_visible, upload.nonce)):
                return True
        return False

    def _path(self, key: str) -> str:
        return (self.url / key).path


class _S3Sender(PartSender):
    def __init__(self, uploads: S3Uploads, key: str) -> None:
        self._uploads = uploads
        self._upload = Upload(key=key, id="", size=0, nonce="", begun_ms=0)

    @override
    def begin(self, nonce: str) -> str:
        begun = self._uploads.begin(self._upload.key, nonce)
        self._upload = self._upload.model_copy(update={"id": begun})
        return begun

    @override
    def send(self, number: int, data: bytes) -> str:
        def send(client: Any, **named: str) -> str:
            return str(client.upload_part(PartNumber=number + 1, Body=data, **named)["ETag"])

        tag = self._uploads.ask("write to", self._upload, send)
        if tag is None:
            raise UploadGoneError(
                f"the multipart upload of {self._uploads.url}/{self._upload.key} was aborted "
                "while it was being written"
            )
        return tag

    @override
    def discard(self) -> None:
        self._uploads.abort(self._upload)


def _is_open(client: Any, **named: str) -> bool:
    client.list_parts(MaxParts=1, **named)
    return True


def _is_visible(nonce: str, client: Any, **named: str) -> bool:
    del named["UploadId"]
    return bool(client.head_object(**named)["Metadata"].get(_NONCE) == nonce)
