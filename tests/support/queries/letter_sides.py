"""A sink with dead letters: each third row is one, and who looks at both targets."""

import pyarrow as pa
from fanout_sides import Files, Topic
from kafka_calls import REQUESTS
from parquet_files import rows as rows_of_files
from parquet_files import staged as staged_files

from krishiv_spark.formats import ParquetDataSource
from krishiv_spark.testing import FILES, SinkUnderTest, back_up_folder

SCHEMA = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("_raw", pa.binary()), ("_error", pa.string())]
)


class LettersInFiles(Files):
    """Dead letters as Parquet files."""

    def values(self):
        return [row["value"] for row in rows_of_files(self.folder)]


class LettersInTopic(Topic):
    """Dead letters as records."""

    def values(self):
        return [record.value for record in self.onlooker.committed(self.topic)]


def row_of(number):
    if number % 3 == 0:
        return None, None, b"%d" % number, "cannot be divided"
    return number, f"rów {number}", None, None


def sink_with_letters(make_letters, folder):
    """A folder of files with dead letters.

    Args:
        make_letters: What makes the side of the dead letters, of a folder.
        folder: New.
    """
    letters = make_letters(folder / "dead")
    rows = folder / "rows"

    def oracle():
        for row in rows_of_files(rows):
            yield row["id"], row["text"], None, None
        for value in letters.values():
            yield None, None, value, "cannot be divided"

    dead = {f"deadLetters.{key}": text for key, text in letters.options.items()}
    return SinkUnderTest(
        source=ParquetDataSource,
        options={"path": str(rows), **dead},
        schema=SCHEMA,
        row=row_of,
        oracle=oracle,
        backup=lambda: back_up_folder(rows),  # of one of the two targets: then they disagree
        leftovers=lambda: [*staged_files(rows), *letters.waiting()],
        most_held=2**26,
        whole_epochs=False,
        complete=False,  # refused
        batch=False,
        outside={**FILES, **REQUESTS},
    )
