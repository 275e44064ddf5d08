"""Formats of other authors: found as Spark finds them, with the abilities of our own ones."""

import json
import sys

import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.formats import find_format, format_of, installed_formats, route_names
from krishiv_spark.jobs.depots import Depot, Depots
from krishiv_spark.jobs.models import JobOutput
from krishiv_spark.jobs.plan import find_misfits, locate_output
from krishiv_spark.operate.inspection.positions import describe_position
from krishiv_spark.operate.moving.consequences import describe_copy
from krishiv_spark.sinks.fanout.options import kind_of_route
from krishiv_spark.spark.fast_start.preloading import libraries

MODULE = """
from typing import ClassVar

from krishiv_spark.datasource import DatasetOptions, KrishivDataSource
from krishiv_spark.offsets import Offset
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.sources import StreamReader


class TapeOffset(Offset):
    kind: ClassVar[str] = "tape"
    next: int = 0


class TapeReader(StreamReader):
    offset_type = TapeOffset


class DefaultSource(KrishivDataSource):
    format_name = "acme-tape"
    reader_type = TapeReader
    writer_type = ParquetWriter
    route_type = ParquetWriter
    dataset = DatasetOptions(read=("reel",), write=("reel",), form="table")
    is_append_only = True
    copy_note = "writes {new} from epoch {epoch} on"
    preloads = ("json",)

    @classmethod
    def describe_offset(cls, offset):
        return f"block {offset['next']}"

    @classmethod
    def target_exists(cls, options):
        return options["reel"] == "db.full"
"""
DEPOTS = Depots({"acme": Depot(format="acme-tape")})


@pytest.fixture
def tape(tmp_path, monkeypatch):
    (tmp_path / "pyspark_acme_tape.py").write_text(MODULE)
    (tmp_path / "pyspark_acme_broken.py").write_text("raise OSError('no disk')")
    monkeypatch.syspath_prepend(tmp_path)
    yield find_format("acme-tape")
    for name in ("pyspark_acme_tape", "pyspark_acme_broken"):
        sys.modules.pop(name, None)


def test_a_format_of_another_author_is_found_in_any_case(tape):
    assert tape.format_name == "acme-tape"
    assert find_format(" Acme-Tape") is tape
    assert format_of("acme-tape") is tape
    assert tape in installed_formats()


def test_own_formats_are_found_by_their_whole_names():
    assert find_format("krishiv-kafka") is format_of("kafka")
    assert find_format("kafka") is None
    assert find_format("krishiv-tape") is None
    with pytest.raises(OptionError, match="no format 'kafak'; did you mean 'kafka'"):
        format_of("kafak")


@pytest.mark.usefixtures("tape")
def test_its_offsets_are_described_unless_a_newer_version_has_written_them():
    assert describe_position(json.dumps({"kind": "tape", "v": 1, "next": 7})) == "block 7"
    newer = json.dumps({"kind": "tape", "v": 2, "after": 7})
    assert describe_position(newer) == newer


@pytest.mark.usefixtures("tape")
def test_a_copied_checkpoint_shows_its_note():
    assert "acme-tape: writes /chk/new from epoch 5 on" in describe_copy("/chk/new", 4 + 1)


def test_it_can_be_a_route_of_a_fan_out(tape):
    assert "acme-tape" in route_names()
    assert kind_of_route({"format": "Acme-Tape"}) is tape.route_type
    with pytest.raises(OptionError, match=r"known: krishiv-delta, .*krishiv-parquet, .*acme-tape"):
        kind_of_route({})
    with pytest.raises(OptionError, match="cannot be a route"):
        kind_of_route({"format": "krishiv-memory"})


def test_a_job_can_write_its_datasets(tape):
    output = JobOutput(name="rows", dataset="dataos://acme:db/t", partitionBy=["day"])
    place = locate_output(output, DEPOTS)
    assert (place.source, place.options) == (tape, {"reel": "db.t", "partitionBy": "day"})
    assert place.is_ours
    assert place.shown == "acme: db.t"
    assert not list(find_misfits(output, place))


@pytest.mark.usefixtures("tape")
def test_keys_of_an_output_that_its_sink_has_no_option_for_name_the_formats_that_have():
    output = JobOutput(name="rows", dataset="dataos://acme:db/t", sort=["day"], keys=["id"])
    assert dict(find_misfits(output, locate_output(output, DEPOTS))) == {
        "keys": "'keys' (upsert) is for krishiv-iceberg and krishiv-memory and "
        "krishiv-postgresql, not for acme-tape",
        "sort": "'sort' is for krishiv-iceberg, not for acme-tape",
    }


@pytest.mark.usefixtures("tape")
def test_its_libraries_can_be_imported_before_the_first_batch():
    assert libraries()["acme-tape"] == ("json",)
