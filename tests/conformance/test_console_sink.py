"""``krishiv-console`` under the kit: the terminal is the external system."""

import re

import pytest

from krishiv_spark.formats import ConsoleDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest


class TestConsoleSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _terminal(self, capfd):
        self.capfd = capfd

    def sink(self, folder):
        del folder
        self.capfd.readouterr()
        printed = []

        def oracle():
            printed.append(self.capfd.readouterr().out)
            lines = re.findall(r"^\| *(\d+)\|(.*)\|$", "".join(printed), re.MULTILINE)
            return [(int(number), text.strip()) for number, text in lines]

        return SinkUnderTest(source=ConsoleDataSource, oracle=oracle)
