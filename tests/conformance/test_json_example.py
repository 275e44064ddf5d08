import json
import uuid

from examples.json_source import JsonSource
from krishiv_spark.testing import SourceConformance, SourceUnderTest


class TestJsonSource(SourceConformance):
    def source(self, folder):
        def add(rows):
            lines = [json.dumps({"id": number, "text": text}) for number, text in rows]
            (folder / "aside").write_text("\n".join(lines))
            (folder / "aside").rename(folder / f"{uuid.uuid4()}.jsonl")

        return SourceUnderTest(source=JsonSource, options={"path": str(folder)}, add=add)
