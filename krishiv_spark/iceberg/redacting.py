"""Errors of stores without the credentials of a table. Driver and tasks.

Clients of stores show URLs and answers in their errors, and with them the signature of a SAS token
or a session token. A catalog hands such credentials out with a table, so that they are in no option
(`IcebergOptions.redacted`): here they are known by the properties of the table's FileIO.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import KrishivError, StorageError
from krishiv_spark.iceberg.options import FORMAT, CatalogSettings
from krishiv_spark.messages.exception_chains import describe, raise_alone, scrub, shows_secret
from krishiv_spark.storage.settings import secrets_in
from krishiv_spark.storage.storage import PREFIX

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

__all__ = ["find_secrets", "redact_errors"]

_SHORTEST = 4
"""Fewer characters are in nearly every text, and no secret."""


@contextmanager
def redact_errors(io: FileIO, doing: str) -> Iterator[None]:
    """Replace an error that shows a credential of a FileIO, in any part of its chain.

    Other errors pass unchanged.

    Args:
        io: Reaches the files.
        doing: What fails, as "read table db.rows".

    Raises:
        KrishivError: Of the same class, redacted, without a cause; see `scrub`.
        StorageError: Likewise, for an error that is none of ours.
    """
    try:
        yield
    except Exception as error:
        secrets = find_secrets(io.properties)
        if not shows_secret(error, secrets):
            raise
        if isinstance(error, KrishivError):
            raise_alone(scrub(error, secrets))
        raise_alone(StorageError(f"{FORMAT}: cannot {doing}: {describe(error, secrets)}"))


def find_secrets(properties: Mapping[str, Any]) -> set[str]:
    """Return the credentials among the properties of a FileIO.

    `without_secrets` knows the forms and parts in which errors show them.
    """
    texts = {key: text for key, text in properties.items() if isinstance(text, str)}
    found = CatalogSettings.of(texts).secrets()
    found |= secrets_in({k: text for k, text in texts.items() if k.lower().startswith(PREFIX)})
    return {secret for secret in found if len(secret) >= _SHORTEST}
