"""A source that reads the events of a service over HTTP, each once, by number and page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
from pydantic import Field

from krishiv_spark import datasource, errors, options
from krishiv_spark.offsets import Offset, Start, advance
from krishiv_spark.sources import Limit, SourceOptions, StreamReader

_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("ms", pa.int64())])
_ROWS = pa.schema([*list(_SCHEMA)[:2], ("at", pa.timestamp("us", "UTC"))])
_UNITS = "the service counts events: use 'maxRowsPerTrigger'"


class _Options(SourceOptions):
    url: str = Field(description="URL of the events, such as `https://host/orders`.")
    token: options.SecretStr | None = Field(default=None, description="Sent as bearer token.")
    starting: Literal["earliest", "latest"] = Field(
        default="earliest", description="Start of a new query."
    )
    timeout: options.Duration = Field(default=10_000, description="Time-out of each request.")
    rows_per_task: int = Field(default=100_000, gt=0, description="Most events of a task.")

    unsupported: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("max_files_per_trigger", "max_bytes_per_trigger"), _UNITS
    )

    def ask(self, query: str) -> Any:  # driver and executor
        headers = {"Authorization": f"Bearer {self.token.get_secret_value()}"} if self.token else {}
        request = Request(f"{self.url}{query}", headers=headers)
        with urlopen(request, timeout=self.timeout / 1000) as answer:
            return json.load(answer)


class _Offset(Offset):
    """The number of the next event, the exclusive end of a batch."""

    kind: ClassVar[str] = "events"
    next: int = 0


class _Reader(StreamReader[_Offset, tuple[int, int]]):
    options_type, offset_type = _Options, _Offset
    options: _Options
    frozen: int | None = None

    def infer_schema(self) -> pa.Schema:
        return _ROWS

    def initial(self) -> _Offset | Start:  # called again after a crash: it does not ask the service
        return Start(at="latest") if self.options.starting == "latest" else _Offset()

    def resolve(self, start: Start) -> _Offset:  # once in the life of a query
        return _Offset(next=self.options.ask("")["next"])

    def latest(self, start: _Offset, limit: Limit) -> _Offset:
        newest = self.options.ask("")["next"] if self.frozen is None else self.frozen
        end = newest if limit.rows is None else min(newest, start.next + limit.rows)
        if end <= start.next:  # nothing new, or a replica that lags
            return start
        if self.options.event_time is None:
            return _Offset(next=end)
        ms = self.options.ask(f"?before={end}")["newest_ms"]
        delay, ahead = self.options.watermark_delay, self.options.max_event_time_ahead
        mark = advance(start.watermark, ms, delay, max_ahead_ms=ahead)
        return _Offset(next=end, watermark=mark)

    def plan(self, start: _Offset, end: _Offset) -> Sequence[tuple[int, int]]:
        step = self.options.rows_per_task
        return [(n, min(n + step, end.next)) for n in range(start.next, end.next, step)]

    def read(self, partition: tuple[int, int]) -> Iterator[pa.RecordBatch]:  # executor
        first, end = partition
        while first < end:
            page = self._page(first)[: end - first]  # newer events are for the next batch
            if not page:
                raise errors.DataLossError(f"events {first} to {end - 1} are not there")
            rows = pa.RecordBatch.from_pylist(page, schema=_SCHEMA)
            at = rows.column("ms").cast(pa.timestamp("ms", "UTC")).cast(_ROWS.field("at").type)
            yield pa.RecordBatch.from_arrays([*rows.columns[:2], at], schema=_ROWS)
            first += len(page)

    def _page(self, first: int) -> list[dict[str, Any]]:
        try:
            page: list[dict[str, Any]] = self.options.ask(f"?after={first}")["events"]
        except HTTPError as error:
            if error.code == 410:  # noqa: PLR2004  "gone"
                raise errors.DataLossError(f"event {first} was thrown away") from error
            raise
        return page

    def freeze(self) -> None:
        self.frozen = self.options.ask("")["next"]

    def backlog(self) -> Mapping[str, Any]:
        return {"next": self.options.ask("")["next"]}


class EventsSource(datasource.KrishivDataSource):
    """Condition: numbers have no gaps, and no event appears below one that was read."""

    format_name, reader_type = "events", _Reader
