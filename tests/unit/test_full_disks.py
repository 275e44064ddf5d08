"""A disk without space: one error, with the folders that may be meant."""

import errno
from contextlib import suppress

import pytest
from sink_life import Life, rows
from small_disks import fill
from tables import look

from krishiv_spark.errors import CommitUnknown, StorageError
from krishiv_spark.lifecycle.errors import explain_disk_full
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.options import FanoutOptions
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.parquet.writer import ParquetWriter


def options(**more):
    return IcebergSinkOptions.parse({"path": "db.t", **more}, "krishiv-iceberg")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_folders_on_disks_are_shown_with_their_space(tmp_path, number):
    given = options(warehouse=f"{tmp_path}/not/there", location="s3://bucket/t")
    said = rf"bytes for temporary files of tasks \(.*bytes for 'warehouse' \({tmp_path}/not/there\)"
    with pytest.raises(StorageError, match=said) as error, explain_disk_full(given):
        raise OSError(number, "as PyArrow says it")
    assert "bucket" not in str(error.value)


def test_a_file_that_the_system_names_is_shown(tmp_path):
    given = KafkaSinkOptions.parse({"kafka.bootstrap.servers": "h:1"}, "krishiv-kafka")
    with pytest.raises(StorageError, match=f": {tmp_path}/x on this"), explain_disk_full(given):
        raise OSError(errno.ENOSPC, "full", f"{tmp_path}/x")


def test_the_folders_of_a_fan_out_s_routes_are_shown(tmp_path):
    given = {
        "route.a.format": "krishiv-parquet",
        "route.a.path": f"{tmp_path}/a",
        "route.b.format": "krishiv-iceberg",
        "route.b.warehouse": f"{tmp_path}/b",
    }
    parsed = FanoutOptions.parse(given, "krishiv-fanout")
    said = rf"'route.a.path' \({tmp_path}/a\).*'route.b.warehouse' \({tmp_path}/b\)"
    with pytest.raises(StorageError, match=said), explain_disk_full(parsed):
        raise OSError(errno.ENOSPC, "full")


def test_a_disk_without_inodes_has_bytes_and_takes_no_file(disk):
    folder = disk("size=1m,nr_inodes=4").folder
    said = rf"No space left .* bytes, but no inode \(no new file\) for 'warehouse' \({folder}\)"
    with pytest.raises(StorageError, match=said), explain_disk_full(options(warehouse=str(folder))):
        use_up_inodes(folder)


def use_up_inodes(folder):
    for number in range(9):
        (folder / str(number)).touch()


def test_a_disk_that_has_become_read_only_is_named(disk):
    mounted = disk("size=1m")
    mounted.make_read_only()
    said = rf"Read-only .* read-only for 'warehouse' \({mounted.folder}\).*mounted for writing"
    with (
        pytest.raises(StorageError, match=said),
        explain_disk_full(options(warehouse=str(mounted.folder))),
    ):
        (mounted.folder / "x").touch()


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), explain_disk_full(options(warehouse=str(tmp_path))):
        raise PermissionError(errno.EACCES, "no")


# --- a query on a disk that is small


def epoch(life, number):
    """Ten rows, as Spark has them written; it may be interrupted by the disk at any moment."""
    open_log.cache_clear()  # a restart has processes of its own
    life.epoch(number, rows(10 * number, 10))


def stream_on(disk):
    return Life(ParquetWriter, {"path": f"{disk.folder}/t"}, "q1", OutputMode.APPEND)


@pytest.mark.parametrize("pages", range(4))
def test_a_query_goes_on_exactly_once_there_is_room_again(disk, pages):
    """The room ends at the start of the epoch, in a task, at the intent, or not at all."""
    small = disk("size=1m")
    life = stream_on(small)
    epoch(life, 0)
    fill(small, pages=pages)
    for _ in range(2):  # the second start is as full as the first
        with suppress(PlanningFailed, CommitUnknown, OSError):
            epoch(life, 1)
    (small.folder / "filler").unlink()
    for number in (1, 2):
        epoch(life, number)
    assert look(small.folder / "t") == (30, 30, 435)
    assert not list((small.folder / "t").rglob("*.staged"))


def test_a_full_disk_refuses_the_epoch_by_its_name(disk):
    small = disk("size=1m")
    life = stream_on(small)
    epoch(life, 0)
    fill(small, pages=0)
    with pytest.raises(
        PlanningFailed, match=rf"No space left.* 0 bytes for 'path' \({small.folder}"
    ):
        epoch(life, 1)


def test_a_table_on_a_read_only_disk_is_refused_as_such(disk):
    small = disk("size=1m")
    life = stream_on(small)
    epoch(life, 0)
    small.make_read_only()
    with pytest.raises(PlanningFailed, match="cannot be written: its file system is read-only"):
        epoch(life, 1)


def test_a_path_that_is_a_link_to_a_disk_that_is_not_mounted_is_told_as_such(tmp_path):
    (tmp_path / "t").symlink_to(tmp_path / "disk/t")
    life = Life(ParquetWriter, {"path": f"{tmp_path}/t"}, "q1", OutputMode.APPEND)
    with pytest.raises(PlanningFailed, match="which does not exist: is its disk mounted"):
        epoch(life, 0)
