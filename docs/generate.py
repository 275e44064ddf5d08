"""Writes the tables of README.md and docs/ that come from the code: ``./run docs``.

A table stands between two comments, ``<!-- generated: NAME -->`` and ``<!-- end -->``. Examples are
written where ``krishiv-spark new`` finds them, too. With ``--check`` nothing is written, and the
exit code says whether anything would change.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from benchmarks.counts.record import Record
from benchmarks.report import results
from docs.tables import (
    counts_table,
    ratios_table,
    selected_ratios_table,
    support_table,
    table,
)
from krishiv_spark import errors
from krishiv_spark.changes.options import ChangeOptions
from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.formats import every_format
from krishiv_spark.iceberg.catalogs import CatalogFailedError
from krishiv_spark.iceberg.options import CatalogSettings
from krishiv_spark.iceberg.planning import UnreadableError
from krishiv_spark.jobs import job_schema
from krishiv_spark.jobs.depots import Depot
from krishiv_spark.jobs.models import (
    NOT_USED,
    JobInput,
    JobModel,
    JobOutput,
    JobSpec,
    JobStep,
    Streaming,
)
from krishiv_spark.kafka.client import KafkaFailedError, KafkaRefusedError
from krishiv_spark.kafka.records.scanner import RecordError
from krishiv_spark.metrics.definitions import METRICS
from krishiv_spark.options import Options
from krishiv_spark.parquet.footers import (
    BadFileError,
    ChangedError,
    GoneError,
    TooLargeError,
    UnsupportedFileError,
)
from krishiv_spark.queries.failures import may_pass
from krishiv_spark.sinks.fanout.dead_letter_options import DeadLetterOptions
from krishiv_spark.sinks.fanout.dead_letters import TooManyBadRecords
from krishiv_spark.sinks.numbered import NumberedJobOptions
from krishiv_spark.sinks.options import CheckpointOptions, LogPlaceOptions
from krishiv_spark.sinks.participant import LostIntentError
from krishiv_spark.sources.base import SourceOptions
from krishiv_spark.sources.iceberg.planner import ChangedRowsError
from krishiv_spark.storage import ENVIRONMENT
from krishiv_spark.storage.base import store_kinds, store_type
from krishiv_spark.storage.settings import StoreSettings
from krishiv_spark.storage.storage import StorageOptions

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FILES = (
    "examples/sqlite_sink.py",
    "tests/kit/test_sqlite_example.py",
)
TEMPLATES = {
    ROOT / "krishiv_spark" / "templates" / "connector" / f"{name}.template": ROOT / example
    for name, example in {
        "NAME_sink.py": "examples/sqlite_sink.py",
        "NAME_source.py": "examples/json_source.py",
        "tests/test_NAME_sink.py": "tests/kit/test_sqlite_example.py",
        "tests/test_NAME_source.py": "tests/kit/test_json_example.py",
    }.items()
}
JOB_PARTS = {
    "job": JobSpec,
    "job.depot": Depot,
    "job.input": JobInput,
    "job.output": JobOutput,
    "job.step": JobStep,
    "job.streaming": Streaming,
}
ERRORS: tuple[type[errors.KrishivError], ...] = (
    *(getattr(errors, name) for name in errors.__all__),
    BadFileError,
    UnsupportedFileError,
    TooLargeError,
    CatalogFailedError,
    ChangedError,
    ChangedRowsError,
    GoneError,
    KafkaFailedError,
    KafkaRefusedError,
    LostIntentError,
    RecordError,
    TooManyBadRecords,
    UnreadableError,
)
JOB_SCHEMA = ROOT / "docs" / "job.schema.json"
BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

_OF_BATCHES = NumberedJobOptions.model_fields.keys() - Options.model_fields.keys()
"""Fields of the options of numbered batches, which docs/foreachbatch.md has for all sinks."""

_SHARED = {
    field
    for model in (LogPlaceOptions, SourceOptions, StorageOptions)
    for field in model.model_fields
}
"""Fields that several formats have: their rows follow those of the format's own options."""

_NOTHING: tuple[Any, ...] = (None, (), "", {}, CatalogSettings(), ENVIRONMENT)


def formats_table() -> str:
    """One row for each format: what it does, and what it guarantees."""
    rows = [_format_row(source) for source in every_format()]
    return table(["format", "source", "sink", "guarantee of the sink"], rows)


def _format_row(source: type[KrishivDataSource]) -> list[str]:
    reader, sink = source.reader_type, source.writer_type
    return [
        f"`{source.format_name}`",
        "-" if reader is None else "batch" if reader.only_batches else "stream, batch",
        "-" if sink is None else "stream" if sink.only_streams else "stream, batch",
        sink.guarantee.value if sink else "-",
    ]


def options_table(model: type[Options], without: Collection[str] = ()) -> str:
    """Return a table of a model's options; shared ones come last.

    Options with the same default and meaning share a row. The fields in `without` are left out.
    """
    rows = dict[tuple[str, str], list[str]]()
    for name, field in sorted(model.user_options().items(), key=lambda item: item[1] in _SHARED):
        if field not in without:
            default, meaning = _meaning(model, field)
            rows.setdefault((default, meaning or ""), []).append(f"`{name}`")
    return table(
        ["option", "default", "meaning"],
        [[", ".join(names), default, meaning] for (default, meaning), names in rows.items()],
    )


def format_tables(source: type[KrishivDataSource]) -> dict[str, str]:
    """Return the tables of a format's options: all, without the shared ones, and by direction."""
    name, tables = source.format_name, dict[str, str]()
    reader = source.reader_type.options_type if source.reader_type else None
    writer = source.writer_type.options_type if source.writer_type else None
    of_sources = _common_fields(reader, SourceOptions) if reader else set()
    of_sinks = {*_OF_BATCHES}
    for shared in (LogPlaceOptions, CheckpointOptions, ChangeOptions):
        of_sinks |= _common_fields(writer, shared) if writer else set()
    if reader:
        tables[f"{name}.source"] = options_table(reader)
        tables[f"{name}.source-own"] = options_table(reader, without=of_sources)
    if writer:
        tables[f"{name}.sink"] = options_table(writer, without=_OF_BATCHES)
        tables[f"{name}.sink-own"] = options_table(writer, without=of_sinks)
    if reader and writer:  # options with one meaning in both directions, and the rest
        of_both = {*reader.user_options().values()} & {*writer.user_options().values()}
        common = _common_fields(reader, writer) & of_both
        others = reader.model_fields.keys() - common
        tables[f"{name}.common"] = options_table(reader, without=others | of_sources)
        tables[f"{name}.source-only"] = options_table(reader, without=common | of_sources)
        tables[f"{name}.sink-only"] = options_table(writer, without=common | of_sinks)
    return tables


def _common_fields(first: type[Options], second: type[Options]) -> set[str]:
    """Return the fields of two models that have the same default and description in both."""
    return {
        field
        for field in first.model_fields.keys() & second.model_fields.keys()
        if _meaning(first, field) == _meaning(second, field)
    }


def _meaning(model: type[Options], field: str) -> tuple[str, str | None]:
    return _default(model, field), model.model_fields[field].description


def _default(model: type[Options], field: str) -> str:
    info = model.model_fields[field]
    if info.default is PydanticUndefined:
        return "required"
    if info.default in _NOTHING or info.annotation is SecretStr:
        return "-"
    return f"`{_written(info.default, info.metadata)}`"


def _written(value: Any, metadata: list[Any]) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    parsers = {str(part) for part in metadata}
    if value == 0:
        return "0"
    is_time = any("parse_duration" in text or "_span" in text for text in parsers)
    if isinstance(value, int) and is_time:
        return _with_unit(value, [(86_400_000, "d"), (3_600_000, "h"), (1_000, "s"), (1, "ms")])
    if isinstance(value, int) and any("parse_bytes" in text for text in parsers):
        return _with_unit(value, [(2**30, "g"), (2**20, "m"), (2**10, "k"), (1, "b")])
    return str(value)


def _with_unit(value: int, units: Iterable[tuple[int, str]]) -> str:
    return next(f"{value // size}{name}" for size, name in units if value % size == 0)


def keys_table(model: type[JobModel]) -> str:
    """One row for each key of a part of a job file; those that several parts have come last."""
    inherited = {name for base in model.__bases__ for name in getattr(base, "model_fields", {})}
    shown = (
        [f"`{field.alias or name}`", _job_default(field), field.description or ""]
        for name, field in sorted(model.model_fields.items(), key=lambda one: one[0] in inherited)
        if NOT_USED not in field.metadata and name not in {"title", "description"}
    )
    return table(["key", "default", "meaning"], list(shown))


def _job_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default in (None, [], {}) or isinstance(field.default, JobModel):
        return "-"
    return f"`{_written(field.default, field.metadata)}`"


def error_block(error: type[errors.KrishivError]) -> str:
    """Return the block of a class of errors: the summary of its docstring, and what is special."""
    summary = " ".join(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].split())
    others = set(error.__bases__) - {errors.KrishivError, Exception}
    bases = [f"`{base.__name__}`" for base in error.__bases__ if base in others]
    kind = f" A kind of {' and '.join(bases)}." if bases else ""
    passes = " It may be transient." if may_pass(error.__name__) else ""
    return f"{summary}{kind}{passes}\n"


def metrics_table() -> str:
    """One row for each metric."""
    return table(
        ["metric", "own labels", "value"],
        [
            [f"`{one.full_name}`", ", ".join(f"`{label}`" for label in one.labels), one.says]
            for one in METRICS
        ],
    )


def file_block(name: str) -> str:
    """Return a file of this repository, as a user would save it elsewhere."""
    text = (ROOT / name).read_text().replace("from examples.", "from ")
    return f"```python\n{text}```\n"


README_FIGURES = {
    ("kafka.read", "krishiv-kafka / kafka, 110 bytes"),
    ("kafka.write", "krishiv-kafka / kafka, 110 bytes"),
    ("kafka.copy", "krishiv-kafka / kafka, 110 bytes"),
    ("kafka.json", "krishiv-kafka / kafka, from_json, 210 bytes"),
    ("kafka.trigger", "trigger, krishiv-kafka / kafka"),
    ("iceberg.bulk", "speed, krishiv-iceberg / iceberg"),
    ("iceberg.read", "krishiv-iceberg / iceberg, full scan"),
    ("iceberg.trigger", "trigger, krishiv-iceberg / iceberg"),
    ("parquet.bulk", "speed, krishiv-parquet / parquet"),
    ("parquet.trigger", "trigger, krishiv-parquet / parquet"),
}
"""Figures that the README shows: one for each common task, whether its goal is met or missed."""


def benchmarks_tables() -> dict[str, str]:
    """Return the tables of the figures that ``./run bench --record`` keeps."""
    recorded = results.load(ROOT / "docs" / "performance.json")
    return {
        "benchmarks.readme": selected_ratios_table(recorded, README_FIGURES),
        "benchmarks.ratios": ratios_table(recorded),
        "counts": counts_table(Record.load()),
    }


def blocks() -> dict[str, str]:
    """Every generated table by its name."""
    tables = {
        "formats": formats_table(),
        "support": support_table(),
        **benchmarks_tables(),
        **{f"file:{name}": file_block(name) for name in FILES},
    }
    tables |= {f"error.{error.__name__}": error_block(error) for error in ERRORS}
    tables["metrics"] = metrics_table()
    for name, part in JOB_PARTS.items():
        tables[name] = keys_table(part)
    tables["shared.source"] = options_table(SourceOptions)
    tables["shared.sink"] = options_table(LogPlaceOptions, without=_OF_BATCHES)
    for source in every_format():
        tables |= format_tables(source)
    tables["dead-letters"] = options_table(DeadLetterOptions, without=LogPlaceOptions.model_fields)
    tables["changes.sink"] = options_table(ChangeOptions, without=Options.model_fields)
    tables["batches.sink"] = options_table(NumberedJobOptions, without=Options.model_fields)
    return {**tables, **storage_tables()}


def storage_tables() -> dict[str, str]:
    """Return the settings that all stores have, and those of each kind."""
    common = StoreSettings.model_fields.keys()
    models = {kind: store_type(kind).settings_type for kind in store_kinds()}
    own = {
        f"storage.{kind}": options_table(model, without=common)
        for kind, model in models.items()
        if model is not StoreSettings
    }
    return {"storage.all": options_table(StoreSettings), **own}


def regenerated(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with today's tables."""
    return BLOCK.sub(lambda match: f"{match[1]}{tables[match[2]]}{match[3]}", page)


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or check them."""
    tables = blocks()
    today = {page: regenerated(page.read_text(), tables) for page in PAGES}
    today |= {template: example.read_text() for template, example in TEMPLATES.items()}
    today[JOB_SCHEMA] = json.dumps(job_schema(), indent=2) + "\n"
    stale = [page for page, text in today.items() if text != page.read_text()]
    is_check = "--check" in arguments
    for page in stale:
        state = "differs from the code: run ./run docs" if is_check else "was renewed"
        print(f"{page.relative_to(ROOT)} {state}")  # noqa: T201
        if not is_check:
            page.write_text(today[page])
    return int(bool(stale) and is_check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
