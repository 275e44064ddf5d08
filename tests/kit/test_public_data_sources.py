"""Data sources that others have published, under the kit: public_data_sources.md has the results.

They run where their package is (``uv pip install --no-deps pyspark-data-sources==0.1.11``), with
stand-ins for the services that they talk to.
"""

import json
import os
import re
import sys
import uuid
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pytest
from planted_bugs import find_failure

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing import (
    OUTSIDE,
    ROW_SCHEMA,
    Rule,
    SinkConformance,
    SinkUnderTest,
    SourceConformance,
    SourceUnderTest,
)
from krishiv_spark.testing.rows import columns

public = pytest.importorskip("pyspark_datasources", reason="pyspark-data-sources is not installed")
weather = pytest.importorskip("pyspark_datasources.weather")

PAGE = Path(__file__).with_name("public_data_sources.md")


class Salesforce:
    """Stand-in: objects are lines of a file."""

    def __init__(self, instance_url, **login):
        del login
        self.file = Path(instance_url) / "objects"
        self.Account = SimpleNamespace(create=self.create)

    def restful(self, path, method, json):
        del path, method
        self.append(
            [{n: v for n, v in record.items() if n != "attributes"} for record in json["records"]]
        )
        return {"hasErrors": False}

    def create(self, record):
        self.append([record])
        return {"success": True}

    def append(self, records):
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, "".join(f"{json.dumps(r)}\n" for r in records).encode())
        finally:
            os.close(descriptor)


class WorkspaceClient:
    """Stand-in: DBFS is a folder of this machine."""

    def __init__(self, host, token):
        del host, token
        self.dbfs = self

    def upload(self, path, content, overwrite=False):  # noqa: FBT002  theirs
        del overwrite
        with open(path, "wb") as file:
            file.write(content.read())

    def list(self, path):
        return [SimpleNamespace(path=os.path.join(path, name)) for name in os.listdir(path)]

    def delete(self, path):
        os.unlink(path)


def module_of(name, **parts):
    made = ModuleType(name)
    vars(made).update(parts)
    return made


STAND_INS = {
    "simple_salesforce": module_of("simple_salesforce", Salesforce=Salesforce),
    "databricks": module_of("databricks"),
    "databricks.sdk": module_of("databricks.sdk", WorkspaceClient=WorkspaceClient),
}


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class SalesforceSink(SinkConformance):
    guarantee = Guarantee.EXACTLY_ONCE  # "Exactly-once semantics", says its documentation

    def sink(self, folder):
        login = dict.fromkeys(("username", "password", "security_token"), "x")
        return SinkUnderTest(
            source=public.SalesforceDataSource,
            options={**login, "instance_url": str(folder)},
            oracle=lambda: lines_of(folder / "objects"),
            guarantee=self.guarantee,
            any_value=(),
            complete=False,
        )


class SalesforceSinkAtLeastOnce(SalesforceSink):
    guarantee = Guarantee.AT_LEAST_ONCE


class SimpleJsonSink(SinkConformance):
    guarantee = Guarantee.EXACTLY_ONCE

    def sink(self, folder):
        def rows():
            for file in folder.glob("*.json"):
                yield from json.loads(file.read_text())

        login = dict.fromkeys(("databricks_url", "databricks_token"), "x")
        return SinkUnderTest(
            source=public.SimpleJsonDataSource,
            options={**login, "path": str(folder)},
            oracle=rows,
            guarantee=self.guarantee,
            any_value=(),
        )


class SimpleJsonSinkAtLeastOnce(SimpleJsonSink):
    guarantee = Guarantee.AT_LEAST_ONCE


class ArrowSource(SourceConformance):
    outside = {**OUTSIDE, "pyarrow.ipc:open_file": OSError}  # noqa: RUF012

    def source(self, folder):
        def add(rows):
            batch = pa.record_batch(columns(ROW_SCHEMA, rows), schema=ROW_SCHEMA)
            with pa.ipc.new_file(str(folder / "aside"), ROW_SCHEMA) as file:
                file.write(batch)
            (folder / "aside").rename(folder / f"{uuid.uuid4()}.arrow")

        return SourceUnderTest(
            source=public.ArrowDataSource,
            options={"path": str(folder)},
            add=add,
            any_value=("text",),
            outside=self.outside,
        )


class ArrowSourceUnnamed(ArrowSource):
    outside = OUTSIDE


class WeatherSource(SourceConformance):
    def source(self, folder):
        names = ("latitude", "longitude", "weather", "timestamp")
        kinds = (pa.float64(), pa.float64(), pa.string(), pa.string())
        told = [{"time": "2024-09-01T00:00:00Z", "values": {}}]

        def add(rows):
            told.extend({"time": at, "values": json.loads(text)} for _, _, text, at in rows)
            (folder / "aside").write_text(json.dumps({"minutely": told}))
            (folder / "aside").rename(folder / "told")

        add([])
        return SourceUnderTest(
            source=weather.WeatherDataSource,
            options={"locations": "[(1.0, 2.0)]", "apikey": str(folder)},
            add=add,
            schema=pa.schema(list(zip(names, kinds, strict=True))),
            row=lambda n: (1.0, 2.0, json.dumps({"n": n}), f"2024-09-02T{n:09}"),
            small_tasks=None,
        )


def forecast_of(lat, long, api_key, session):
    """Stand-in for the request."""
    del lat, long, session
    return json.loads((Path(api_key) / "told").read_text())


SUBJECTS = {
    kind.__name__: kind
    for kind in (
        SalesforceSink,
        SalesforceSinkAtLeastOnce,
        SimpleJsonSink,
        SimpleJsonSinkAtLeastOnce,
        ArrowSource,
        ArrowSourceUnnamed,
        WeatherSource,
    )
}


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    for name, module in STAND_INS.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(
        weather.WeatherSimpleStreamReader, "_fetch_weather", staticmethod(forecast_of)
    )


FOUND = [
    ("SalesforceSink", "staged_rows_are_invisible", Rule.NOTHING_EARLY),
    ("SalesforceSinkAtLeastOnce", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("SimpleJsonSink", "staged_rows_are_invisible", Rule.NOTHING_EARLY),
    ("SimpleJsonSinkAtLeastOnce", "batch_jobs_that_overwrite", Rule.NO_ROW_LOST),
    ("ArrowSource", "a_batch_reads_everything", Rule.WORKS),
    ("ArrowSourceUnnamed", "the_kit_sees_the_reads", Rule.SEEN),
    ("WeatherSource", "every_row_is_read_once", Rule.WORKS),
    ("WeatherSource", "a_replay_has_the_same_rows", Rule.WORKS),
]
"""As in `test_planted_sink_bugs`; nobody has planted these."""


@pytest.mark.parametrize(("subject", "case", "rule"), FOUND)
def test_what_the_page_says_is_found(subject, case, rule, tmp_path):
    broken = find_failure(SUBJECTS[subject](), case, tmp_path, None, again=False)
    assert broken.rule is rule, str(broken)
    source = f"{re.split('Sink|Source', subject)[0]}DataSource"
    lines = [line for line in PAGE.read_text().splitlines() if f"`{source}`" in line]
    assert any(f"`test_{case}`" in line and f"`{rule.name}`" in line for line in lines)
