"""Data sources of others for services on the web, under the kit: see public_data_sources.md.

They run where their packages are (requirements/public-services.txt), with stand-ins for the
services and for the clients of these. The packages are in a folder of their own: Spark imports all
modules `pyspark_*` that it finds, so that no other test may find these.
"""

import json
import os
import sys
import uuid
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted_bugs import find_failure

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing import (
    Rule,
    SinkConformance,
    SinkUnderTest,
    SourceConformance,
    SourceUnderTest,
)
from krishiv_spark.testing.rows import columns

PAGE = Path(__file__).with_name("public_data_sources.md")


def module_of(name, **parts):
    made = ModuleType(name)
    vars(made).update(parts)
    return made


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# --- a service that sends records which are newer than a number


class Client:
    """Stand-in for ``httpx.Client``: the URL is a folder, whose file has the records."""

    def __init__(self, **_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def get(self, url, params, headers):
        del headers
        found = [r for r in lines_of(Path(url) / "records") if r["id"] > int(params["since"])]
        return SimpleNamespace(status_code=200, json=lambda: found, raise_for_status=lambda: None)


class RestSource(SourceConformance):
    def source(self, folder):
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        told = []

        def add(rows):
            told.extend(pa.table(columns(schema, rows), schema=schema).to_pylist())
            (folder / "aside").write_text("".join(f"{json.dumps(one)}\n" for one in told))
            (folder / "aside").rename(folder / "records")

        cursor = {"field": "id", "param": "since", "initial_value": "-1", "is_numeric": "true"}
        return SourceUnderTest(
            source=import_source("spark_rest_api_reader"),
            options={
                "url": str(folder),
                **{f"stream_cursor_{key}": text for key, text in cursor.items()},
                "stream_initial_value": "-1",
                "max_retries": "0",
            },
            add=add,
            schema=schema,
            row=lambda number: (number, f"t{number}"),
            small_tasks=None,
        )


# --- a service that takes a row in each request


class Session:
    """Stand-in for the session of ``requests``: a failed disk is a service that refuses a row."""

    def post(self, url, data, params):
        del params
        try:
            descriptor = os.open(Path(url) / "rows", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                os.write(descriptor, f"{data}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            return SimpleNamespace(status_code=413, text=str(error))
        return SimpleNamespace(status_code=200, text="")


class RestSink(SinkConformance):
    def sink(self, folder):
        return SinkUnderTest(
            source=import_source("cyber_connectors"),
            options={"url": str(folder)},
            oracle=lambda: lines_of(folder / "rows"),
            guarantee=Guarantee.AT_LEAST_ONCE,
            any_value=(),
            complete=False,
            overwrite=False,
        )


# --- the hub of Hugging Face


class HfApi:
    """Stand-in: a commit is a new list of files, by one rename."""

    def __init__(self, token, endpoint, library_name):
        del token, library_name
        self.folder = Path(endpoint)

    def files(self):
        return files_of_hub(self.folder)

    def preupload_lfs_files(self, additions, **_):
        for one in additions:
            one.blob = uuid.uuid4().hex
            (self.folder / one.blob).write_bytes(one.path_or_fileobj)

    def list_repo_tree(self, **_):
        return [RepoFile(path=path) for path in sorted(self.files())]

    def create_commit(self, operations, **_):
        files = self.files()
        for one in operations:
            if isinstance(one, Add):
                files[one.path_in_repo] = one.blob
            elif isinstance(one, Copy):
                files[one.path_in_repo] = files[one.src_path_in_repo]
            else:
                files.pop(one.path_in_repo)
        made = self.folder / uuid.uuid4().hex
        made.write_text(json.dumps(files))
        made.rename(self.folder / "files")


def files_of_hub(folder):
    file = folder / "files"
    return json.loads(file.read_text()) if file.exists() else {}


class Add(SimpleNamespace):
    pass


class Copy(SimpleNamespace):
    pass


class Delete(SimpleNamespace):
    pass


class RepoFile(SimpleNamespace):
    pass


class RepoFolder(SimpleNamespace):
    pass


class HubSink(SinkConformance):
    more: dict = {}  # noqa: RUF012  a suite with another option has its own

    def sink(self, folder):
        def rows():
            for blob in files_of_hub(folder).values():
                yield from pq.read_table(folder / blob).to_pylist()

        login = {"token": "x", "path": "user/set", "endpoint": str(folder)}
        return SinkUnderTest(
            source=import_source("pyspark_huggingface"),
            options={**login, **self.more},
            oracle=rows,
            guarantee=Guarantee.EXACTLY_ONCE,
            any_value=(),
        )


class HubSinkInParts(HubSink):
    more = {"max_operations_per_commit": "1"}  # noqa: RUF012  as with more than 100 files


# --- the findings


def import_source(package):
    if package == "pyspark_huggingface":
        return import_module("pyspark_huggingface.huggingface_sink").HuggingFaceSink
    return import_module(package).RestApiDataSource


PACKAGES = {
    "spark_rest_api_reader": "spark-rest-api-reader",
    "cyber_connectors": "cyber-spark-data-connectors",
    "pyspark_huggingface": "pyspark-huggingface",
}


HUB = {
    "HfApi": HfApi,
    "CommitOperationAdd": Add,
    "CommitOperationCopy": Copy,
    "CommitOperationDelete": Delete,
    "get_token": lambda: None,
}
STAND_INS = {
    "httpx": module_of("httpx", Client=Client, TransportError=OSError, Response=object),
    "azure.monitor": module_of("azure.monitor"),
    "azure.monitor.ingestion": module_of("ingestion", LogsIngestionClient=None),
    "azure.monitor.query": module_of("query", LogsQueryClient=None, LogsQueryStatus=None),
    "huggingface_hub": module_of("huggingface_hub", **HUB),
    "huggingface_hub.hf_api": module_of("hf_api", RepoFile=RepoFile, RepoFolder=RepoFolder),
    "huggingface_hub.utils": module_of("utils", EntryNotFoundError=FileNotFoundError),
}


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    folder = Path(sys.prefix) / "public-services"
    if not folder.exists():
        pytest.skip("the packages of requirements/public-services.txt are not installed")
    monkeypatch.syspath_prepend(folder)
    for name, module in STAND_INS.items():
        monkeypatch.setitem(sys.modules, name, module)
    rest = import_module("cyber_connectors.RestApi")
    monkeypatch.setattr(rest, "get_http_session", lambda **_: Session())
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]  # another test may not find them


FOUND = [
    ("spark_rest_api_reader", RestSource, "every_row_is_read_once", Rule.EVERY_ROW_ONCE),
    ("spark_rest_api_reader", RestSource, "a_replay_has_the_same_rows", Rule.SAME_REPLAY),
    ("cyber_connectors", RestSink, "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("pyspark_huggingface", HubSink, "an_aborted_epoch_is_void", Rule.WORKS),
    ("pyspark_huggingface", HubSinkInParts, "death_at_any_call", Rule.NO_ROW_TWICE),
]


@pytest.mark.long  # others' packages do not change with ours
@pytest.mark.parametrize(
    ("package", "subject", "case", "rule"), FOUND, ids=[f"{p}-{case}" for p, _, case, _ in FOUND]
)
def test_what_the_page_says_is_found(package, subject, case, rule, tmp_path):
    broken = find_failure(subject(), case, tmp_path, None, again=False)
    assert broken.rule is rule, str(broken)
    name = PACKAGES[package]
    lines = [line for line in PAGE.read_text().splitlines() if f"`{name}`" in line]
    assert any(f"`test_{case}`" in line and f"`{rule.name}`" in line for line in lines)
