"""PyIceberg's client of Glue, with timeouts.

PyIceberg 0.12 has boto3 try eleven times, for a minute each, so that a catalog that never responds
would block a query for as long, regardless of its `commitTimeout`. And it passes
``glue.max-retries`` as text, which boto3 refuses. A catalog that has never responded gets shorter
timeouts: its address may be wrong (`krishiv_spark.runtime.contact`).
"""

from __future__ import annotations

import contextlib
from typing import Any

from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import Session
from pyiceberg.catalog import ICEBERG, METADATA_LOCATION, TABLE_TYPE
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table
from typing_extensions import override

from krishiv_spark.iceberg.guarded_catalog import GuardedMetastoreCatalog
from krishiv_spark.runtime.contact import has_contacted, record_contact

__all__ = ["TimeoutGlueCatalog"]

_CONNECT_S, _READ_S = 5, 15
_FIRST_CONNECT_S, _FIRST_READ_S = 4, 8
_RETRIES = "4"
"""After pauses of at most 1, 2, 4 and 8 seconds."""


class TimeoutGlueCatalog(GuardedMetastoreCatalog, GlueCatalog):  # pyright: ignore[reportIncompatibleMethodOverride]  # see there
    """A client of Glue that fails if Glue does not respond. Driver.

    A commit is conditional on the version of Glue's entry that it is based on (``VersionId`` of
    UpdateTable). If a response is lost and boto3 repeats the request, Glue refuses the second one
    as a conflict with another commit, although the first one has succeeded.
    """

    def __init__(self, name: str, **properties: str) -> None:
        client = {**properties, "glue.max-retries": _parse_retries(properties)}
        session = _create_session(properties, _CONNECT_S, _READ_S)
        super().__init__(name, **client, botocore_session=session)
        self.properties = properties  # without the session, which does not pickle
        server = f"catalog {self.glue.meta.endpoint_url}"
        if not has_contacted(server):
            _check_connection(name, client)
            record_contact(server)

    @override
    def _convert_glue_to_iceberg(self, glue_table: Any) -> Table:
        found = glue_table.get("Parameters") or {}
        location = found.get(METADATA_LOCATION)
        if not location or found.get(TABLE_TYPE, "").lower() != ICEBERG:
            return super()._convert_glue_to_iceberg(glue_table)  # for its error
        io = self._load_file_io(location=location)
        metadata = self.metadata_files.read(
            io.new_input(location), self.file_access.max_metadata_bytes
        )
        identifier = (glue_table["DatabaseName"], glue_table["Name"])
        return self._guard(Table(identifier, metadata, location, io, self))

    @override
    def _update_glue_table(
        self, database_name: str, table_name: str, table_input: Any, version_id: str
    ) -> None:
        """Change an entry if it still has the specified version.

        Raises:
            CommitFailedException: If it certainly was not changed.
            CommitStateUnknownException: If an earlier attempt of the same request may have changed
                it.
        """
        try:
            super()._update_glue_table(database_name, table_name, table_input, version_id)
        except CommitFailedException as error:
            if _was_repeated(error.__cause__):
                raise CommitStateUnknownException(f"{error}, perhaps by itself") from error
            raise


def _was_repeated(error: Any) -> bool:
    """Return True if boto3 has sent a request more than once."""
    answer: dict[str, Any] = getattr(error, "response", None) or {}
    return bool(answer.get("ResponseMetadata", {}).get("RetryAttempts"))


def _parse_retries(properties: dict[str, str]) -> int:
    text = properties.get("glue.max-retries", _RETRIES)
    if not text.isdigit():
        raise ValueError(f"'catalog.glue.max-retries' is {text!r}: it must be a number")
    return int(text)


def _check_connection(name: str, properties: dict[str, Any]) -> None:
    """Send one request without retries.

    Raises:
        botocore.exceptions.BotoCoreError: If the server does not respond.
    """
    session = _create_session(properties, _FIRST_CONNECT_S, _FIRST_READ_S)
    client = {**properties, "glue.max-retries": 0}
    with contextlib.suppress(ClientError):  # a response, such as a refusal
        GlueCatalog(name, **client, botocore_session=session).glue.get_databases(MaxResults=1)


def _create_session(properties: dict[str, Any], connect_s: int, read_s: int) -> Any:
    # boto3 applies no profile to a session that it gets.
    session = Session(
        profile=properties.get("glue.profile-name") or properties.get("client.profile-name")
    )
    session.set_default_client_config(Config(connect_timeout=connect_s, read_timeout=read_s))
    return session
