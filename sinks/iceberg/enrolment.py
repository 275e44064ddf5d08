"""Proof that a catalog keeps a query's mark, before the query writes its first row. Driver.

The mark is a property of the table (`marks`). A catalog that refuses properties would refuse the
first commit after all of its work. One that drops them would take every epoch, and a restart would
write the newest one again. So the property is committed without an epoch first, once in the life
of a query, and must be in the catalog's answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetPropertiesUpdate

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg._pyiceberg import commit_once
from krishiv_spark.iceberg.catalogs import (
    CatalogFailedError,
    explain_catalog_errors,
    forget_catalog,
    open_table,
)
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import EPOCH_PREFIX, NO_EPOCH
from krishiv_spark.sinks.iceberg.marks import has_key

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["enrol_query", "is_refusal"]

_REFUSALS = (BadRequestError, ForbiddenError, NotImplementedError)
_TRANSIENT = frozenset({408, 421, 423, 425})
"""Status codes after which the same request is worth another attempt."""


def enrol_query(table: Table, options: IcebergSinkOptions, query: str) -> Table:
    """Have the table contain the property of a query's mark. Driver; no request if it does.

    A process that dies after this leaves the property without an epoch, which counts as none.

    Args:
        table: As it was loaded.
        options: Of the sink.
        query: Id of the query, or name of a numbered job.

    Returns:
        The table as it is then.

    Raises:
        OptionError: If the catalog refuses the property, or does not keep it.
        CatalogFailedError: If the catalog does not answer, or other commits are always faster.
    """
    backoff = options.commit_backoff()
    while not has_key(table.metadata, query):
        error = _try_to_set(table, options, query)
        if error is None and not has_key(table.metadata, query):
            raise _not_kept(options, query)
        if error is not None:
            # Loaded once more even if time is up: the commit may have happened.
            may_go_on = backoff.pause()
            table = open_table(options)
            if not may_go_on and not has_key(table.metadata, query):
                raise _failure(options, error)
    return table


def is_refusal(error: Exception) -> bool:
    """Return True if a REST catalog has refused a request for what it asks."""
    if type(error) is not RESTError:
        return isinstance(error, _REFUSALS)
    # 422, and codes without a class, some of which a gateway sends on its own.
    answer = getattr(error.__cause__, "response", None)
    return getattr(answer, "status_code", None) not in _TRANSIENT


def _try_to_set(table: Table, options: IcebergSinkOptions, query: str) -> Exception | None:
    """Commit the property once; return the error after which it is worth another attempt."""
    metadata = table.metadata
    # Or a request that arrives late would overwrite the mark of a driver that was faster.
    head = AssertRefSnapshotId.model_validate(
        {"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}
    )
    update = SetPropertiesUpdate(updates={f"{EPOCH_PREFIX}{query}": NO_EPOCH})
    try:
        commit_once(table, (update,), (head, AssertTableUUID(uuid=metadata.table_uuid)))
    except CommitFailedException as error:
        return error
    except (NoSuchTableError, UnauthorizedError):
        with explain_catalog_errors(options, f"set a property of table {options.table_name}"):
            raise
    except Exception as error:  # noqa: BLE001  anything else may have happened: the caller looks
        if is_refusal(error):
            raise _refused(options, query, error) from None
        forget_catalog(options)  # its connection may be inside of a transaction that has failed
        return error
    return None


def _refused(options: IcebergSinkOptions, query: str, error: Exception) -> OptionError:
    reason = options.describe_error(error)
    return OptionError(
        f"{FORMAT}: the catalog refuses to set the property '{EPOCH_PREFIX}{query}' of table "
        f"{options.table_name}: {reason}. {_ADVICE}"
    )


def _not_kept(options: IcebergSinkOptions, query: str) -> OptionError:
    return OptionError(
        f"{FORMAT}: the catalog does not keep the properties of table {options.table_name}: it "
        f"accepted a commit that sets '{EPOCH_PREFIX}{query}', and the table in its response lacks "
        f"the property. {_ADVICE}"
    )


_ADVICE = (
    "The sink needs this property: it contains the newest epoch of the query, and without it a "
    "restart would write rows again. No row was written. Have the catalog allow commits to set, "
    "and keep, table properties that begin with 'krishiv.', or use another catalog"
)


def _failure(options: IcebergSinkOptions, error: Exception) -> CatalogFailedError:
    reason = options.describe_error(error)
    return CatalogFailedError(
        f"{FORMAT}: the first commit of a query to table {options.table_name}, which sets a "
        f"property, did not succeed within {options.commit_timeout / 1000:g} s ('commitTimeout'): "
        f"{reason}. No row was written; restart the query"
    )
