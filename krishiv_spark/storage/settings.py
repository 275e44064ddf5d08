"""How stores are reached: options `storage.<kind>.<setting>`, or the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.redaction import redact
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.options import Duration, Options
from krishiv_spark.runtime.contacts import note_reached
from krishiv_spark.storage.patience import Patience, patience_with
from krishiv_spark.storage.urls import StoreUrl

__all__ = [
    "AZURE_ENDPOINTS",
    "MODELS",
    "NOWHERE",
    "S3_ENDPOINTS",
    "AzureSettings",
    "GcsSettings",
    "HdfsSettings",
    "S3Settings",
    "StoreSettings",
    "check_settings",
    "said",
    "secret_settings",
    "secrets_in",
    "settings_for",
]


def _with_scheme(url: SecretStr) -> SecretStr:
    if not url.get_secret_value().startswith(("http://", "https://")):
        raise ValueError("a proxy is written http://host:port or https://host:port")
    return url


class StoreSettings(Options):
    """What is said of a store. What is not said comes from the environment."""

    spark_keys: ClassVar[frozenset[str]] = frozenset()
    refuses: ClassVar[Mapping[str, str]] = {"log_level": "it is said of the source or the sink"}

    endpoint: str | None = Field(
        default=None,
        description="Where it is, as `https://host:port`, if it is not the public one.",
    )
    ca_file: str | None = Field(
        default=None, description="Certificates (PEM) that are trusted besides the machine's."
    )
    proxy: Annotated[SecretStr, AfterValidator(_with_scheme)] | None = Field(
        default=None,
        description="HTTP proxy, as `http://host:port` or `http://user:password@host:port`.",
    )
    timeout: Duration = Field(
        default=30_000, gt=0, description="How long one request may take, as `30 s`."
    )

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """See `Options`; a proxy is none without a login."""
        found = super().secret_keys(given)
        return {key for key in found if key.lower() != "proxy" or "@" in given[key]}

    logins: ClassVar[tuple[str, ...]] = ()
    """Variables of the environment that hold secrets of such a store."""

    def secrets(self) -> set[str]:
        """See `Options`; also those of the environment, which log in where no option does."""
        return super().secrets() | {os.environ.get(name, "") for name in self.logins} - {""}

    def redacted(self, text: str) -> str:
        """Return what a client or a server says, without secrets."""
        return redact(text, self.secrets())

    def __hash__(self) -> int:
        """By all that is said, for connections are kept by it."""
        return hash(tuple(vars(self).items()))

    def config(self) -> dict[str, Any]:
        """For the store of its kind in obstore."""
        return {}

    def patience(self, store: Hashable) -> Patience:
        """How long a store that is reached by these settings is waited for now.

        Args:
            store: Which one; what else is said of it is here.
        """
        is_given = "timeout" in self.model_fields_set
        return patience_with(self._name(store), self.timeout, is_given=is_given)

    def note_answer(self, store: Hashable) -> None:
        """It has answered: it is waited for longer from now on, by the whole application."""
        note_reached(self._name(store))

    def _name(self, store: Hashable) -> str:
        return f"store {store!r} at {self.endpoint}"

    def login_on_redirect(self) -> bool:
        """Return True if a redirect would take a secret along, and obstore logs in nowhere else.

        HTTP clients keep what stands in a URL or in a header that they do not know as a login.
        """
        return False

    def client(self, within_s: float, endpoint: str | None = None) -> dict[str, Any]:
        """For obstore's HTTP client.

        Args:
            within_s: How long one request may take.
            endpoint: Where the store is, if that is known. Where a redirect would take a secret to
                another host, it fails.
        """
        found: dict[str, Any] = {
            "timeout": f"{round(within_s * 1000)}ms",
            "connect_timeout": "5s",
            # Only an endpoint that was given, here or in the environment, can begin with http:.
            "allow_http": not (self.endpoint or "").startswith("https:"),
        }
        if self.ca_file is not None:
            found["root_certificate"] = Path(self.ca_file).read_bytes()
        if self.proxy is not None:
            found["proxy_url"] = self.proxy.get_secret_value()
        elif endpoint is not None and self.login_on_redirect() and not said(None, *_PROXIES):
            # obstore follows redirects, and has no option about it. So all other hosts are behind
            # a proxy that cannot be there.
            found["proxy_url"] = f"http://{NOWHERE}"
            found["proxy_excludes"] = urlsplit(endpoint).hostname or ""
        return found


NOWHERE = "127.0.0.1:0"
"""An address where nothing can listen."""

_PROXIES = tuple(
    name
    for scheme in ("http", "https", "all")
    for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper())
)
"""The environment's proxies, which obstore uses if it is given none."""


def _given(**values: object) -> dict[str, Any]:
    """Those that are given, without their wrapping."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in values.items()
        if value is not None
    }


def said(value: str | SecretStr | None, *names: str) -> str | None:
    """What an option says, or else the environment, by the names that obstore reads."""
    if value is None:
        return next((os.environ[name] for name in names if os.environ.get(name)), None)
    return value.get_secret_value() if isinstance(value, SecretStr) else value


S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
AZURE_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
"""Variables of the environment that name an endpoint, as obstore reads them."""


class S3Settings(StoreSettings):
    """S3 and what speaks its language."""

    logins = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

    region: str | None = Field(default=None, description="Of the bucket, as `eu-central-1`.")
    access_key_id: SecretStr | None = Field(default=None, description="Key of a user.")
    secret_access_key: SecretStr | None = Field(default=None, description="Secret of that key.")
    session_token: SecretStr | None = Field(default=None, description="Of temporary credentials.")
    profile: str | None = Field(
        default=None,
        description="Of Amazon's files of settings on every machine; needs `boto3`, by "
        "`krishiv-spark[s3]`.",
    )
    path_style: bool | None = Field(
        default=None, description="Whether the bucket is in the path and not in the host's name."
    )
    anonymous: bool | None = Field(default=None, description="Whether requests are not signed.")

    def login_on_redirect(self) -> bool:
        """See `StoreSettings`. The session token; signatures are dropped by clients."""
        if self.anonymous:
            return False
        if self.access_key_id is not None or self.profile is not None:
            return self.session_token is not None or self.access_key_id is None
        return all(os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"))

    def config(self) -> dict[str, Any]:
        """See `StoreSettings`."""
        return _given(
            endpoint=self.endpoint,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            session_token=self.session_token,
            skip_signature=self.anonymous,
            virtual_hosted_style_request=None if self.path_style is None else not self.path_style,
        )


_NOBODY = json.dumps(
    {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
)
"""A key by which nobody logs in: what is not signed asks for a token all the same to delete."""


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
        return _given(
            base_url=self.endpoint,
            application_credentials=self.credentials_file,
            service_account_key=_NOBODY if self.anonymous else self.service_account_key,
            skip_signature=self.anonymous,
        )


class AzureSettings(StoreSettings):
    """Azure's Blob Storage and Data Lake Storage."""

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
    account_key: SecretStr | None = Field(default=None, description="One of its keys.")
    sas_token: SecretStr | None = Field(default=None, description="A shared access signature.")
    tenant_id: str | None = Field(default=None, description="Of a service principal.")
    client_id: str | None = Field(
        default=None, description="Of a service principal, or of a managed identity."
    )
    client_secret: SecretStr | None = Field(default=None, description="Of a service principal.")

    def login_on_redirect(self) -> bool:
        """See `StoreSettings`. A shared access signature, where obstore uses it."""
        others = (
            self.signs(),
            said(self.client_secret, "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
            said(None, "AZURE_FEDERATED_TOKEN_FILE"),
        )
        return self.sas is not None and not any(others)

    def signs(self) -> bool:
        """Return True if requests are signed by a key of the account, which is not sent."""
        names = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")
        return said(self.account_key, *names) is not None

    @property
    def sas(self) -> str | None:
        """The shared access signature, by option or by environment."""
        return said(self.sas_token, "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")

    def config(self) -> dict[str, Any]:
        """See `StoreSettings`."""
        return _given(
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


MODELS: dict[str, type[StoreSettings]] = {
    "s3": S3Settings,
    "gcs": GcsSettings,
    "azure": AzureSettings,
    "hdfs": HdfsSettings,
    "disk": StoreSettings,
    "memory": StoreSettings,
}
"""By kind of the store, as `StoreUrl` has it."""


_FORM = f"storage.<{'|'.join(MODELS)}>.<setting>"


def settings_for(url: StoreUrl, given: Mapping[str, str]) -> StoreSettings:
    """What options say of the store that a URL is in.

    Args:
        url: A place in the store, by which its kind and bucket are known.
        given: Options ``storage.<kind>.<setting>``, or ``storage.<kind>.<bucket>.<setting>`` for
            one bucket, which goes before.

    Raises:
        OptionError: If one is not known, or has a bad value.
    """
    said = _by_bucket(given)
    own = said.get((url.kind, url.bucket.lower()), {})
    special = {name.lower() for name in own}
    general = {k: v for k, v in said.get((url.kind, ""), {}).items() if k.lower() not in special}
    return MODELS[url.kind].parse({**general, **own}, f"storage.{url.kind}")


def check_settings(given: Mapping[str, str]) -> None:
    """Refuse options that no store has, also of stores that no URL has named yet.

    Raises:
        OptionError: As `settings_for`.
    """
    for (kind, bucket), values in _by_bucket(given).items():
        MODELS[kind].parse(values, ".".join(filter(None, ("storage", kind, bucket))))


def secret_settings(given: Mapping[str, str]) -> set[str]:
    """The keys, among options of stores, of those that must not be shown.

    Raises:
        OptionError: If one is of no store.
    """
    found = set()
    for key, text in given.items():
        for (kind, _), values in _by_bucket({key: text}).items():
            found |= {key} if text and MODELS[kind].secret_keys(values) else set()
    return found


def secrets_in(given: Mapping[str, str]) -> set[str]:
    """What must not be shown of options of stores.

    Raises:
        OptionError: As `settings_for`.
    """
    parsed = (MODELS[kind].parse(values, kind) for (kind, _), values in _by_bucket(given).items())
    return {secret for settings in parsed for secret in Options.secrets(settings)}


def _by_bucket(given: Mapping[str, str]) -> dict[tuple[str, str], dict[str, str]]:
    """By kind and bucket, which is empty for all, the settings."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for key, value in given.items():
        _, kind, *bucket = key.lower().split(".")[:-1] if key.count(".") > 1 else ("", "")
        if kind not in MODELS:
            near = suggest(kind, MODELS)
            hint = f"did you mean 'storage.{near}.…'?" if near else f"write {_FORM}"
            raise OptionError(f"unknown option {key!r}: {hint}")
        found.setdefault((kind, ".".join(bucket)), {})[key.rpartition(".")[2]] = value
    return found
