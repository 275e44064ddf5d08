"""The content of a table's folder on a disk, for an independent reader."""

import pyarrow.parquet as pq


def staged(folder):
    found = (file for file in folder.glob("_krishiv/*/staged/**/*") if file.is_file())
    return [file for file in found if not file.parent.name.endswith(".done")]


def rows(folder):
    for file in folder.glob("**/*.parquet"):
        in_path = dict(part.split("=") for part in file.parts if "=" in part)
        for row in pq.ParquetFile(file).read().to_pylist():
            yield {**row, **in_path}
