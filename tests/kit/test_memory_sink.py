"""``krishiv-memory`` as a sink, under the kit."""

from functools import partial

import pytest

import krishiv_spark
from krishiv_spark.errors import OptionError
from krishiv_spark.formats import MemoryDataSource
from krishiv_spark.memory.store import open_store
from krishiv_spark.testing import SinkConformance, SinkUnderTest, back_up_folder
from krishiv_spark.testing.processes.write_roles import in_foreach_batch


class _MemorySink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch):
        self.monkeypatch = monkeypatch


class TestMemorySink(_MemorySink):
    def sink(self, folder):
        self.monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(folder))
        return SinkUnderTest(
            source=MemoryDataSource,
            oracle=lambda: [row for query in open_store().known("queries") for row in rows(query)],
            leftovers=list,  # rows wait in messages
            batch=False,  # a batch job needs a name
        )


@pytest.mark.variant  # another key in the same store
class TestNamedMemorySink(_MemorySink):
    random_sequences = 20

    def sink(self, folder):
        self.monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(folder))
        return SinkUnderTest(
            source=MemoryDataSource,
            options={"name": "result"},
            oracle=lambda: rows("result"),
            backup=partial(back_up_folder, folder),
            leftovers=list,
            several_queries=False,  # a name stands for one of them
        )


@pytest.mark.variant  # the same epochs, as batch jobs with numbers
class TestMemorySinkInForeachBatch(_MemorySink):
    random_sequences = 20

    def sink(self, folder):
        self.monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(folder))
        return SinkUnderTest(
            source=in_foreach_batch(MemoryDataSource),
            options={"name": "result"},
            oracle=lambda: rows("result"),
            backup=partial(back_up_folder, folder),
            leftovers=list,
            several_queries=False,
        )


def rows(key):
    try:
        return [row for batch in krishiv_spark.memory_batches(key) for row in batch.to_pylist()]
    except OptionError:  # nothing was published yet
        return []
