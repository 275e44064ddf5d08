"""Events as Debezium writes them, from values: the opposite of the decoder, in plain Python."""

import base64
import datetime as dt
import json
from decimal import Decimal

PLACEHOLDER = "__debezium_unavailable_value"
INT, LONG, TEXT = {"type": "int32"}, {"type": "int64"}, {"type": "string"}
"""Fields of Kafka Connect's schemas."""

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  a wall time


def write_unscaled(number: Decimal, scale: int) -> str:
    """Return the base64 of a decimal's unscaled digits, as Java's ``BigInteger.toByteArray``."""
    sign, digits, exponent = number.as_tuple()
    whole = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    unscaled = -whole if sign else whole
    size = max(1, (unscaled.bit_length() + 8) // 8)
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def write_scaled(number: Decimal) -> dict:
    """Return a ``VariableScaleDecimal``."""
    scale = max(0, -int(number.as_tuple().exponent))
    return {"scale": scale, "value": write_unscaled(number, scale)}


def micros(time: dt.datetime) -> int:
    return (time - EPOCH) // dt.timedelta(microseconds=1)


def write_event(op, before, after, lsn=1, **source) -> bytes:
    """Return an envelope with compact JSON, as ``JsonConverter`` writes it."""
    found = {
        "before": before,
        "after": after,
        "source": {"connector": "postgresql", "lsn": lsn, "snapshot": "false", **source},
        "transaction": None,
        "op": op,
        "ts_ms": 1,
    }
    return to_json(found)


def wrap(schema, payload) -> bytes:
    return to_json({"schema": schema, "payload": payload})


def to_json(value) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def write_typed(columns, row, lsn, op="c") -> bytes:
    """Return an envelope within its schema, as ``JsonConverter`` writes it with schemas.

    Args:
        columns: The Connect type of each column, by name.
        row: The row after the change; of a delete, before it.
        lsn: The position of the change.
        op: The operation.
    """
    fields = [{**kind, "field": name} for name, kind in columns.items()]
    inner = [{"type": "struct", "field": side, "fields": fields} for side in ("before", "after")]
    others = [
        {"type": "struct", "field": "source", "fields": []},
        {"type": "string", "field": "op"},
    ]
    schema = {"type": "struct", "fields": [*inner, *others], "name": "srv.public.t.Envelope"}
    rows = (None, row) if op != "d" else (row, None)
    return wrap(schema, json.loads(write_event(op, *rows, lsn)))


def make_decimal(scale, precision) -> dict:
    """Return the Connect type of a decimal."""
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    name = "org.apache.kafka.connect.data.Decimal"
    return {"type": "bytes", "name": name, "parameters": parameters}
