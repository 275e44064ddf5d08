"""Tables whose writers' clocks were wrong, read by Iceberg's own library."""

import pytest
from iceberg_life import IcebergLife, numbered, table_of
from py4j.protocol import Py4JJavaError
from pyiceberg.table.update import update_table_metadata
from wrong_clocks import DAY_S, shifted_clock

from krishiv_spark.iceberg import _pyiceberg, guarded_catalog


@pytest.fixture
def shift(monkeypatch):
    return shifted_clock(monkeypatch)


def write(folder, shift, clocks, first=0):
    """Write one epoch for each clock."""
    life = IcebergLife(folder)
    for epoch, seconds in enumerate(clocks, first):
        shift(seconds)
        life.epoch(epoch, numbered(epoch))


def test_java_reads_a_table_after_a_commit_by_a_clock_that_is_a_day_ahead(tmp_path, shift, java):
    write(tmp_path, shift, [0, DAY_S, 0, 0])
    assert sorted(java.values(table_of(tmp_path).metadata_location, "id")) == list(range(40))


def test_java_reads_a_table_that_an_earlier_version_broke_after_the_next_commit(
    tmp_path, shift, java, monkeypatch
):
    with monkeypatch.context() as earlier:
        earlier.setattr(_pyiceberg, "raise_times", lambda _, updates: updates)
        earlier.setattr(guarded_catalog, "apply_updates", _updated_by_pyiceberg)
        write(tmp_path, shift, [0, DAY_S, 0])
    with pytest.raises(Py4JJavaError, match="Expected sorted"):
        java.values(table_of(tmp_path).metadata_location, "id")
    write(tmp_path, shift, [0], first=3)
    assert sorted(java.values(table_of(tmp_path).metadata_location, "id")) == list(range(40))


def _updated_by_pyiceberg(table, updates):
    return update_table_metadata(table.metadata, updates, metadata_location=table.metadata_location)
