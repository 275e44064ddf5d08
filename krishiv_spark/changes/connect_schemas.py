"""The schemas that Kafka Connect's ``JsonConverter`` writes into each record. Executor.

With ``schemas.enable``, each key and each value is ``{"schema": ..., "payload": ...}``. The schema
tells the scale of a decimal and the unit of a time, which the value alone does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc, sort_distinct
from krishiv_spark.changes.connect_types import ConnectType, check_columns
from krishiv_spark.errors import SchemaError

__all__ = ["Unwrapped", "is_wrapped", "read_type", "rewrap", "unwrap"]

_HEAD, _BETWEEN = '{"schema":', ',"payload":'


@dataclass(frozen=True)
class Unwrapped:
    """Some records with the same schema.

    Attributes:
        schema: Text of the schema, or its id in a registry; None for records without one.
        texts: The records, without the schema.
        rows: Their numbers.
    """

    schema: bytes | int | None
    texts: pa.Array
    rows: NDArray[np.int64]

    def filter(self, chosen: NDArray[np.bool_]) -> Unwrapped:
        """Return some of the records."""
        if chosen.all():
            return self
        return Unwrapped(self.schema, self.texts.filter(pa.array(chosen)), self.rows[chosen])


def unwrap(texts: pa.Array, rows: NDArray[np.int64]) -> Iterator[Unwrapped]:
    """Yield records by their schemas.

    Args:
        texts: Binary values without nulls.
        rows: Their numbers.
    """
    middles = np.asarray(pc.find_substring(texts, _BETWEEN))
    is_one = np.asarray(pc.starts_with(texts, _HEAD + "{")) & (middles > 0)
    is_one &= np.asarray(pc.ends_with(texts, "}"))
    if not is_one.all():
        bare = np.flatnonzero(~is_one)
        yield Unwrapped(None, texts.take(pa.array(bare)), rows[bare])
    # All records of a table have one schema, of one length, until the table is altered.
    for middle in sort_distinct(middles[is_one]):
        same = np.flatnonzero(is_one & (middles == middle))
        chosen = texts.take(pa.array(same))
        schemas = pc.binary_slice(chosen, len(_HEAD), int(middle)).dictionary_encode()
        payloads = pc.binary_slice(chosen, int(middle) + len(_BETWEEN), -1)
        codes = schemas.indices.to_numpy()
        for code, schema in enumerate(schemas.dictionary.to_pylist()):
            own = np.flatnonzero(codes == code)
            yield Unwrapped(schema, payloads.take(pa.array(own)), rows[same[own]])


def is_wrapped(found: Mapping[str, Any]) -> bool:
    """Return True for an object that has a schema, which may be null, and a payload only."""
    is_schema = found.get("schema") is None or isinstance(found["schema"], dict)
    return is_schema and found.keys() == {"schema", "payload"}


def rewrap(found: Mapping[str, Any]) -> bytes:
    """Return a wrapped record in the text form that `unwrap` recognizes."""
    both = {"schema": found["schema"] or {}, "payload": found["payload"]}
    return json.dumps(both, separators=(",", ":")).encode()


def read_type(schema: bytes | None) -> ConnectType:
    """Return the type that a schema describes; one without fields, if there is none.

    Raises:
        SchemaError: If it is no schema of Connect.
    """
    if schema is None:
        return {}
    try:
        found: ConnectType = json.loads(schema)
        check_columns(found)
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(f"its schema cannot be read ({type(error).__name__})") from None
    return found
