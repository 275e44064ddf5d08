from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.events_service import Events, serving
from examples.webhook_sink import WebhookDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest


class TestWebhookSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _service(self, tmp_path: Path) -> Iterator[None]:
        self.root = tmp_path / "service"
        self.root.mkdir()
        with serving(self.root) as self.url:
            yield

    def sink(self, folder: Path) -> SinkUnderTest:
        return SinkUnderTest(
            source=WebhookDataSource,
            options={"url": f"{self.url}/{folder.name}"},
            oracle=Events(self.root, folder.name).all,
            complete=False,
            overwrite=False,
        )
