"""Paths as users write them: local ones, and no others."""

import re
from pathlib import Path

import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import IcebergOptions
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.writer import choose_kind
from krishiv_spark.sources.parquet.listing import SourcePath
from krishiv_spark.storage.paths import local_path, url_scheme

ELSEWHERE = (
    "hdfs:/user/x",
    "hdfs://host/x",
    "dbfs:/mnt/x",
    "s3a:/bucket/x",
    "S3://bucket/x",
    "gs:bucket/x",
    "abfss:x",
    "wasb+s:x",
    "viewfs:",
    "hdfs:/x/*.parquet",
)


@pytest.mark.parametrize("text", ELSEWHERE)
def test_every_url_of_another_file_system_is_refused_by_its_scheme(text):
    with pytest.raises(OptionError, match="is on " + re.escape(text.partition(":")[0])) as seen:
        local_path(text, "f: 'path'")
    assert f"./{text}" in str(seen.value)


@pytest.mark.parametrize("text", ELSEWHERE)
def test_a_warehouse_refuses_it_before_any_row(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    given = {"warehouse": text, "table": "t"}
    with pytest.raises(OptionError, match=r"is on|cannot contain the embedded catalog"):
        _ = IcebergOptions.parse(given, "krishiv-iceberg").embedded_file
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3a:/bucket/x", "'s3a:/bucket/x' names no bucket"),
        ("wasb+s:x", "is on 'wasb[+]s', which is not known"),
        ("viewfs:", "does not say where HDFS answers"),
        ("file://elsewhere/x", "names the machine 'elsewhere'"),
    ],
)
def test_source_and_sink_refuse_a_place_that_is_no_place_before_any_row(text, said):
    with pytest.raises(OptionError, match=said):
        SourcePath.parse(text)
    sink = ParquetSinkOptions.parse({"path": text}, "krishiv-parquet")
    with pytest.raises(OptionError, match=f"{said}|is a whole bucket"):
        _ = choose_kind(sink).log_location("q")


@pytest.mark.parametrize(
    ("text", "root", "pattern"),
    [
        ("s3a://box/a/b/", "s3a://box/a/b", None),
        ("S3://box", "s3://box", None),
        ("gs://box/day=*/{a,b}.parquet", "gs://box", "day=*/{a,b}.parquet"),
        (
            "abfss://c@account.dfs.core.windows.net/a b/?",
            "abfss://c@account.dfs.core.windows.net/a b",
            "?",
        ),
        ("hdfs://host/x/*/y", "hdfs://host/x", "*/y"),
        ("dbfs:/Volumes/x/[ab]", "/Volumes/x", "[ab]"),
    ],
)
def test_a_source_finds_its_place_in_every_store(text, root, pattern):
    place = SourcePath.parse(text)
    assert (place.root, place.pattern) == (root, pattern)


def test_local_paths_are_taken_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text, path in {
        "/a/b": "/a/b",
        "file:/a/b": "/a/b",
        "file:///a/b": "/a/b",
        "FILE:/a%20b": "/a%20b",
        "file://localhost/a": "/a",
        "a/b": f"{tmp_path}/a/b",
        "./s3:/x": f"{tmp_path}/s3:/x",
        "/a:b/c": "/a:b/c",
        "a/hdfs:x": f"{tmp_path}/a/hdfs:x",
        "2013-07-01T10:00/x": f"{tmp_path}/2013-07-01T10:00/x",
    }.items():
        assert local_path(text, "path") == Path(path), text


def test_a_file_url_of_another_machine_is_refused():
    with pytest.raises(OptionError, match="the machine 'nas'"):
        local_path("file://nas/share", "path")


def test_a_scheme_is_a_word_of_two_letters_or_more_before_a_colon():
    assert url_scheme("S3A://b") == "s3a"
    for plain in ("c:/x", "/s3:", "a/b:c", "1s3:x", "s3", ".s3:x", ""):
        assert url_scheme(plain) is None
