"""Private names of PyIceberg that the package uses, so that a version without one is noticed."""

import ast
import inspect
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import _MergeAppendFiles
from pyiceberg.types import IntegerType, NestedField, StructType
from wheels import ROOT

from krishiv_spark.iceberg import _pyiceberg

DOOR = "krishiv_spark/iceberg/_pyiceberg.py"
OVERRIDDEN = {
    Catalog: ["_delete_old_metadata", "_load_file_io"],
    RestCatalog: [
        "_config_headers",
        "_fetch_config",
        "_load_file_io",
        "_resolve_storage_credentials",
        "_response_to_staged_table",
        "_response_to_table",
    ],
    MetastoreCatalog: [  # Glue's too
        "_parse_metadata_version",
        "_update_and_stage_table",
        "_write_metadata",
    ],
    SqlCatalog: [
        "_convert_orm_to_iceberg",
        "_iceberg_type_filter",
        "_load_file_io",
        "_parse_metadata_version",
        "_update_and_stage_table",
    ],
    _MergeAppendFiles: [
        "_build_delete_files_partition_predicate",
        "_build_manifest_evaluator",
        "_clean_all_uncommitted",
        "_commit",
        "_existing_manifests",
        "_manifests",
        "_process_manifests",
        "_summary",
    ],
    Transaction: ["_stage"],
    Table: ["_do_commit"],
}


def test_the_version_that_is_installed_is_one_that_the_package_allows():
    asked = [Requirement(text) for text in requires("krishiv-spark")]
    (ours,) = (each for each in asked if each.name == "pyiceberg" and not each.marker)
    assert version("pyiceberg") in ours.specifier
    assert not ours.specifier.contains("0.13")  # private parts may change with any minor version


@pytest.mark.parametrize("kind", OVERRIDDEN, ids=lambda kind: kind.__name__)
def test_methods_that_are_called_or_overridden(kind):
    assert all(callable(getattr(kind, name)) for name in OVERRIDDEN[kind])


def test_what_the_door_imports_is_there():
    assert all(hasattr(_pyiceberg, name) for name in _pyiceberg.__all__)
    given = inspect.signature(_pyiceberg._MergeAppendFiles._summary).parameters
    assert list(given) == ["self", "snapshot_properties"]


def test_fields_know_what_is_around_them():
    inner = NestedField(2, "b", IntegerType(), required=False)
    schema = Schema(NestedField(1, "a", StructType(inner), required=False))
    assert _pyiceberg.get_parent_ids(schema) == {2: 1}


def test_a_writer_tells_how_much_it_has_written():
    output = PyArrowFileIO().new_output("nothing.parquet")  # made with the first batch
    schema = Schema(NestedField(1, "a", IntegerType(), required=False))
    writer = FileFormatFactory.get(FileFormat.PARQUET).create_writer(output, schema, {})
    assert _pyiceberg.count_written_bytes(writer) == 0


@pytest.mark.long
def test_private_names_of_pyiceberg_are_imported_by_the_door_only():
    folders = ("krishiv_spark", "sinks", "sources", "offsets")
    for path in (path for name in folders for path in (ROOT / name).rglob("*.py")):
        text = path.read_text()
        private = [
            alias.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg")
            for alias in node.names
            if alias.name.startswith("_")
        ]
        assert not private or str(path.relative_to(ROOT)) == DOOR, path
