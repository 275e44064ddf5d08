"""Rows by their numbers: which of those that were written a reader sees, and which are strange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.values import canonical

__all__ = ["Row", "Rows", "columns", "long_row", "numbers_of", "ranges", "refuse_strange"]

Row: TypeAlias = tuple[Any, ...]
_LONG_TEXT = "." * 2000

Rows: TypeAlias = Iterable[Row] | Iterable[Mapping[str, Any]] | pa.Table


def columns(schema: pa.Schema, rows: Sequence[Row]) -> list[pa.Array]:
    """Rows as the arrays of their columns."""
    by_column = zip(*rows, strict=True)
    return [pa.array(column, kind) for column, kind in zip(by_column, schema.types, strict=True)]


def long_row(row: Row, places: Collection[int]) -> Row:
    """A row whose first text, or binary, among these columns is long."""
    place = next(p for p in places if isinstance(row[p], str | bytes))
    value = row[place]
    longer = value + _LONG_TEXT if isinstance(value, str) else value + _LONG_TEXT.encode()
    return (*row[:place], longer, *row[place + 1 :])


def numbers_of(
    rows: Rows,
    schema: pa.Schema,
    row: Callable[[int], Row],
    written: int,
) -> Counter[int | Row]:
    """Count rows by their number; rows that belong to no number below `written` as themselves.

    If numbers share a row, the first of them are taken to be there.
    """
    comparable = canonical(schema)
    known: dict[Row, list[int]] = {}
    for number in range(written):
        known.setdefault(comparable(row(number)), []).append(number)
    found: Counter[int | Row] = Counter()
    for values, times in Counter(map(comparable, _values(rows, schema))).items():
        numbers: list[Any] = known.get(values, [values])
        more = max(times - len(numbers), 0)
        found.update([*numbers[:times], *numbers[-1:] * more])
    return found


def _values(rows: Rows, schema: pa.Schema) -> Iterator[Row]:
    given: Any = rows
    for item in given.to_pylist() if isinstance(given, pa.Table) else given:
        yield tuple(item[n] for n in schema.names) if isinstance(item, Mapping) else tuple(item)


def refuse_strange(
    found: Collection[int | Row],
    schema: pa.Schema,
    row: Callable[[int], Row],
    written: int,
    where: str = "",
) -> None:
    """Look for rows that belong to no number, and for the rows that they may have been.

    Args:
        found: Numbers, and rows that have none, as `numbers_of` gives them.
        schema: Of the rows.
        row: The row of a number.
        written: Rows with numbers below this were handed out.
        where: Begins the message.

    Raises:
        Violation: If there is one.
    """
    strange = [key for key in found if not isinstance(key, int)]
    if not strange:
        return
    missing = [number for number in range(written) if number not in found]
    known = {number: canonical(schema)(row(number)) for number in missing}
    changes = [text for other in strange if (text := _changed(other, known, schema.names))]
    if changes:
        raise Violation(Rule.VALUES_KEPT, where + "\n".join(changes))
    raise Violation(Rule.NOTHING_INVENTED, f"{where}rows that are there: {ranges(strange)}")


def _changed(strange: Row, known: Mapping[int, Row], names: Sequence[str]) -> str | None:
    """How a row differs from the most alike of some others; None if it is like none of them."""

    def likeness(number: int) -> int:
        pairs = zip(strange, known[number], strict=True)
        return sum(value is not None and value == other for value, other in pairs)

    if not known or len(strange) != len(names):
        return None
    number = max(known, key=likeness)
    if not likeness(number):
        return None
    pairs = zip(names, known[number], strange, strict=True)
    parts = (f"{name} was {old!r}, is {new!r}" for name, old, new in pairs if old != new)
    return f"row {number}: {'; '.join(parts)}"


def ranges(rows: Iterable[int | Row]) -> str:
    """Numbers as ``0-3, 7``; rows that have none as they are."""
    numbers = sorted(row for row in rows if isinstance(row, int))
    texts: list[str] = [repr(row) for row in rows if not isinstance(row, int)]
    for number in reversed(numbers):
        if texts and texts[0].split("-")[0] == str(number + 1):
            texts[0] = f"{number}-{texts[0].split('-')[-1]}"
        else:
            texts.insert(0, str(number))
    return ", ".join(texts)
