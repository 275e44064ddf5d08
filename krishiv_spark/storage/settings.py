"""Settings of the connection to a store: options `storage.<kind>.<setting>`, or the environment."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from krishiv_spark.messages.redaction import redact
from krishiv_spark.options import Duration, Options
from krishiv_spark.runtime.contact import TimeoutPolicy, record_contact, timeout_policy

__all__ = ["UNREACHABLE", "StoreSettings", "option_or_variable", "plain_values"]

UNREACHABLE = "127.0.0.1:0"
"""An address at which no process can listen."""

_PROXY_VARIABLES = tuple(
    name
    for scheme in ("http", "https", "all")
    for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper())
)
"""Environment variables of the proxies that obstore uses if no option specifies one."""


def _check_proxy(url: SecretStr) -> SecretStr:
    if not url.get_secret_value().startswith(("http://", "https://")):
        raise ValueError("a proxy is written http://host:port or https://host:port")
    return url


class StoreSettings(Options):
    """Settings of one store. The environment provides those that no option sets."""

    spark_keys: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[Mapping[str, str]] = {
        "log_level": "it is an option of the source or the sink"
    }

    endpoint: str | None = Field(
        default=None,
        description="Endpoint, as `https://host:port`, if it is not the public one.",
    )
    ca_file: str | None = Field(
        default=None,
        description="File of certificates (PEM) that are trusted in addition to the machine's own.",
    )
    proxy: Annotated[SecretStr, AfterValidator(_check_proxy)] | None = Field(
        default=None,
        description="HTTP proxy, as `http://host:port` or `http://user:password@host:port`.",
    )
    timeout: Duration = Field(
        default=30_000, gt=0, description="Maximum duration of one request, as `30 s`."
    )

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """Return those keys whose values are secret. A proxy without credentials is not."""
        found = super().secret_keys(given)
        return {key for key in found if key.lower() != "proxy" or "@" in given[key]}

    logins: ClassVar[tuple[str, ...]] = ()
    """Environment variables that contain secrets of such a store."""

    def secrets(self) -> set[str]:
        """Return the secrets of the options, and those of the environment."""
        return super().secrets() | {os.environ.get(name, "") for name in self.logins} - {""}

    def redact(self, text: str) -> str:
        """Return a text of a client or a server without secrets."""
        return redact(text, self.secrets())

    def __hash__(self) -> int:
        """Hash all values, by which connections are cached."""
        return hash(tuple(vars(self).items()))

    def config(self) -> dict[str, Any]:
        """Return the settings in obstore's form, for a store of this kind."""
        return {}

    def proxies(self) -> dict[str, str]:
        """Return the proxy for each scheme; empty if there is none."""
        if self.proxy is None:
            return {}
        return dict.fromkeys(("http", "https"), self.proxy.get_secret_value())

    def timeouts(self, store: Hashable) -> TimeoutPolicy:
        """Return the current timeouts for a store with these settings.

        Args:
            store: Bucket, or addresses of servers. The endpoint is among the settings.
        """
        is_user_set = "timeout" in self.model_fields_set
        return timeout_policy(self._contact_name(store), self.timeout, is_user_set=is_user_set)

    def record_answer(self, store: Hashable) -> None:
        """Make the whole application wait longer for a store, since it has answered."""
        record_contact(self._contact_name(store))

    def _contact_name(self, store: Hashable) -> str:
        return f"store {store!r} at {self.endpoint}"

    def sends_login_on_redirect(self) -> bool:
        """Return True if a redirect would send a secret to another host.

        HTTP clients keep secrets in URLs, and in headers that they do not recognize as credentials.
        """
        return False

    def http_options(self, request_s: float, endpoint: str | None = None) -> dict[str, Any]:
        """Return the options of obstore's HTTP client.

        Args:
            request_s: Maximum duration of one request, in seconds.
            endpoint: The endpoint of the store, if it is known. A redirect that would send a secret
                to another host then fails.
        """
        found: dict[str, Any] = {
            "timeout": f"{round(request_s * 1000)}ms",
            "connect_timeout": "5s",
            # Only an endpoint in an option or in the environment can start with http:.
            "allow_http": not (self.endpoint or "").startswith("https:"),
        }
        if self.ca_file is not None:
            found["root_certificate"] = Path(self.ca_file).read_bytes()
        if self.proxy is not None:
            found["proxy_url"] = self.proxy.get_secret_value()
        elif endpoint is not None and self._needs_redirect_guard():
            # obstore follows redirects, and has no option to prevent that. So all other hosts are
            # behind a proxy that cannot exist.
            found["proxy_url"] = f"http://{UNREACHABLE}"
            found["proxy_excludes"] = urlsplit(endpoint).hostname or ""
        return found

    def _needs_redirect_guard(self) -> bool:
        return self.sends_login_on_redirect() and not option_or_variable(None, *_PROXY_VARIABLES)


def plain_values(**values: object) -> dict[str, Any]:
    """Return the values that are not None, with secrets as plain texts."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in values.items()
        if value is not None
    }


def option_or_variable(value: str | SecretStr | None, *names: str) -> str | None:
    """Return the value of an option, or that of the first environment variable that is set.

    Args:
        value: Value of the option; None if it is not set.
        names: Names of the variables that obstore reads, in its order.
    """
    if value is None:
        return next((os.environ[name] for name in names if os.environ.get(name)), None)
    return value.get_secret_value() if isinstance(value, SecretStr) else value
