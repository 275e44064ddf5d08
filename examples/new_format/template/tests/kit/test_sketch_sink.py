"""``krishiv-sketch`` as a sink, under the kit."""

from krishiv_spark.formats import SketchDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest


class TestSketchSink(SinkConformance):
    def sink(self, folder):
        def rows():
            raise NotImplementedError  # what the external system shows, without our code

        return SinkUnderTest(source=SketchDataSource, options={"path": str(folder)}, oracle=rows)
