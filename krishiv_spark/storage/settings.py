"""How stores are reached: options `storage.<kind>.<setting>`, or the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, SecretStr

from krishiv_spark.errors import OptionError
from krishiv_spark.options import Duration, Options
from krishiv_spark.storage.urls import StoreUrl

__all__ = [
    "AzureSettings",
    "GcsSettings",
    "HdfsSettings",
    "S3Settings",
    "StoreSettings",
    "settings_for",
]


class StoreSettings(Options):
    """What is said of a store. What is not said comes from the environment."""

    spark_keys: ClassVar[frozenset[str]] = frozenset()

    endpoint: str | None = Field(
        default=None,
        description="Where it is, as `https://host:port`, if it is not the public one.",
    )
    ca_file: str | None = Field(
        default=None, description="Certificates (PEM) that are trusted besides the machine's."
    )
    proxy: str | None = Field(default=None, description="HTTP proxy, as `http://host:port`.")
    timeout: Duration = Field(
        default=30_000, gt=0, description="How long one request may take, as `30 s`."
    )

    def __hash__(self) -> int:
        """By all that is said, for connections are kept by it."""
        return hash(tuple(vars(self).items()))

    def config(self) -> dict[str, Any]:
        """For the store of its kind in obstore."""
        return {}

    def client(self) -> dict[str, Any]:
        """For obstore's HTTP client."""
        found: dict[str, Any] = {
            "timeout": f"{self.timeout}ms",
            "connect_timeout": "5s",
            # Only an endpoint that was given, here or in the environment, can begin with http:.
            "allow_http": not (self.endpoint or "").startswith("https:"),
        }
        if self.ca_file is not None:
            found["root_certificate"] = Path(self.ca_file).read_bytes()
        if self.proxy is not None:
            found["proxy_url"] = self.proxy
        return found


def _said(**values: object) -> dict[str, Any]:
    """Those that are given, without their wrapping."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in values.items()
        if value is not None
    }


class S3Settings(StoreSettings):
    """S3 and what speaks its language."""

    region: str | None = Field(default=None, description="Of the bucket, as `eu-central-1`.")
    access_key_id: SecretStr | None = Field(default=None, description="Key of a user.")
    secret_access_key: SecretStr | None = Field(default=None, description="Secret of that key.")
    session_token: SecretStr | None = Field(default=None, description="Of temporary credentials.")
    path_style: bool | None = Field(
        default=None, description="Whether the bucket is in the path and not in the host's name."
    )
    anonymous: bool | None = Field(default=None, description="Whether requests are not signed.")

    def config(self) -> dict[str, Any]:
        """See `StoreSettings`."""
        return _said(
            endpoint=self.endpoint,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            session_token=self.session_token,
            skip_signature=self.anonymous,
            virtual_hosted_style_request=None if self.path_style is None else not self.path_style,
        )


class GcsSettings(StoreSettings):
    """Google Cloud Storage."""

    credentials_file: str | None = Field(
        default=None, description="A service account's key file, on every machine."
    )
    service_account_key: SecretStr | None = Field(
        default=None, description="The text of such a file."
    )
    anonymous: bool | None = Field(default=None, description="Whether requests are not signed.")

    def config(self) -> dict[str, Any]:
        """See `StoreSettings`."""
        return _said(
            base_url=self.endpoint,
            application_credentials=self.credentials_file,
            service_account_key=self.service_account_key,
            skip_signature=self.anonymous,
        )


class AzureSettings(StoreSettings):
    """Azure's Blob Storage and Data Lake Storage."""

    account_name: str | None = Field(
        default=None, description="Storage account, if the URL does not name it."
    )
    account_key: SecretStr | None = Field(default=None, description="One of its keys.")
    sas_token: SecretStr | None = Field(default=None, description="A shared access signature.")
    tenant_id: str | None = Field(default=None, description="Of a service principal.")
    client_id: str | None = Field(
        default=None, description="Of a service principal, or of a managed identity."
    )
    client_secret: SecretStr | None = Field(default=None, description="Of a service principal.")

    def config(self) -> dict[str, Any]:
        """See `StoreSettings`."""
        return _said(
            endpoint=self.endpoint,
            account_name=self.account_name,
            account_key=self.account_key,
            sas_key=self.sas_token,
            tenant_id=self.tenant_id,
            client_id=self.client_id,
            client_secret=self.client_secret,
        )


class HdfsSettings(StoreSettings):
    """HDFS over WebHDFS or HttpFS; `endpoint` may name several NameNodes, with commas."""

    user: str | None = Field(default=None, description="Who asks, where nothing proves it.")
    token: SecretStr | None = Field(default=None, description="A delegation token.")
    kerberos: bool = Field(
        default=False, description="Whether the login is Kerberos's; needs `requests-kerberos`."
    )


_MODELS: dict[str, type[StoreSettings]] = {
    "s3": S3Settings,
    "gcs": GcsSettings,
    "azure": AzureSettings,
    "hdfs": HdfsSettings,
    "disk": StoreSettings,
    "memory": StoreSettings,
}


def settings_for(url: StoreUrl, given: Mapping[str, str]) -> StoreSettings:
    """What options say of the store that a URL is in.

    Args:
        url: A place in the store, by which its kind and bucket are known.
        given: Options ``storage.<kind>.<setting>``, or ``storage.<kind>.<bucket>.<setting>`` for
            one bucket, which goes before.

    Raises:
        OptionError: If one is not known, or has a bad value.
    """
    values: dict[str, dict[str, str]] = {"": {}, url.bucket: {}}
    for key, value in given.items():
        _, kind, *rest = key.split(".")
        if kind.lower() not in _MODELS or not rest:
            raise OptionError(
                f"unknown option {key!r}: write storage.<{'|'.join(_MODELS)}>.<setting>"
            )
        bucket = ".".join(rest[:-1])
        if kind.lower() == url.kind and bucket in values:
            values[bucket][rest[-1]] = value
    return _MODELS[url.kind].parse({**values[""], **values[url.bucket]}, f"storage.{url.kind}")
