"""Tables and their logs, opened with the settings of a query. Any process.

The library lists the log when it opens a table, so a table is always opened again before its state
matters: an object that was kept while its folder was replaced would continue the old versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from krishiv_spark.delta.options import FORMAT, DeltaOptions
from krishiv_spark.errors import KrishivError, OptionError, StorageError
from krishiv_spark.messages.redaction import first_line
from krishiv_spark.storage.s3 import S3Settings, find_endpoint
from krishiv_spark.storage.storage import settings_for

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from krishiv_spark.storage import Folder

__all__ = [
    "LOG",
    "describe_error",
    "explain_errors",
    "find_table",
    "log_folder",
    "open_table",
    "store_options",
]

LOG = "_delta_log"
"""The folder of a table with its log."""


_MOST_RETRIES, _RETRY_S = 8, 60
"""Limits of the retries of one request, which by default last for three minutes."""


def open_table(options: DeltaOptions, version: int | None = None) -> DeltaTable:
    """Read the log, and return the table at its newest version, or at another one.

    Raises:
        OptionError: If there is no table, or the library is missing.
        StorageError: If the log cannot be read.
    """
    found = find_table(options, version)
    if found is None:
        raise OptionError(f"{FORMAT}: {options.path} is no Delta table: it has no folder {LOG!r}")
    return found


def find_table(options: DeltaOptions, version: int | None = None) -> DeltaTable | None:
    """Do the same; return None if there is no table.

    Raises:
        OptionError: If the library is missing.
        StorageError: If the log cannot be read.
    """
    check_installed()
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    with explain_errors(options, "read the log of the table"):
        try:
            return DeltaTable(table_uri(options), version, storage_options=store_options(options))
        except TableNotFoundError:
            return None


def check_installed() -> None:
    """Refuse a query without the library.

    Raises:
        OptionError: If it is missing; the text names the extra.
    """
    if find_spec("deltalake") is None:
        raise OptionError(
            f"{FORMAT} needs the package 'deltalake': install krishiv-spark[delta] on every machine"
        )


def table_uri(options: DeltaOptions) -> str:
    """Return the table's location in the library's form."""
    url = options.url
    return url.path if options.is_local else f"s3://{url.bucket}/{url.path}"


def log_folder(options: DeltaOptions) -> Folder:
    """Return the folder with the table's log, without a request."""
    return options.storage.folder(options.url / LOG)


def store_options(options: DeltaOptions) -> dict[str, str]:
    """Return the settings of the table's store in the library's form; empty for a disk.

    Commits need conditional writes, so that no two of them have one number.
    """
    url = options.url
    if options.is_local:
        return {}
    settings = settings_for(url, dict(options.storage.options))
    assert isinstance(settings, S3Settings), settings  # `DeltaOptions` refuses others
    endpoint = find_endpoint(url.bucket, settings)
    given = {
        "aws_region": settings.region,
        "aws_endpoint_url": endpoint,
        "aws_virtual_hosted_style_request": _to_text(
            None if settings.path_style is None else not settings.path_style
        ),
        "aws_skip_signature": _to_text(settings.anonymous),
        "aws_conditional_put": "etag",
        "allow_http": _to_text((endpoint or "").startswith("http://") or None),
        "proxy_url": None if settings.proxy is None else settings.proxy.get_secret_value(),
        "timeout": f"{settings.timeout}ms",
        "max_retries": str(_MOST_RETRIES),
        "retry_timeout": f"{_RETRY_S}s",
        **_find_login(settings),
    }
    return {key: text for key, text in given.items() if text is not None}


def _find_login(settings: S3Settings) -> dict[str, str | None]:
    """Return the keys of the options or of a profile; empty if the environment has them."""
    if settings.access_key_id is not None:
        secret, token = settings.secret_access_key, settings.session_token
        return {
            "aws_access_key_id": settings.access_key_id.get_secret_value(),
            "aws_secret_access_key": None if secret is None else secret.get_secret_value(),
            "aws_session_token": None if token is None else token.get_secret_value(),
        }
    if settings.profile is None:
        return {}
    from boto3.session import Session

    found = Session(profile_name=settings.profile).get_credentials()
    if found is None:
        raise OptionError(f"the profile {settings.profile!r} has no login for S3")
    keys = found.get_frozen_credentials()
    return {
        "aws_access_key_id": keys.access_key,
        "aws_secret_access_key": keys.secret_key,
        "aws_session_token": keys.token,
    }


def _to_text(flag: Any) -> str | None:
    return None if flag is None else str(bool(flag)).lower()


_ARROW = re.compile(r"\s*\x1b\[\d+m↳\x1b\[0m\s*")
"""Text between two causes in an error of the library: it starts a new line for each."""


def describe_error(error: Exception, options: DeltaOptions) -> str:
    """Return the causes in an error of the library in one line, without secrets."""
    text = " ".join(_ARROW.sub(": ", str(error)).split())
    return first_line(text, options.secrets()) or type(error).__name__


@contextmanager
def explain_errors(options: DeltaOptions, what: str) -> Iterator[None]:
    """Convert errors of the library into one that names the table, without secrets.

    Args:
        options: Name the table, and have the secrets.
        what: What the block does, such as "read the log of the table".

    Raises:
        StorageError: After an error that is none of this package's.
    """
    try:
        yield
    except KrishivError:
        raise
    # The library raises its own errors, OSError and those of Rust's futures.
    except Exception as error:
        shown = describe_error(error, options)
        raise StorageError(f"{FORMAT}: cannot {what} {options.path}: {shown}") from error
