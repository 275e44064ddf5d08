"""The offsets of the package's sources, under the kit."""

from pathlib import Path

from krishiv_spark.offsets import Start, Watermark
from krishiv_spark.parquet.listing import FoundFile
from krishiv_spark.sources.memory import MemoryOffset
from krishiv_spark.sources.parquet import ParquetOffset
from krishiv_spark.testing import OffsetConformance

GOLDEN = Path(__file__).parents[1] / "golden" / "offsets"


class TestMemoryOffset(OffsetConformance):
    golden = GOLDEN

    def offsets(self):
        pinned = MemoryOffset(next=0, origin="a")
        timed = MemoryOffset(next=7, origin="a", watermark=Watermark(ms=-5))
        return [MemoryOffset(next=0), pinned, MemoryOffset(next=7, origin="a"), timed]


class TestParquetOffset(OffsetConformance):
    golden = GOLDEN

    def offsets(self):
        file = FoundFile("day=été/a.parquet", 7, -1)
        return [
            ParquetOffset(),
            ParquetOffset(files=(file,), seen={"9": "TFANWAS7GWk="}, floor=-3),
            ParquetOffset(epochs={"b": 1, "a": 2}, watermark=Watermark(ms=1, held="why")),
        ]


class TestStart(OffsetConformance):
    def offsets(self):
        return [Start(at="earliest"), Start(at="latest"), Start(at="timestamp", ms=1)]
