"""``krishiv-sketch`` as a source, and its offsets, under the kit."""

from pathlib import Path

from krishiv_spark.formats import SketchDataSource
from krishiv_spark.sources.sketch.reader import SketchOffset
from krishiv_spark.testing import OffsetConformance, SourceConformance, SourceUnderTest


class TestSketchSource(SourceConformance):
    def source(self, folder):
        def add(rows):
            raise NotImplementedError  # to the external system, without our code

        return SourceUnderTest(source=SketchDataSource, options={"path": str(folder)}, add=add)


class TestSketchOffset(OffsetConformance):
    golden = Path(__file__).parents[1] / "golden" / "offsets"

    def offsets(self):
        return [SketchOffset(), SketchOffset(next=7)]
