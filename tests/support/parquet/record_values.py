"""Record what Spark's own Parquet reader makes of the cases in `*_cases.py`.

    ./run python tests/support/parquet/record_values.py [PART ...]

takes a quarter of an hour, most of it for the conversions. A PART is conversions, partitions,
calendars or names; without one, all are recorded. The records in tests/golden/values/ are data, so
that the tests need no JVM. They change only if Spark's reader does.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import calendar_cases
import pyarrow as pa
import pyarrow.parquet as pq
from name_cases import NAMES
from partition_cases import PARTITIONS, ZONES
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from value_cases import NESTINGS, STORED, WANTED, Stored, nested_ddl, write

from krishiv_spark.arrow.schemas import spark_schema
from krishiv_spark.parquet.partition_folders import split_by_partition

GOLDEN = Path(__file__).parents[2] / "golden" / "values"

_VALUE = {
    "column": "c",
    "struct": "c.f",
    "array": "c[0]",
    "map": "c['k']",
    "array of struct": "c[0].f",
}
_FORMS = {
    "date": "unix_date({0})",
    "timestamp": "unix_micros({0})",
    "timestamp_ntz": "unix_micros(cast(cast({0} as string) || 'Z' as timestamp))",
    "time(6)": "time_diff('microsecond', time'00:00:00', {0})",
    "string": "lower(hex(cast({0} as binary)))",
    "binary": "lower(hex({0}))",
    "float": "cast({0} as double)",
}

Texts = list[str | None]


def main(names: list[str]) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.timeType.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as folder:
        for name in names or RECORDS:
            found = RECORDS[name](spark, Path(folder))
            (GOLDEN / f"{name}.json").write_text(_json(found) + "\n")
    spark.stop()


def _json(found: Any) -> str:
    """Objects over lines, lists in one."""
    text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
    return re.sub(r"\[[^][{}]*\]", lambda part: re.sub(r"\s*\n\s*", " ", part[0]), text)


def read_conversions(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """For each stored column and wanted type the texts that Spark reads; nothing if it refuses.

    Where a nesting is not read as the column is, it has an entry of its own.
    """
    found: dict[str, Any] = {}
    for stored in STORED:
        for wanted in WANTED:
            for nesting, texts in _nested(spark, folder, stored, wanted):
                key = stored.name if nesting == "column" else f"{stored.name} in {nesting}"
                found.setdefault(key, {})[wanted] = texts
    return found


def _nested(
    spark: SparkSession, folder: Path, stored: Stored, wanted: str
) -> Iterator[tuple[str, Texts | None]]:
    plain = None
    for nesting in NESTINGS:
        path = folder / f"{STORED.index(stored)} {nesting}.parquet"
        if not path.exists():
            write(stored, nesting, path)
        texts = _read(spark, path, nested_ddl(wanted, nesting), _form(wanted, _VALUE[nesting]))
        if nesting == "column":
            plain = texts
        if texts != plain or (nesting == "column" and texts is not None):
            yield nesting, texts


def partitions(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the values that Spark reads from partition folders with either naming."""
    ours = {
        wanted: {
            name: _read_partition(spark, folder / f"{wanted} {number}", name, wanted)
            for number, (name, _) in enumerate(
                split_by_partition(pa.table({"p": p, "x": p}), ["p"])
            )
        }
        for wanted, p in PARTITIONS.items()
    }
    return {"read": ours, "written": {zone: _written(spark, folder, zone) for zone in ZONES}}


def _read_partition(spark: SparkSession, folder: Path, name: str, wanted: str) -> Any:
    """The value, which has to be one in every session, or else that of each."""
    (folder / name).mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), folder / name / "a.parquet")
    found = {}
    for zone in ZONES:
        spark.conf.set("spark.sql.session.timeZone", zone)
        rows = spark.read.schema(f"x bigint, p {wanted}").parquet(str(folder))
        found[zone] = rows.selectExpr(f"cast({_form(wanted, 'p')} as string)").collect()[0][0]
    return found["UTC"] if len(set(found.values())) == 1 else found


def _written(spark: SparkSession, folder: Path, zone: str) -> dict[str, int]:
    """Names of folders that Spark makes in a session, and the instants that they stand for."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    found = {}
    for micros in PARTITIONS["timestamp"].cast(pa.int64()).drop_null().to_pylist():
        target = folder / f"{zone.replace('/', ' ')} {micros}"
        rows = spark.sql(f"select 1 x, timestamp_micros({micros}) p")
        rows.write.partitionBy("p").parquet(str(target))
        found[next(target.glob("p=*")).name] = micros
    return found


def calendars(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the days or seconds by which Spark moves each number; 0 if it moves none."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found: dict[str, Any] = {}
    for zone, version in calendar_cases.FILES:
        for name, (values, unit, wanted) in calendar_cases.COLUMNS.items():
            path = folder / "calendar.parquet"
            calendar_cases.write(name, version, zone, path)
            texts = _read(spark, path, wanted, _form(wanted, "c")) or []
            pairs = zip(texts, calendar_cases.numbers(values), strict=True)
            moved = [(int(text or 0) - old) / unit for text, old in pairs]
            seconds = [int(by) if by.is_integer() else by for by in moved]
            found.setdefault(f"{version}, {zone}", {})[name] = seconds if any(seconds) else 0
    return found


def names(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Rows as JSON, by whether the session tells names apart by case; None if it refuses."""
    found: dict[str, Any] = {}
    for name, (column, kind) in NAMES.items():
        wanted = spark_schema(pa.schema([("c", kind)]))["c"].dataType.simpleString()
        path = folder / "names.parquet"
        pq.write_table(pa.table({"c": column}), path)
        for told in ("true", "false"):
            spark.conf.set("spark.sql.caseSensitive", told)
            form = "to_json(struct(c), map('ignoreNullFields', 'false'))"
            found.setdefault(name, {})[told] = _read(spark, path, wanted, form)
    spark.conf.set("spark.sql.caseSensitive", "false")
    return found


def _form(wanted: str, value: str) -> str:
    return _FORMS.get(wanted, "{0}").format(value)


def _read(spark: SparkSession, path: Path, wanted: str, form: str) -> Texts | None:
    try:
        rows = spark.read.schema(f"c {wanted}").parquet(str(path))
        return [row[0] for row in rows.selectExpr(f"cast({form} as string)").collect()]
    except (PySparkException, Py4JJavaError) as error:
        if not any(reason in str(error).upper() for reason in ("PARQUET", "ALREADY_EXISTS")):
            raise
        return None


RECORDS: dict[str, Callable[[SparkSession, Path], dict[str, Any]]] = {
    "conversions": read_conversions,
    "partitions": partitions,
    "calendars": calendars,
    "names": names,
}


if __name__ == "__main__":
    main(sys.argv[1:])
