"""``krishiv-console`` under the kit: the terminal is the external system."""

import re

import pytest

from krishiv_spark.formats import ConsoleDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest


@pytest.mark.core_cases
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
            return list(rows("".join(printed)))

        # People read it: blanks at the ends of a text, and what is long, are not to be seen.
        return SinkUnderTest(
            source=ConsoleDataSource,
            options={"numRows": "1000"},  # all that the kit writes
            oracle=oracle,
            any_value=(),
        )


def rows(text):
    names = []
    for line in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
        cells = [cell.strip() for cell in line.split("|")]
        if sorted(cells) == ["id", "text"]:
            names = cells
        else:
            row = dict(zip(names, cells, strict=True))
            yield int(row["id"]), row["text"]
