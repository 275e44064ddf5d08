"""The schemas that Kafka Connect's ``JsonConverter`` writes into each record. Executor.

With ``schemas.enable``, each key and each value is ``{"schema": ..., "payload": ...}``. The schema
tells the scale of a decimal and the unit of a time, which the value alone does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.changes.options import TimestampUnit, ValueRules

__all__ = [
    "Unwrapped",
    "apply_schema",
    "find_contradiction",
    "is_wrapped",
    "rewrap",
    "unwrap",
]

_HEAD, _BETWEEN = '{"schema":', ',"payload":'

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_UNITS: dict[str, TimestampUnit] = {
    "org.apache.kafka.connect.data.Time": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.Time": "ms",
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTime": "ns",
    "io.debezium.time.NanoTimestamp": "ns",
}


@dataclass(frozen=True)
class Unwrapped:
    """Some records with the same schema.

    Attributes:
        schema: Text of the schema; None for records without one.
        texts: The records, without the schema.
        rows: Their numbers.
    """

    schema: bytes | None
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
    for middle in np.unique(middles[is_one]):
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


def apply_schema(schema: bytes | None, rules: ValueRules) -> ValueRules:
    """Return rules with the scales and the units of a schema; others remain."""
    if schema is None:
        return rules
    scales: dict[str, int] = {}
    units: dict[str, TimestampUnit] = {}
    read = json.loads(schema)
    if not read.get("fields"):
        return rules
    for name, each in _list_columns(read):
        logical = each.get("name")
        if logical == _DECIMAL:
            scales[name] = int(each.get("parameters", {}).get("scale", 0))
        elif logical in _UNITS:
            units[name] = _UNITS[logical]
        elif each.get("type") == "string":
            scales.pop(name, None)
    # A schema says of each text whether it is a number in base64.
    return replace(rules, decimals="string", scales=scales, units={**rules.units, **units})


def find_contradiction(schema: bytes | None, columns: pa.Schema) -> str | None:
    """Return why the schema of a record does not fit the columns of the table, or None.

    A number of days, say, is no time, although both are numbers.
    """
    if schema is None:
        return None
    for name, each in _list_columns(json.loads(schema)):
        logical = each.get("name")
        tests = next((tests for word, tests in _FITTING if str(logical).endswith(word)), None)
        if tests is None or name not in columns.names:
            continue
        kind = columns.field(name).type
        kind = kind.value_type if pa.types.is_list(kind) else kind
        if not any(test(kind) for test in tests):
            return f"is {logical} in its schema in column {name!r}, which is {kind} in the table"
    return None


_Tests: TypeAlias = "tuple[Callable[[pa.DataType], bool], ...]"
_NUMBER_OR_TEXT: _Tests = (pa.types.is_integer, pa.types.is_string)
_FITTING: tuple[tuple[str, _Tests], ...] = (
    (".Date", (pa.types.is_date, *_NUMBER_OR_TEXT)),
    ("Timestamp", (pa.types.is_timestamp, *_NUMBER_OR_TEXT)),
    ("Time", (pa.types.is_time, *_NUMBER_OR_TEXT)),
    (".Year", _NUMBER_OR_TEXT),
    ("Duration", _NUMBER_OR_TEXT),
    (".Decimal", (pa.types.is_decimal, pa.types.is_string)),
)
"""Types of a column by the last part of the name of a type of Connect or Debezium."""


def _list_columns(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the columns of a row: of an envelope those after the change."""
    fields = {each.get("field"): each for each in schema.get("fields") or ()}
    inner = fields.get("after") or fields.get("before")
    if inner is not None and inner.get("type") == "struct":
        fields = {each.get("field"): each for each in inner.get("fields") or ()}
    for name, each in fields.items():
        kind = each.get("items") if each.get("type") == "array" else each
        if isinstance(name, str) and isinstance(kind, Mapping):
            yield name, kind
