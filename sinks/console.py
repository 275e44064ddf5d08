"""``krishiv-console``: prints each epoch on the driver, as ``DataFrame.show`` would.

At least once: an epoch that is replayed after a crash is printed again. Tasks format the first rows
and count the rest, so that little is sent to the driver even for large epochs. Timestamps are
printed in UTC.
"""

from __future__ import annotations

import math
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from struct import pack
from typing import Annotated

import pyarrow as pa
from pydantic import BeforeValidator, Field

from krishiv_spark.messages.terminal import show_text
from krishiv_spark.runtime.epoch_times import format_time
from krishiv_spark.sinks.base import AtLeastOnceWriter, Epoch, Task
from krishiv_spark.sinks.options import CheckpointOptions
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.spark.offset_log import OffsetSeq

__all__ = ["ConsoleOptions", "ConsoleWriter", "Head", "cell_text", "drawn"]

Row = tuple[str, ...]

_RULE = "-" * 43
# ``Dataset.showString``: minimumColWidth.
_LEAST_WIDTH = 3
_DEFAULT_TRUNCATE = 20
_PLAIN_DOUBLES = (1e-3, 1e7)  # java.lang.Double.toString writes the others with an exponent


def _truncate(value: object) -> object:
    """Return the width of ``truncate``: ``true`` is 20, ``false`` unlimited, as in ``show``."""
    words = {"true": _DEFAULT_TRUNCATE, "false": 0}
    return words.get(str(value).strip().lower(), value)


class ConsoleOptions(CheckpointOptions):
    """Options of the sink; ``numRows``, ``truncate`` and ``vertical`` are Spark's."""

    num_rows: int = Field(
        default=20, ge=0, description="Maximum number of rows to print per epoch."
    )
    truncate: Annotated[int, BeforeValidator(_truncate)] = Field(
        default=_DEFAULT_TRUNCATE,
        ge=0,
        description="Maximum length of a cell in characters; `true` means 20, and `false` or 0 "
        "prints cells in full.",
    )
    vertical: bool = Field(default=False, description="Print one line per column.")
    checkpoint_location: str | None = Field(
        default=None, description="Spark's own option. If it is set, the watermark is printed."
    )


@dataclass(frozen=True)
class Head:
    """The message of a task to the driver.

    Attributes:
        rows: The texts of its first rows, cut to the printed length.
        count: The number of all its rows.
    """

    rows: tuple[Row, ...]
    count: int


class ConsoleWriter(AtLeastOnceWriter[Head]):
    """Sink on the standard output of Spark's driver-side worker, which is the driver's terminal."""

    options_type = ConsoleOptions
    options: ConsoleOptions

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> Head:
        """Format rows of a task. Executor; never None, so that an empty epoch is printed too."""
        del task, plan
        rows: list[Row] = []
        count = 0
        for batch in batches:
            count += batch.num_rows
            rows += _texts(batch.slice(0, self.options.num_rows - len(rows)), self.options.truncate)
        return Head(tuple(rows), count)

    def publish(self, epoch: Epoch, staged: Sequence[Head]) -> None:
        """Print the epoch in one write, so that the output of two queries is not mixed. Driver."""
        title = f"{_RULE}\nBatch: {epoch.number}\n{_RULE}\n" if self.streaming else ""
        shown = drawn(self.schema.names, staged, self.options)
        sys.stdout.write(f"{title}{shown}{self._summary(epoch, staged)}\n\n")
        sys.stdout.flush()

    def _summary(self, epoch: Epoch, staged: Sequence[Head]) -> str:
        parts = [_format_count(sum(head.count for head in staged))]
        checkpoint = SparkCheckpoint.of(self.options) if self.streaming else None
        if checkpoint is not None:
            planned = checkpoint.offset_seq(epoch.number)
            parts += [] if planned is None else _watermarks(planned)
        return "; ".join(parts)


def _format_count(rows: int) -> str:
    return f"{rows} row" if rows == 1 else f"{rows} rows"


def _watermarks(planned: OffsetSeq) -> list[str]:
    """Return Spark's watermark, and those inside the offsets of sources."""
    spark = [] if planned.watermark_ms is None else [f"watermark {_iso(planned.watermark_ms)}"]
    sources = (f"watermark of the source {_iso(ms)}" for ms in planned.source_watermarks_ms)
    return [*spark, *sources]


def _iso(ms: int) -> str:
    return format_time(ms).replace("+00:00", "Z")


def drawn(names: Sequence[str], staged: Sequence[Head], options: ConsoleOptions) -> str:
    """Return the rows as ``Dataset.showString`` draws them; ends with a line break."""
    rows = list(islice((row for head in staged for row in head.rows), options.num_rows))
    header = tuple(map(show_text, names))
    body = _records(header, rows) if options.vertical else _table(header, rows, options.truncate)
    more = sum(head.count for head in staged) > len(rows)
    noun = "row" if options.num_rows == 1 else "rows"
    return f"{body}only showing top {options.num_rows} {noun}\n" if more else body


def _table(header: Row, rows: Sequence[Row], truncate: int) -> str:
    widths = [max(_LEAST_WIDTH, *map(_width, column)) for column in zip(header, *rows, strict=True)]
    rule = "+" + "+".join("-" * width for width in widths) + "+"
    # As in `showString`, numbers are aligned if cells are cut, and texts if they are not.
    align = _right if truncate > 0 else _left
    lines = ["|" + "|".join(map(align, row, widths)) + "|" for row in (header, *rows)]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule]) + "\n"


def _records(header: Row, rows: Sequence[Row]) -> str:
    if not rows:
        return "(0 rows)\n"
    names = max([_LEAST_WIDTH, *map(_width, header)])
    cells = max([_LEAST_WIDTH, *(_width(cell) for row in rows for cell in row)])
    lines = []
    for number, row in enumerate(rows):
        lines.append(f"-RECORD {number}".ljust(names + cells + 5, "-"))
        pairs = zip(header, row, strict=True)
        lines += [f" {_left(name, names)} | {_left(cell, cells)} " for name, cell in pairs]
    return "\n".join(lines) + "\n"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _right(text: str, width: int) -> str:
    return " " * (width - _width(text)) + text


def _left(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _texts(batch: pa.RecordBatch, truncate: int) -> list[Row]:
    if not batch.num_columns:
        return [()] * batch.num_rows
    columns = [[_cut(cell_text(cell), truncate) for cell in column] for column in batch.columns]
    return list(zip(*columns, strict=True))


def _cut(text: str, truncate: int) -> str:
    # Escaping makes no text shorter, so nothing after these characters is shown.
    shown = show_text(text[: truncate + 1] if truncate > 0 else text)
    if not 0 < truncate < len(shown):
        return shown
    # `showString`: less than four characters have no room for dots.
    dots = "..." if truncate > len("...") else ""
    return shown[: truncate - len(dots)] + dots


def cell_text(cell: pa.Scalar) -> str:
    """Return the text of a value as in Spark's ``ToPrettyString``, with timestamps in UTC."""
    if not cell.is_valid:
        return "NULL"
    for matches, text in _FORMATS:
        if matches(cell.type):
            return text(cell)
    return str(cell.as_py())


def _binary(cell: pa.Scalar) -> str:
    return "[" + " ".join(f"{byte:02X}" for byte in cell.as_py()) + "]"


def _boolean(cell: pa.Scalar) -> str:
    return "true" if cell.as_py() else "false"


def _timestamp(cell: pa.Scalar) -> str:
    # through Arrow's text: Spark's years exceed the range of datetime
    text = str(cell.cast(pa.timestamp("us")).cast(pa.string()).as_py())
    return text.rstrip("0").removesuffix(".") if "." in text else text


def _date(cell: pa.Scalar) -> str:
    return str(cell.cast(pa.string()).as_py())


def _decimal(cell: pa.Scalar) -> str:
    return f"{cell.as_py():f}"


def _floating(cell: pa.Scalar) -> str:
    value: float = cell.as_py()
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if pa.types.is_float32(cell.type):
        value = _shortest_float(value)
    low, high = _PLAIN_DOUBLES
    return repr(value) if value == 0 or low <= abs(value) < high else _scientific(value)


def _shortest_float(value: float) -> float:
    """Return the value with the fewest digits that identify a 32-bit number; 9 always do."""
    shorter = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next(short for short in shorter if pack("f", short) == pack("f", value))


def _scientific(value: float) -> str:
    """Return the number in Java's form: ``1.0E10``."""
    digits = Decimal(repr(value)).normalize()
    mantissa = digits.scaleb(-digits.adjusted())
    whole = mantissa == mantissa.to_integral_value()
    return f"{mantissa:.1f}E{digits.adjusted()}" if whole else f"{mantissa:f}E{digits.adjusted()}"


def _struct(cell: pa.Scalar) -> str:
    return "{" + ", ".join(cell_text(item) for item in cell.values()) + "}"


def _list(cell: pa.Scalar) -> str:
    return "[" + ", ".join(cell_text(item) for item in cell.values) + "]"


def _map(cell: pa.Scalar) -> str:
    pairs = (entry.values() for entry in cell.values)
    return "{" + ", ".join(f"{cell_text(key)} -> {cell_text(item)}" for key, item in pairs) + "}"


_FORMATS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Scalar], str]], ...] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_binary, _binary),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, _date),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_floating, _floating),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
)
