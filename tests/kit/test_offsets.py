"""The offsets of the package's sources, under the kit."""

from pathlib import Path

from krishiv_spark.offsets import Start, Watermark
from krishiv_spark.sources.chain.reader import ChainOffset
from krishiv_spark.sources.delta.offset import DeltaOffset, DeltaPosition
from krishiv_spark.sources.iceberg.offset import IcebergOffset, StreamingOffset
from krishiv_spark.sources.kafka.offset import KafkaOffset
from krishiv_spark.sources.memory.reader import MemoryOffset
from krishiv_spark.sources.parquet.listing import FoundFile
from krishiv_spark.sources.parquet.offset import IdBlock
from krishiv_spark.sources.parquet.reader import ParquetOffset
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
            ParquetOffset(
                files_in="0f" * 16,
                seen_in=(IdBlock("1e" * 16, 900),),
                newest=7,
                epochs_in="2d" * 16,
                stream="s",
            ),
        ]


class TestDeltaOffset(OffsetConformance):
    golden = GOLDEN

    def offsets(self):
        inside = DeltaPosition(version=7, file=2, scan=True)
        return [
            DeltaOffset(at="current"),
            DeltaOffset(table="a", spot=inside, began=inside.model_copy(update={"file": 0})),
            DeltaOffset(table="a", spot=DeltaPosition(version=7, file=2)),
            DeltaOffset(table="a", spot=DeltaPosition(version=-1)),
        ]


class TestKafkaOffset(OffsetConformance):
    golden = GOLDEN

    def offsets(self):
        return [
            KafkaOffset(at="latest"),
            KafkaOffset(),
            KafkaOffset(topics={"é": {"0": 7, "10": 2**62}}, ids={"é": "x"}, began={"é": {"0": 1}}),
            KafkaOffset(topics={"t": {"0": 7}}, left={"é": {"0": 1}}, epochs={"t": {"0": 2**31}}),
            KafkaOffset(
                topics={"t": {"0": 7, "1": 0, "2": 3}},
                times={"t": {"0": 9, "2": -5}},
                quiet={"t": {"1": 9}},
                idle={"t": (1, 2)},
                watermark=Watermark(ms=8),
            ),
        ]


class TestIcebergOffset(OffsetConformance):
    golden = GOLDEN

    def offsets(self):
        inside = StreamingOffset(snapshot=2**62, sequence=7, file=3, scan=True)
        begun = inside.model_copy(update={"file": 0})
        done = StreamingOffset(snapshot=2**62, sequence=7)
        return [
            IcebergOffset(at="earliest"),
            IcebergOffset(table="u", spot=StreamingOffset()),
            IcebergOffset(table="u", spot=inside, began=begun),
            IcebergOffset(table="u", spot=done, watermark=Watermark(ms=-1, held="why")),
        ]


class TestChainOffset(OffsetConformance):
    golden = GOLDEN

    def offsets(self):
        inside = StreamingOffset(snapshot=2**62, sequence=7, file=3, scan=True)
        done = StreamingOffset(snapshot=2**62, sequence=7)
        seam = KafkaOffset(topics={"é": {"0": 7}}, ids={"é": "x"}, epochs={"é": {"0": 2}})
        later = seam.model_copy(update={"topics": {"é": {"0": 9}}, "watermark": Watermark(ms=8)})
        first = IcebergOffset(table="u", spot=done)
        return [
            ChainOffset(first=IcebergOffset(table="u", spot=inside), then=seam),
            ChainOffset(first=first, then=seam),
            ChainOffset(first=first, then=later, watermark=later.watermark),
        ]


class TestStart(OffsetConformance):
    def offsets(self):
        return [Start(at="earliest"), Start(at="latest"), Start(at="timestamp", ms=1)]
