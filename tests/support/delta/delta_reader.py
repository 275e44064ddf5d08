"""A reader and a writer of Delta tables by the protocol alone, without the library.

The library has threads, which do not outlive the forks of the kit.
"""

import json
import os
import string
import struct
import uuid
from urllib.parse import quote, unquote

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


_TYPES = {"int64": "long", "string": "string", "timestamp[us, tz=UTC]": "timestamp"}


class LogWriter:
    """Appends rows to a table that it creates."""

    def __init__(self, folder, schema, partition_by=()):
        self.folder, self.schema, self.partition_by = folder, schema, partition_by
        (folder / "_delta_log").mkdir(parents=True)
        names = [field.name for field in schema]
        fields = [
            {"name": name, "type": _TYPES[str(field.type)], "nullable": True, "metadata": {}}
            for name, field in zip(names, schema, strict=True)
        ]
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(partition_by),
            "configuration": {},
        }
        self.version, self.metadata = -1, metadata
        self.commit(
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}
        )

    def commit(self, *actions):
        """Add a version."""
        self.version += 1
        log = self.folder / "_delta_log"
        (log / "new").write_text("\n".join(json.dumps(action) for action in actions))
        os.rename(log / "new", log / f"{self.version:020}.json")

    def append(self, rows):
        """Add rows as one version with one file."""
        self.commit({"add": self.write(rows)})

    def write(self, rows, name=None):
        """Write a file, and return its action."""
        name = name or f"{uuid.uuid4()}.parquet"
        values = {column: rows[column][0].as_py() for column in self.partition_by}
        pq.write_table(rows.drop_columns(list(self.partition_by)), self.folder / name)
        return {
            "path": quote(name),
            "partitionValues": values,
            "size": (self.folder / name).stat().st_size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps({"numRecords": len(rows)}),
        }


def to_vector(positions):
    """Return the deletion vector of positions below 65536, as the log has it inline."""
    array = struct.pack("<II2H", 12346, 1, 0, len(positions) - 1) + struct.pack("<I", 16)
    bitmap = array + struct.pack(f"<{len(positions)}H", *positions)
    body = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    return {
        "storageType": "i",
        "pathOrInlineDv": _to_z85(body),
        "sizeInBytes": len(body),
        "cardinality": len(positions),
    }


_Z85 = string.digits + string.ascii_letters + ".-:+=^!/*?&<>()[]{}@%$#"


def _to_z85(body):
    body += bytes(-len(body) % 4)
    words = (int.from_bytes(body[at : at + 4], "big") for at in range(0, len(body), 4))
    return "".join(_Z85[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))
