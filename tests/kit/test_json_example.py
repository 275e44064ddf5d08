import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from examples.json_source import JsonSource
from krishiv_spark.testing import Row, SourceConformance, SourceUnderTest


class TestJsonSource(SourceConformance):
    def source(self, folder: Path) -> SourceUnderTest:
        def add(rows: Sequence[Row]) -> None:
            lines = [json.dumps({"id": number, "text": text}) for number, text in rows]
            (folder / "aside").write_text("\n".join(lines))
            (folder / "aside").rename(folder / f"{uuid.uuid4()}.jsonl")

        return SourceUnderTest(source=JsonSource, options={"path": str(folder)}, add=add)
