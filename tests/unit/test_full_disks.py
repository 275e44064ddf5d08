"""A disk without space: one error, with the folders that may be meant."""

import errno

import pytest

from krishiv_spark.errors import StorageError
from krishiv_spark.lifecycle.full_disks import naming_full_disks
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions


def options(**more):
    return IcebergSinkOptions.parse({"path": "db.t", **more}, "krishiv-iceberg")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_folders_on_disks_are_shown_with_their_space(tmp_path, number):
    given = options(warehouse=f"{tmp_path}/not/there", location="s3://bucket/t")
    said = rf"bytes for what tasks put aside \(.*bytes for 'warehouse' \({tmp_path}/not/there\)"
    with pytest.raises(StorageError, match=said) as error, naming_full_disks(given):
        raise OSError(number, "as PyArrow says it")
    assert "bucket" not in str(error.value)


def test_a_file_that_the_system_names_is_shown(tmp_path):
    given = KafkaSinkOptions.parse({"kafka.bootstrap.servers": "h:1"}, "krishiv-kafka")
    with pytest.raises(StorageError, match=f": {tmp_path}/x on this"), naming_full_disks(given):
        raise OSError(errno.ENOSPC, "full", f"{tmp_path}/x")


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), naming_full_disks(options(warehouse=str(tmp_path))):
        raise PermissionError(errno.EACCES, "no")
