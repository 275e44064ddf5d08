"""``krishiv-memory`` as a source, under the kit."""

import pyarrow as pa
import pytest

from krishiv_spark.formats import MemoryDataSource
from krishiv_spark.sources.memory.handle import memory_source
from krishiv_spark.testing import ROW_SCHEMA, SourceConformance, SourceUnderTest


class TestMemorySource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch):
        self.monkeypatch = monkeypatch

    def source(self, folder):
        self.monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(folder))
        return SourceUnderTest(
            source=MemoryDataSource,
            options={"path": "pushes"},
            add=push,
            latest={"startingOffsets": "latest"},
        )


def push(rows):
    columns = zip(*rows, strict=True)
    memory_source("pushes").add(pa.table(list(map(list, columns)), schema=ROW_SCHEMA))
