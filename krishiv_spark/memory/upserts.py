"""Rows that take the place of those with the same key. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.memory.rows import EncodedRows, decode, encode

__all__ = ["check_kept_keys", "check_keys", "upserted"]

_ROW = "krishiv.row"


def check_keys(keys: Sequence[str], rows: pa.Schema) -> None:
    """Refuse columns that cannot identify a row. Planner.

    Raises:
        OptionError: If there is none, or one is not there, nested or a floating number.
    """
    if not keys:
        raise OptionError("krishiv-memory: 'mode' = 'upsert' needs the option 'keyColumns'")
    for name in keys:
        if name not in rows.names:
            known = ", ".join(rows.names)
            raise OptionError(f"krishiv-memory: 'keyColumns' names {name!r}, but there are {known}")
        kind = rows.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise OptionError(
                f"krishiv-memory: 'keyColumns' names {name!r}: {kind} cannot be a key"
            )


def check_kept_keys(keys: Sequence[str], kept: Sequence[str]) -> None:
    """Refuse an epoch by which a result could have two rows of one key. Planner.

    Args:
        keys: Key columns of the query; empty if it appends.
        kept: Those of the newest upsert of the result; empty without one.

    Raises:
        OptionError: If the result has upserts by other columns.
    """
    if not kept or sorted(keys) == sorted(kept):
        return
    given, names = ",".join(keys), ",".join(kept)
    raise OptionError(
        f"krishiv-memory: the result is upserted by {names!r}, and this query "
        f"{f'upserts by {given!r}' if keys else 'appends'}: rows of one key would be there twice. "
        f"Nothing was written: give 'mode' = 'upsert' and 'keyColumns' = {names!r}, or another "
        "name; or, if that is meant, 'allowMixedKeys' = 'true'"
    )


def upserted(
    held: Iterable[bytes], staged: Iterable[bytes], keys: Sequence[str], schema: pa.Schema
) -> EncodedRows:
    """A result with the rows of an epoch: of those with one key, the last one stays.

    Args:
        held: Bodies of the result, oldest first.
        staged: Bodies of the epoch, by task.
        keys: Columns that identify a row; a null is a value as any other.
        schema: Columns of the epoch. Those that only older rows have stay, null in new ones.
    """
    batches = [batch for bodies in (held, staged) for body in bodies for batch in decode(body)]
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    rows = pa.concat_tables([schema.empty_table(), *tables], promote_options="default")
    numbered = rows.select(list(keys)).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    newest = numbered.group_by(list(keys)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    kept = rows.take(pa.array(np.sort(newest.to_numpy())))
    return encode(kept.to_batches(), kept.schema)
