"""Every name of code that docs/ and model/ show in backticks exists.

A text in backticks is a name of code if one of its parts, between dots, is a class (`EpochLog`) or
has an underscore (`check_owner`), or if it is the path of a Python file. It must be a name of this
repository, of the TLA+ models, of Python, of an installed library, or be listed in `ELSEWHERE`.
"""

import ast
import builtins
import importlib
import pickle
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from syntax import parse_module, walk_statements
from wheels import ROOT

from krishiv_spark.metrics.definitions import METRICS

PAGES = sorted(
    page
    for folder in ("docs", "model")
    for page in (ROOT / folder).rglob("*.md")
    if page.parent != ROOT / "docs" / "site"
)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
CLASS = re.compile(r"_*[A-Z][a-z0-9]+([A-Z][A-Za-z0-9]*)?")
SNAKE = re.compile(r"_*[a-z0-9]+(_[a-z0-9]+)+")
PATH = re.compile(r"[\w/.-]+\.(?:py|tla)")

PACKAGE = ("krishiv_spark", "offsets", "sinks", "sources")
BESIDE = ("tests/support", "benchmarks", "examples")
LIBRARIES = ("pyspark", "pyarrow", "pyiceberg", "pydantic", "kafka", "deltalake")
UNNAMED = {"tests", "ml", "mllib", "pandas"}
"""Folders of the libraries without names that a page shows, a third of their text."""

ELSEWHERE = {
    "change types of delta-spark": ("update_preimage", "update_postimage"),
    "the class names of Spark in Scala and Java": {
        "ManifestFileCommitProtocol", "MicroBatchExecution", "PythonWriteBuilder",
        "PythonStreamingDataSourceSuite", "SparkWrite", "SupportsStreamingUpdateAsAppend",
        "UnsupportedClassVersionError", "V2Writes",
    },
    "names in Spark's files, settings and SQL": {
        "_spark_metadata", "spark.tvf.python_worker_logs", "try_cast", "python_data_source.rst",
        "dev/sparktestsupport/modules.py",
        "test_python_streaming_update_mode.py",
        "spark._jvm.org.apache.spark.sql.SparkSession.setActiveSession",
    },
    "triggers of jobs, which are words": {"AvailableNow", "Continuous", "Once", "ProcessingTime"},
    "operations, codes and settings of stores and catalogs": {
        "AbortIncompleteMultipartUpload", "AbortMultipartUpload", "CompleteMultipartUpload",
        "SlowDown", "UpdateTable", "VersionId", "catalog.pool_pre_ping", "connect_timeout",
        "credential_process", "endpoint_url", "tcp_user_timeout", "Authorization", "Bearer",
    },
    "a transformation of Debezium": {"ExtractNewRecordState"},
    "settings of MariaDB and MySQL": {"binlog_row_image", "gtid_domain_id"},
    "the sinks of Flink": {"FileSink", "KafkaSink"},
    "names that kafka-python may get, and attributes and methods that it has": {
        "EncodedRequest", "KafkaConnectionManager.add_connection", "KafkaConnectionManager.detach",
        "_io_thread", "_auth_failures", "_sock_recv", "_rbuffer", "_conns", "_reauth", "_read_task",
        "get_response_class", "recv_into", "close_if_silent",
    },
    "settings of PostgreSQL and libpq": {
        "idle_in_transaction_session_timeout", "max_locks_per_transaction", "statement_timeout",
        "synchronous_commit", "target_session_attrs",
    },
    "headers of Confluent's serializers": {"__key_schema_id", "__value_schema_id"},
    "isolation levels of Kafka": {"read_committed", "read_uncommitted"},
    "texts of JSON": {"Infinity", "NaN"},
    "data sources that others have published": {
        "ArrowDataSource", "SalesforceDataSource", "SimpleJsonDataSource", "WeatherDataSource",
    },
    "alerts, which are defined in docs/operate/alerts.yml": {
        *re.findall(r"alert: (\w+)", (ROOT / "docs/operate/alerts.yml").read_text())
    },
    "columns, tables and files of examples": {
        "000000_0", "dead_letter", "pandas.py", "pyspark_NAME.py", "value_counts",
        "encrypt_columns_plaintext_footer.parquet.encrypted",
    },
    "compiled code, whose names cannot be imported": {
        "ColumnChunk", "is_stats_set", "path_in_schema", "CRowGroupMetaData",
        "CColumnChunkMetaData", "ListReader", "MapReader", "CythonBinaryDecoder",
        "decoder_fast.pyx",
    },
}  # fmt: skip
ALLOWED = {name for names in ELSEWHERE.values() for name in names}


@cache
def trees() -> tuple[tuple[Path, ast.Module], ...]:
    folders = (ROOT / folder for folder in (*PACKAGE, *BESIDE))
    paths = (path for folder in folders for path in folder.rglob("*.py"))  # which follows no links
    return tuple((path, parse_module(path)) for path in paths)


@cache
def own_names() -> frozenset[str]:
    """Return what the repository defines, metrics, and strings such as the keys of JSON."""
    found = {metric.full_name for metric in METRICS}
    for path, tree in trees():
        found |= {path.stem, path.parent.name, *map(_name_of, ast.walk(tree))}
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"^ *(?:def|class) (\w+)", path.read_text(), re.MULTILINE))
    return frozenset(found)


def _name_of(node: ast.AST) -> str:
    """Return the name that a node defines, or the text of a string; an empty text for the rest."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else ""
    if isinstance(node, ast.Attribute):
        return node.attr if isinstance(node.ctx, ast.Store) else ""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def own_classes() -> dict[str, set[str]]:
    """Return the names in each class of the package and of the classes that it is derived from."""
    members, bases = defaultdict(set), defaultdict(set)
    for _, tree in trees():
        for node in walk_statements(tree):
            if isinstance(node, ast.ClassDef):
                members[node.name] |= {*map(_name_of, ast.walk(node))}
                bases[node.name] |= {_base_of(base) for base in node.bases}
    for name in members:
        new = {name}
        while new := {base for each in new for base in bases.get(each, ())} & members.keys():
            if not set().union(*(members[base] for base in new)) - members[name]:
                break
            members[name] |= set().union(*(members[base] for base in new))
    return members


def _base_of(base: ast.expr) -> str:
    plain = base.value if isinstance(base, ast.Subscript) else base
    return getattr(plain, "id", getattr(plain, "attr", ""))


@cache
def library_names() -> frozenset[str]:
    """Return the names of functions, classes and modules of Python and of the libraries."""
    found = {*dir(builtins), *dir(pickle), *sys.stdlib_module_names}
    for library in LIBRARIES:
        folder = Path(str(importlib.import_module(library).__file__)).parent
        for path in folder.rglob("*.py*"):
            inside = path.relative_to(folder).parts[:-1]
            if path.suffix in {".py", ".pyx", ".pxi", ".pxd"} and UNNAMED.isdisjoint(inside):
                text = path.read_text(errors="replace")
                found |= {path.stem, *re.findall(r"\b(?:class|c?p?def)\s+(?:\w+ )*(\w+)", text)}
                found |= set(re.findall(r"^(\w+) *(?:: [^=\n]+)?=", text, re.MULTILINE))
    return frozenset(found)


@cache
def model_names() -> frozenset[str]:
    texts = (path.read_text() for path in (ROOT / "model").glob("*.tla"))
    return frozenset(re.findall(r"\w+", " ".join(texts)))


def shown(page: Path) -> Iterator[str]:
    """Yield what a page has in backticks, without arguments and brackets after a name."""
    for text in SPAN.findall(FENCED.sub("", page.read_text())):
        yield re.sub(r"[(\[].*", "", text).strip().strip(".")


def is_missing(name: str, page: Path) -> bool:
    if PATH.fullmatch(name):
        return name not in ALLOWED and not _is_file(name, page)
    if name in ALLOWED or not DOTTED.fullmatch(name):
        return False
    if name.startswith("krishiv.query."):  # a metric, by its name in OpenTelemetry
        return not any(metric.name.startswith(name.replace(".", "_")) for metric in METRICS)
    parts = name.split(".")
    if parts[0] == "krishiv_spark":
        return not _is_path(parts)
    code = [part for part in parts if CLASS.fullmatch(part) or SNAKE.fullmatch(part)]
    return not all(_exists(part, page) for part in code) or not _is_member(parts)


def _is_member(parts: list[str]) -> bool:
    """Return False if the last part is no name in the class before it, which is one of ours."""
    members = own_classes().get(parts[-2]) if len(parts) > 1 else None
    return members is None or parts[-1] in members or parts[-1] in library_names()


def _is_path(parts: list[str]) -> bool:
    """Return True for a module of the package, with or without a name in it."""
    own, above = ROOT.joinpath(*parts), ROOT.joinpath(*parts[:-1])
    if own.is_dir() or own.with_suffix(".py").is_file():
        return True
    module = above / "__init__.py" if above.is_dir() else above.with_suffix(".py")
    if module.is_file():
        return re.search(rf"\b{parts[-1]}\b", module.read_text()) is not None
    return len(parts) > 1 and parts[-1] in own_names() and _is_path(parts[:-1])


def _exists(name: str, page: Path) -> bool:
    if name in ALLOWED or (page.parent.name == "model" and name in model_names()):
        return True
    return name in own_names() or name in library_names()


def _is_file(name: str, page: Path) -> bool:
    """Return True for a path from the root, from the page, or of one room, as `kafka/client.py`."""
    if name.startswith("test_") or (ROOT / name).is_file() or (page.parent / name).is_file():
        return True  # a reader of a guide saves tests under such names
    found = (*(path for path, _ in trees()), *(ROOT / "tests").rglob("*.py"))
    return any(path.as_posix().endswith(f"/{name}") for path in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_of_code_on_a_page_exists(page):
    assert sorted({name for name in shown(page) if is_missing(name, page)}) == []


@pytest.mark.parametrize(
    "name",
    [
        "LogCommiter",
        "LogCommitter.publishes",
        "Participant.finish_all",
        "krishiv_spark.sinks.logs",
        "take_over_everything",
        "sinks/parquet/renamings.py",
    ],
)
def test_a_name_that_does_not_exist_is_found(name):
    assert is_missing(name, ROOT / "docs" / "errors.md")


@pytest.mark.parametrize(
    "name",
    ["EpochLog.intend", "krishiv_spark.sinks.base", "sinks/base.py", "KrishivError", "maxFiles"],
)
def test_a_name_that_exists_is_not(name):
    assert not is_missing(name, ROOT / "docs" / "errors.md")
