"""Options of connections to PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from krishiv_spark.options import Duration, Options, SecretStr

__all__ = ["FORMAT", "ConnectionOptions"]

FORMAT = "krishiv-postgresql"

_PREFIX = "libpq."

_KEEPALIVES = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""A server whose machine has died is noticed within a minute, instead of after two hours."""


def _check_url(text: str) -> str:
    start = text.strip().lower()
    if start.startswith("jdbc:"):
        raise ValueError(
            "it is an address of JDBC: write 'postgresql://host:5432/database', and give 'user' "
            "and 'password' as options"
        )
    if not start.startswith(("postgresql://", "postgres://")) and "=" not in start:
        raise ValueError(
            "write a URI, as 'postgresql://host:5432/database', or settings of libpq, as "
            "'host=db1 dbname=shop'"
        )
    return text.strip()


def _strip_prefix(given: Mapping[str, str]) -> Mapping[str, str]:
    return {key[len(_PREFIX) :].lower(): text for key, text in given.items()}


class ConnectionOptions(Options):
    """Options of a connection.

    Attributes:
        settings: Settings of libpq by name, in lower case.
    """

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {"settings": (_PREFIX,)}

    url: Annotated[str, AfterValidator(_check_url)] | None = Field(
        default=None,
        repr=False,
        description="Address of the database: a URI, as `postgresql://host:5432/database`, or "
        "settings of libpq, as `host=db1 dbname=shop`. By default, libpq's variables (`PGHOST`, "
        "`PGSERVICE` and others) of each process name it.",
    )
    user: str | None = Field(default=None, description="Name of the database user.")
    password: SecretStr | None = Field(
        default=None,
        description="Password of the user, as a [reference](secrets.md): `${env:PGPASSWORD}` or "
        "`${file:/run/secrets/pg}`.",
    )
    settings: Annotated[Mapping[str, str], BeforeValidator(_strip_prefix)] = Field(
        default={},
        repr=False,
        validation_alias="libpq.<setting>",
        description="Settings of libpq: `libpq.sslmode`, `libpq.sslrootcert`, `libpq.service`, "
        "`libpq.target_session_attrs` and others.",
    )
    connect_timeout: Duration = Field(
        default=10_000, ge=2_000, description="Maximum time to connect to one server."
    )
    lock_timeout: Duration = Field(
        default=60_000,
        gt=0,
        description="Maximum time to wait for a lock of another transaction.",
    )
    answer_timeout: Duration = Field(
        default=300_000,
        gt=0,
        description="Maximum time to wait for the answer to COMMIT, which includes deferred "
        "constraints and the confirmation of standbys. Then the connection is closed, and the mark "
        "shows whether it has happened.",
    )
    statement_timeout: Duration | None = Field(
        default=None,
        gt=0,
        description="Maximum time of a statement. Default: the setting of the server.",
    )

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """Return the secret keys; settings of libpq may be secrets too. See `Options`."""
        secret = {f"{_PREFIX}password", f"{_PREFIX}sslpassword"}
        found = super().secret_keys(given) | {key for key in given if key.lower() in secret}
        return found | {k for k in given if k.lower() == "url" and _password_in(given[k])}

    def secrets(self) -> set[str]:
        """Return the secrets, with the password of the URL. See `Options`."""
        own = {self.settings.get("password"), self.settings.get("sslpassword")}
        found = {text for text in own if text} | _password_in(self.url or "")
        return super().secrets() | found

    def to_libpq(self) -> dict[str, Any]:
        """Return the settings of a connection, by libpq's names, without those of the URL."""
        found: dict[str, Any] = {
            "fallback_application_name": FORMAT,
            "connect_timeout": max(2, round(self.connect_timeout / 1000)),
            **_KEEPALIVES,
            **self.settings,
            # Of the session, since an error ends the settings of its transaction, and psycopg
            # decodes the message afterwards.
            "client_encoding": "UTF8",
        }
        if self.user is not None:
            found["user"] = self.user
        if self.password is not None:
            found["password"] = self.password.get_secret_value()
        return found

    def address(self) -> str:
        """Return the address without a login, for messages and comparisons."""
        text = self.url or ""
        if "://" in text:
            _, _, rest = text.partition("://")
            return rest.partition("?")[0].rpartition("@")[2]
        words = [word for word in text.split() if not word.lower().startswith(("pass", "sslpass"))]
        named = ("service", "host", "hostaddr", "port", "dbname")
        words += [f"{name}={self.settings[name]}" for name in named if name in self.settings]
        return " ".join(words) or "the server that libpq's variables name"


def _password_in(url: str) -> set[str]:
    """Return the password of a URI or of settings, in each form in which it may be shown."""
    text = str.__str__(url)
    if "://" in text:
        try:
            written = urlsplit(text).password or ""
        except ValueError:  # the connection reports it; nothing of it is known to be safe
            return {text}
        query = [part.partition("=") for part in urlsplit(text).query.split("&")]
        found = {written, *(value for key, _, value in query if key.endswith("password"))}
        return ({*found, *(unquote(one) for one in found)}) - {""}
    words = (word.partition("=") for word in text.split())
    return {value.strip("'") for key, _, value in words if key.lower().endswith("password")} - {""}
