import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.events_service import Events, record, serving
from examples.events_source import EventsSource
from krishiv_spark.testing import Row, SourceConformance, SourceUnderTest

NEW_YEAR = datetime(2013, 1, 1, tzinfo=timezone.utc)
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC"))])


class TestEventsSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _service(self, tmp_path: Path) -> Iterator[None]:
        self.root = tmp_path / "service"
        self.root.mkdir()
        with serving(self.root) as self.url:
            yield

    def source(self, folder: Path) -> SourceUnderTest:
        events = Events(self.root, folder.name)  # the name of the folder is unique

        def add(rows: Sequence[Row]) -> None:
            events.add([json.dumps({"id": n, "text": t, "ms": ms_of(at)}) for n, t, at in rows])

        return SourceUnderTest(
            source=EventsSource,
            options={"url": f"{self.url}/{folder.name}"},
            add=add,
            schema=SCHEMA,
            row=lambda n: (n, f"event {n}", NEW_YEAR + timedelta(minutes=n)),
            any_value=("text",),
            event_time="at",
            latest={"starting": "latest"},
            small_tasks={"rowsPerTask": "1"},
            expire=events.expire,
        )


def test_what_the_service_once_answered_is_read(tmp_path: Path) -> None:
    """Recorded from the real one, by hand or from time to time; replayed without it."""
    real, replayed = tmp_path / "real", tmp_path / "replayed"
    real.mkdir()
    replayed.mkdir()
    Events(real, "orders").add([json.dumps({"id": 7, "text": "é", "ms": 1})])
    with serving(real) as url:
        for asked in ("", "?after=0"):
            record(f"{url}/orders{asked}", replayed)
    with serving(replayed) as url:
        source = EventsSource({"url": f"{url}/orders"})
        reader = source.reader(source.schema())
        batches: Any = [*reader.read(*reader.partitions())]
    assert [row["text"] for batch in batches for row in batch.to_pylist()] == ["é"]


def ms_of(time: datetime) -> int:
    return int(time.timestamp() * 1000)
