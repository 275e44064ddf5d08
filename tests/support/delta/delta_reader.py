"""A reader of Delta tables by the protocol alone, without the library."""

import json
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq


class LogReader:
    """The rows of a table by its log, read as the protocol describes it, without the library."""

    def __init__(self, folder):
        self.folder = folder

    def named(self):
        """The live files, with the texts of their partition columns."""
        files = {}
        for commit in sorted((self.folder / "_delta_log").glob("*.json")):
            assert len(commit.stem) == 20, commit
            for line in commit.read_text().splitlines():
                ((kind, body),) = json.loads(line).items()
                if kind == "remove":
                    del files[unquote(body["path"])]
                elif kind == "add":
                    path = unquote(body["path"])
                    assert path not in files, f"{path} was added twice"
                    files[path] = body["partitionValues"]
        return files

    def rows(self):
        found = []
        for path, values in self.named().items():
            rows = pq.read_table(self.folder / path, partitioning=None)
            for name, text in values.items():
                rows = rows.append_column(name, pa.array([text] * len(rows), pa.string()))
            found.append(rows)
        return pa.concat_tables(found, promote_options="permissive") if found else []

    def leftovers(self):
        named = self.named()
        files = (str(file.relative_to(self.folder)) for file in self.folder.rglob("*.parquet"))
        return [file for file in files if file not in named and "_delta_log" not in file]
