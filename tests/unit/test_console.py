"""The console sink without Spark: how rows are drawn, and what a task sends."""

import json
import pickle
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.sinks.base import Epoch, Guarantee, OutputMode, Task
from krishiv_spark.sinks.console import ConsoleOptions, ConsoleWriter, cell_text

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def writer(*, streaming: bool = True, schema: pa.Schema = SCHEMA, **options: str) -> ConsoleWriter:
    parsed = ConsoleOptions.parse(options, "krishiv-console")
    return ConsoleWriter(parsed, schema, OutputMode.APPEND, streaming=streaming)


def people(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"id": number, "name": name} for number, name in rows], schema=SCHEMA
    )


def printed(
    capsys: pytest.CaptureFixture[str], sink: ConsoleWriter, *tasks: list[pa.RecordBatch]
) -> list[str]:
    staged = [
        sink.stage(iter(batches), Task("q", 7, n, n), None) for n, batches in enumerate(tasks)
    ]
    sink.publish(Epoch("q", 7), pickle.loads(pickle.dumps(staged)))
    return capsys.readouterr().out.split("\n")


def test_an_epoch_is_printed_as_spark_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, writer(), [people((1, "a"), (22, None))], [people((3, "long" * 6))])
    assert lines == [
        "-------------------------------------------",
        "Batch: 7",
        "-------------------------------------------",
        "+---+--------------------+",
        "| id|                name|",
        "+---+--------------------+",
        "|  1|                   a|",
        "| 22|                NULL|",
        "|  3|longlonglonglongl...|",
        "+---+--------------------+",
        "3 rows",
        "",
        "",
    ]


def test_without_truncation_cells_are_left_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, writer(truncate="false"), [people((1, "long" * 6))])
    assert lines[4:7] == [
        "|id |name                    |",
        "+---+------------------------+",
        "|1  |longlonglonglonglonglong|",
    ]


@pytest.mark.parametrize(
    ("truncate", "text"), [("true", "abcdefgh"), ("6", "abc..."), ("3", "abc"), ("0", "abcdefgh")]
)
def test_truncate(capsys: pytest.CaptureFixture[str], truncate: str, text: str) -> None:
    lines = printed(capsys, writer(truncate=truncate), [people((1, "abcdefgh"))])
    assert text in [cell.strip() for cell in lines[6].split("|")]


def test_vertical(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, writer(vertical="true", numRows="1"), [people((1, "a"), (2, "b"))])
    assert lines[3:8] == [
        "-RECORD 0---",
        " id   | 1   ",
        " name | a   ",
        "only showing top 1 row",
        "2 rows",
    ]
    assert "(0 rows)" in printed(capsys, writer(vertical="true"), [])


def test_tasks_send_no_more_rows_than_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    sink = writer(numRows="2")
    batches = [people((1, "a")), people((2, "b"), (3, "c")), people((4, "d"))]
    head = sink.stage(iter(batches), Task("q", 0, 0, 0), None)
    assert (len(head.rows), head.count) == (2, 4)
    lines = printed(capsys, sink, batches, batches)
    assert lines[-4:-2] == ["only showing top 2 rows", "8 rows"]
    assert len([line for line in lines if line.startswith("|")]) == 3


def test_an_empty_epoch_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, writer(), [])
    assert lines[3:8] == ["+---+----+", "| id|name|", "+---+----+", "+---+----+", "0 rows"]


def test_a_batch_write_has_no_title(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, writer(streaming=False), [people((1, "a"))])
    assert lines[0] == "+---+----+"
    assert "1 row" in lines


def test_wide_letters_and_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, writer(), [people((1, "日本"), (2, "a\nb"))])
    assert lines[6:8] == ["|  1|日本|", "|  2|a\\nb|"]


SPARK_MARK = {"batchWatermarkMs": 1704067200000}
SOURCE_MARK = {"watermark": {"ms": 1704067201500}}


@pytest.mark.parametrize(
    ("offsets", "summary"),
    [
        ([{"batchWatermarkMs": 0}, {"next": 1}], []),
        ([SPARK_MARK, {"next": 1}], ["watermark 2024-01-01T00:00:00.000Z"]),
        ([{}, SOURCE_MARK], ["watermark of the source 2024-01-01T00:00:01.500Z"]),
        (
            [{"batchWatermarkMs": 9_223_372_036_854_775}],
            ["watermark 9223372036854775 ms since 1970"],
        ),
        ([{"batchWatermarkMs": 0}, {"watermark": {"held": "no event time"}}], []),
    ],
)
def test_the_watermark_is_read_from_the_checkpoint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, offsets: list[dict], summary: list[str]
) -> None:
    (tmp_path / "offsets").mkdir()
    text = "\n".join(["v1", *map(json.dumps, offsets)])
    (tmp_path / "offsets" / "7").write_text(text)
    sink = writer(checkpointLocation=str(tmp_path))
    assert "; ".join(["1 row", *summary]) in printed(capsys, sink, [people((1, "a"))])


def test_a_checkpoint_that_cannot_be_read_is_no_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "0 rows" in printed(capsys, writer(checkpointLocation=str(tmp_path)), [])


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, pa.int64(), "NULL"),
        (True, pa.bool_(), "true"),
        (b"AB", pa.binary(), "[41 42]"),
        (1.0, pa.float64(), "1.0"),
        (1e10, pa.float64(), "1.0E10"),
        (-1.25e-7, pa.float64(), "-1.25E-7"),
        (0.1, pa.float32(), "0.1"),
        (1.0000001, pa.float32(), "1.0000001"),
        (15.9499655, pa.float32(), "15.9499655"),
        (16777216.0, pa.float32(), "1.6777216E7"),
        (3.4028235e38, pa.float32(), "3.4028235E38"),
        (float("nan"), pa.float64(), "NaN"),
        (float("-inf"), pa.float64(), "-Infinity"),
        (Decimal("1E+2"), pa.decimal128(5, 2), "100.00"),
        (date(2024, 1, 2), pa.date32(), "2024-01-02"),
        (1704164645 * 10**6, pa.timestamp("us"), "2024-01-02 03:04:05"),
        (
            datetime(2024, 1, 2, 3, 4, 5, 60, tzinfo=timezone.utc),
            pa.timestamp("us", "UTC"),
            "2024-01-02 03:04:05.00006",
        ),
        ({"a": 1, "b": None}, pa.struct([("a", pa.int64()), ("b", pa.string())]), "{1, NULL}"),
        ([1, None], pa.list_(pa.int64()), "[1, NULL]"),
        ([("k", [True])], pa.map_(pa.string(), pa.list_(pa.bool_())), "{k -> [true]}"),
        (10**17, pa.timestamp("us"), "5138-11-16 09:46:40"),
    ],
)
def test_values_are_written_as_spark_writes_them(
    value: object, kind: pa.DataType, text: str
) -> None:
    assert cell_text(pa.scalar(value, kind)) == text


def test_options_and_guarantee() -> None:
    assert ConsoleWriter.guarantee is Guarantee.AT_LEAST_ONCE
    with pytest.raises(OptionError, match="truncate"):
        writer(truncate="some")
    with pytest.raises(OptionError, match="did you mean 'numRows'"):
        writer(numRow="1")
