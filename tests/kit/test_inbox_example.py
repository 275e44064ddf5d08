import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.inbox_sink import InboxDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest


class TestInboxSink(SinkConformance):
    def sink(self, folder: Path) -> SinkUnderTest:
        inbox, beside = folder / "inbox", folder / "inbox.krishiv"
        inbox.mkdir()

        def rows() -> Iterator[dict[str, Any]]:
            for file in inbox.iterdir():
                yield from map(json.loads, file.read_text().splitlines())

        return SinkUnderTest(
            source=InboxDataSource,
            options={"path": str(inbox)},
            oracle=rows,
            leftovers=lambda: [str(file) for file in beside.glob("*/*/*.jsonl")],
            whole_epochs=False,
            complete=False,
            batch=False,
        )
