"""A pipeline's full refresh, which a sink knows by the place of its checkpoint."""

import pytest

from krishiv_spark.errors import CheckpointMismatch
from krishiv_spark.options import Options
from krishiv_spark.sinks.options import CheckpointOptions, check_full_refresh
from krishiv_spark.spark.checkpoint import SparkCheckpoint


@pytest.fixture
def flow(tmp_path):
    """A flow whose rows are written, and refreshed twice; the first refresh has come to nothing."""
    flow = tmp_path / "_checkpoints" / "out" / "copy"
    for version in range(3):
        (flow / str(version) / "offsets").mkdir(parents=True)
    (flow / "0" / "offsets" / "0").write_text("v1")
    return flow


def check(location, **given):
    options = CheckpointOptions.parse(given, "krishiv-memory")
    check_full_refresh(SparkCheckpoint(str(location)), options)


@pytest.mark.parametrize("form", ["{}/1", "{}/1/", "file:{}/1", "file://{}/1"])
def test_a_refresh_that_nobody_allowed_is_refused_with_what_to_do(flow, form):
    with pytest.raises(CheckpointMismatch, match=r"second time.*'fullRefresh' = '1'"):
        check(form.format(flow))


def test_a_refresh_is_allowed_by_its_number_once(flow):
    check(f"{flow}/1", fullRefresh="1")
    with pytest.raises(CheckpointMismatch, match="full refresh 2 "):
        check(f"{flow}/2", fullRefresh="1")


def test_checkpoints_that_somebody_removed_are_passed_over(flow):
    with pytest.raises(CheckpointMismatch, match="full refresh 9 "):
        check(f"{flow}/9")


def test_the_first_checkpoint_of_a_flow_is_no_refresh(flow):
    check(f"{flow}/0")


def test_what_has_written_nothing_may_be_refreshed(flow):
    (flow / "0" / "offsets" / "0").unlink()
    check(f"{flow}/2")


def test_other_checkpoints_may_be_called_by_numbers(tmp_path):
    (tmp_path / "0" / "offsets").mkdir(parents=True)
    (tmp_path / "0" / "offsets" / "0").write_text("v1")
    check(tmp_path / "1")


def test_a_sink_without_the_option_is_not_asked(flow):
    check_full_refresh(SparkCheckpoint(f"{flow}/1"), Options.parse({}, "another"))
