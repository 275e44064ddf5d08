"""A sink with dead letters: one fan-out of its rows and of the rows that have an error.

A row whose column `_error` is not null goes to the target of the dead letters, the others to the
sink. One intent decides both, so each row is in exactly one of the two targets, also after a crash.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pydantic import Field

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.conform import twins
from krishiv_spark.errors import CommitRejected, OptionError, SchemaError
from krishiv_spark.sinks.base import Epoch, OutputMode, Ownership, Task
from krishiv_spark.sinks.fanout.dead_letter_options import (
    DEAD_LETTERS,
    ROWS,
    BadRecordLimit,
    DeadLetterOptions,
)
from krishiv_spark.sinks.fanout.letter_rules import ERROR, RAW, RULE, SOURCE
from krishiv_spark.sinks.fanout.options import kind_of_route, make_routes
from krishiv_spark.sinks.fanout.participant import FanoutParticipant, RoutePlans, StagedParts
from krishiv_spark.sinks.fanout.writer import FanoutWriter
from krishiv_spark.sinks.logged_writer import Examiner, LoggedWriter, LogView

__all__ = ["DeadLetterParticipant", "DeadLetterWriter", "StagedLetters", "TooManyBadRecords"]

_COLUMNS: dict[str, tuple[str, ...]] = {
    RAW: ("BINARY", "STRING"),
    ERROR: ("STRING",),
    RULE: ("STRING",),
    SOURCE: ("STRUCT",),
}
"""The columns that only dead letters have, with the names of their types."""

_POSITION = (
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
)
_TABLE = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        *_POSITION,
        pa.field("reason", pa.string()),
        pa.field("rule", pa.string()),
    ]
)
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_RECORD = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER)),
    ]
)
_IN_HEADERS = ("reason", "rule", "topic", "partition", "offset", "timestamp")

_MOST_REASONS, _LONGEST = 50, 120
"""Maximum number of reasons that an intent counts, and of characters of one."""
_OTHERS = "(others)"
_SHOWN = 3


class TooManyBadRecords(CommitRejected):
    """An epoch has more dead letters than the option ``maxBadRecords`` allows."""


class StagedLetters(StagedParts, frozen=True):
    """The staged data of one task, or the data that an intent names.

    Attributes:
        rows: Number of all rows.
        bad: Number of dead letters by reason.
        total: The same number over all epochs: in an intent including its own epoch, in a task
            before it. It restarts if an epoch was lost at brokers and staged again.
    """

    rows: int = 0
    bad: dict[str, int] = Field(default={})
    total: dict[str, int] = Field(default={})


@dataclass(frozen=True)
class LetterPlans(RoutePlans):
    """The plans of both routes, for the tasks.

    Attributes:
        total: The dead letters of earlier epochs by reason.
    """

    total: Mapping[str, int]


def group_reason(reason: str, rule: str | None) -> str:
    """Return the name by which dead letters are counted: the rule, or the reason without numbers.

    Reasons contain positions and lengths, so that otherwise each record would have its own.
    """
    return rule or re.sub(r"\d+", "N", reason)[:_LONGEST]


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums by reason, the greatest first; reasons after the first 50 are summed."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    others = total.pop(_OTHERS, 0)
    ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
    others += sum(number for _, number in ordered[_MOST_REASONS:])
    return dict(ordered[:_MOST_REASONS]) | ({_OTHERS: others} if others else {})


def _to_letters(*, as_records: bool) -> pa.Schema:
    return _RECORD if as_records else _TABLE


class LetterColumns:
    """The columns of a frame with dead letters, and their division into both routes.

    Args:
        schema: The columns of the frame.
        as_records: True if the target of the dead letters takes records of a topic.
    """

    def __init__(self, schema: pa.Schema, *, as_records: bool) -> None:
        names = [name.lower() for name in schema.names]
        self._places = {name: place for place, name in enumerate(names) if name in _COLUMNS}
        self._rows = [n for n in range(len(schema)) if n not in self._places.values()]
        self._schema = schema
        self.letters = _to_letters(as_records=as_records)
        fields = [
            pa.field(ROWS, pa.struct([schema.field(n) for n in self._rows])),
            pa.field(DEAD_LETTERS, pa.struct(list(self.letters))),
        ]
        self.routed = pa.schema(fields)
        """The columns of the fan-out: a struct for each route."""

    def check(self) -> None:
        """Refuse a frame without the columns of dead letters.

        Raises:
            SchemaError: If `_error` or `_raw` is missing, one has another type, two columns differ
                only in case, or no column is left for the rows.
        """
        if (same := twins(self._schema.names)) is not None:
            raise SchemaError(
                f"the columns {same[0]!r} and {same[1]!r} have one name, or differ only in case, "
                "and one of them would be lost: give one of them another name"
            )
        for name in (ERROR, RAW):
            if name not in self._places:
                raise SchemaError(
                    f"'deadLetters.*' needs a column {name} {' or '.join(_COLUMNS[name])}: read "
                    "with 'badRecords' = 'divert' and name _raw and _error in 'columns', or use "
                    f"krishiv_spark.with_rules(); the columns are {', '.join(self._schema.names)}"
                )
        for name, place in self._places.items():
            kind = self._schema.field(place).type
            if not _is_kind(kind, name):
                wanted = " or ".join(_COLUMNS[name])
                raise SchemaError(f"column {name!r} is {kind}, but must be {wanted}: cast it")
        if "_raw_key" in map(str.lower, self._schema.names):
            raise SchemaError(
                "a record with a bad key has no _raw, and its value would be lost: select "
                "'coalesce(_raw, value) AS _raw', and leave out the column _raw_key"
            )
        if not self._rows:
            raise SchemaError("the rows have no column besides those of dead letters")

    def split(self, batch: pa.RecordBatch, bad: Counter[str]) -> pa.RecordBatch:
        """Return a batch with a column for each route. Executor.

        Args:
            batch: Rows of the frame.
            bad: Receives the number of dead letters by reason.
        """
        is_bad = batch.column(self._places[ERROR]).is_valid()
        fields = list(self.routed.field(ROWS).type)
        columns = [batch.column(n) for n in self._rows]
        kind = self.routed.field(DEAD_LETTERS).type
        if not is_bad.true_count:
            rows = pa.StructArray.from_arrays(columns, fields=fields)
            return pa.record_batch([rows, pa.nulls(len(batch), kind)], schema=self.routed)
        rows = pa.StructArray.from_arrays(columns, fields=fields, mask=is_bad)
        found = self._letters(batch.filter(is_bad), bad)
        flags = is_bad.to_numpy(zero_copy_only=False)
        where = np.where(flags, np.cumsum(flags) - 1, 0)
        letters = found.to_struct_array().take(pa.array(where, mask=~flags))
        return pa.record_batch([rows, letters], schema=self.routed)

    def _letters(self, batch: pa.RecordBatch, bad: Counter[str]) -> pa.RecordBatch:
        """Return the dead letters of rows that all have an error, and count their reasons."""
        columns = {"reason": batch.column(self._places[ERROR])}
        columns["value"] = batch.column(self._places[RAW])
        if (rule := self._places.get(RULE)) is not None:
            columns["rule"] = batch.column(rule)
        if (place := self._places.get(SOURCE)) is not None:
            struct = batch.column(place)
            names = (field.name.lower() for field in struct.type)
            columns |= zip(names, struct.flatten(), strict=True)
        return _make_letters(columns, bad, self.letters)


class RecordLetters:
    """Records of a topic that the sink itself examines, divided into rows and dead letters.

    Args:
        schema: The columns of the records.
        letters: The columns of dead letters.
    """

    def __init__(self, schema: pa.Schema, letters: pa.Schema) -> None:
        self._letters = letters
        self.routed = pa.schema(
            {ROWS: pa.struct(list(schema)), DEAD_LETTERS: pa.struct(list(letters))}
        )
        """The columns of the fan-out."""

    def split(
        self, batch: pa.RecordBatch, bad: Counter[str], examine: Examiner
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch, and its dead letters. Executor.

        Args:
            batch: Records.
            bad: Receives the number of dead letters by reason.
            examine: The sink's function.
        """
        found = examine(batch)
        for rows in found.rows:
            if rows.num_rows:
                yield pa.record_batch([rows.to_struct_array()], [ROWS])
        if not found.bad:
            return
        numbers = sorted(found.bad)
        records = batch.take(pa.array(numbers))
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        texts = [f"the value {found.bad[number]}" for number in numbers]
        letters = _make_letters(columns | {"reason": pa.array(texts)}, bad, self._letters)
        yield pa.record_batch([letters.to_struct_array()], [DEAD_LETTERS])


def _make_letters(
    given: Mapping[str, pa.Array], bad: Counter[str], letters: pa.Schema
) -> pa.RecordBatch:
    """Return dead letters, and count their reasons.

    Args:
        given: Columns of `_TABLE`, of which only `value` and `reason` must be there.
        bad: Receives the number of dead letters by reason.
        letters: The columns of dead letters.
    """
    count = len(given["reason"])
    columns = {
        field.name: given[field.name].cast(field.type)
        if field.name in given
        else pa.nulls(count, field.type)
        for field in _TABLE
    }
    pairs = zip(columns["reason"].to_pylist(), columns["rule"].to_pylist(), strict=True)
    bad.update(group_reason(*pair) for pair in pairs)
    if "headers" in letters.names:
        columns["headers"] = _headers(columns, count)
    return pa.record_batch([columns[name] for name in letters.names], schema=letters)


def _is_kind(kind: pa.DataType, name: str) -> bool:
    if name == SOURCE:
        known = {_TABLE.field("key").name, *(field.name for field in _POSITION)}
        return pa.types.is_struct(kind) and {field.name.lower() for field in kind} <= known
    if name == RAW and pa.types.is_binary(kind):
        return True
    return bool(pa.types.is_string(kind))


def _headers(columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Return the position and the reason of each record as headers, without those that are null."""
    texts = {name: pc.cast(columns[name], pa.string()).to_pylist() for name in _IN_HEADERS}
    rows = [
        [
            {"key": name, "value": found.encode()}
            for name in _IN_HEADERS
            if (found := texts[name][row]) is not None
        ]
        for row in range(count)
    ]
    return pa.array(rows, _RECORD.field("headers").type)


class DeadLetterParticipant(FanoutParticipant):
    """A participant of both targets, which compares the epoch's dead letters with the limit.

    Args:
        parts: The participants by route.
        limit: The limit; None for no limit.
    """

    staged_type = StagedLetters

    def __init__(
        self, parts: Mapping[str, Any], limit: BadRecordLimit | None, format_name: str
    ) -> None:
        super().__init__(parts)
        self._limit, self._format = limit, format_name

    def prepare(
        self, epoch: Epoch, staged: Sequence[StagedParts], salvaged: Sequence[StagedParts]
    ) -> Sequence[StagedParts]:
        """Committer: refuse an epoch beyond the limit, then prepare each part.

        Raises:
            TooManyBadRecords: If the epoch has more dead letters than the limit.
        """
        counted = [item for item in staged if isinstance(item, StagedLetters)]
        rows, bad = sum(item.rows for item in counted), add_counts(item.bad for item in counted)
        self._check_limit(epoch, rows, bad)
        earlier = next((item.total for item in counted if item.total), {})
        total = add_counts([earlier, bad])
        return [
            StagedLetters(parts=whole.parts, rows=rows, bad=bad, total=total)
            for whole in super().prepare(epoch, staged, salvaged)
        ]

    def _check_limit(self, epoch: Epoch, rows: int, bad: Mapping[str, int]) -> None:
        total = sum(bad.values())
        if self._limit is None or self._limit.allows(total, rows):
            return
        shown = "; ".join(f"{reason} ({count})" for reason, count in [*bad.items()][:_SHOWN])
        more = f"; {len(bad) - _SHOWN} more reasons" if len(bad) > _SHOWN else ""
        raise TooManyBadRecords(
            f"{self._format}: {total} of the {rows} rows of epoch {epoch.number} are bad records, "
            f"and 'maxBadRecords' = {self._limit.text!r} allows fewer: {shown}{more}. Nothing of "
            "the epoch was written. Correct the records or the query, or raise the limit; the "
            "query repeats this batch, and may continue with its checkpoint"
        )


class DeadLetterWriter(FanoutWriter):
    """A sink and the target of its dead letters over one epoch log."""

    options_type = DeadLetterOptions

    @cached_property
    def _as_records(self) -> bool:
        with self.options.naming(DEAD_LETTERS):
            return kind_of_route(self.options.routes[DEAD_LETTERS]).takes_records

    @cached_property
    def _letter_columns(self) -> LetterColumns | None:
        """The division by the frame's column of errors; None if it has none."""
        if ERROR not in map(str.lower, self.schema.names):
            return None
        return LetterColumns(self.schema, as_records=self._as_records)

    @cached_property
    def _record_letters(self) -> RecordLetters:
        """The division of rows without an error by the sink."""
        rows = self.schema
        if self._letter_columns is not None:
            rows = pa.schema(list(self._letter_columns.routed.field(ROWS).type))
        return RecordLetters(rows, _to_letters(as_records=self._as_records))

    @cached_property
    def _routes(self) -> dict[str, LoggedWriter[Any, Any]]:
        routed = (self._letter_columns or self._record_letters).routed
        return make_routes(self.options, routed, self.mode, streaming=self.streaming)

    def _check_frame(self) -> None:
        if not self.streaming:
            raise OptionError(
                "'deadLetters.*' are for streams: a batch write has no permanent log on which "
                "both targets could agree. Write a stream, with trigger(availableNow=True) if it "
                "is to end; or number the batch, with 'txnAppId' and 'txnVersion' and 'epochLog'"
            )
        if self.mode is not OutputMode.APPEND:
            raise OptionError(
                "'deadLetters.*' need the output mode append: each epoch of another mode would "
                "replace the dead letters of earlier epochs"
            )
        columns = self._letter_columns
        if columns is None and not self._routes[ROWS].examines_rows:
            columns = LetterColumns(self.schema, as_records=self._as_records)  # for its error
        if columns is not None:
            columns.check()

    def plan(self, ownership: Ownership[StagedParts] | None) -> LetterPlans:
        """Planner: return the plan of both routes, and the numbers of earlier epochs."""
        newest = None if ownership is None else ownership.newest
        intents = [StagedLetters.model_validate(item) for item in newest or ()]
        total = next((intent.total for intent in intents), {})
        return LetterPlans(super().plan(ownership).plans, total)

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: RoutePlans
    ) -> StagedLetters | None:
        """Executor: stage rows and dead letters, and count both."""
        rows, bad = Counter[str](), Counter[str]()
        examine = self._routes[ROWS].create_examiner(plan.plans[ROWS])

        def iter_split() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows["all"] += len(batch)
                yield from self._divide(batch, bad, examine)

        staged = super().stage(iter_split(), task, plan)
        if staged is None:
            return None
        total = dict(plan.total) if isinstance(plan, LetterPlans) else {}
        found = add_counts([bad])
        return StagedLetters(parts=staged.parts, rows=rows["all"], bad=found, total=total)

    def _divide(
        self, batch: pa.RecordBatch, bad: Counter[str], examine: Examiner | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch by route: its dead letters, then the rows that the sink reads.

        Args:
            batch: Rows of the frame.
            bad: Receives the number of dead letters by reason.
            examine: The sink's function, if it examines rows.
        """
        rows: pa.RecordBatch | None = batch
        if self._letter_columns is not None:
            routed = self._letter_columns.split(batch, bad)
            if examine is None:
                yield routed
                return
            letters, good = (routed.column(name).drop_null() for name in (DEAD_LETTERS, ROWS))
            if len(letters):
                yield pa.record_batch([letters], [DEAD_LETTERS])
            rows = pa.RecordBatch.from_struct_array(good) if len(good) else None
        if rows is not None and examine is not None:
            yield from self._record_letters.split(rows, bad, examine)

    def participant(self, view: LogView) -> DeadLetterParticipant:
        """Driver: return the participant of both targets."""
        parts = {
            name: route.participant(replace(view, route=name))
            for name, route in self._routes.items()
        }
        name = self.options.routes[ROWS]["format"]
        limit = cast("DeadLetterOptions", self.options).max_bad_records
        return DeadLetterParticipant(parts, limit, name)
