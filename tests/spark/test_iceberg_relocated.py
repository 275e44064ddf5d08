"""Relocated tables, as Iceberg-Java reads them by their new metadata files."""

import iceberg_tables
from iceberg_life import ids, numbered
from java_iceberg import open_java

from krishiv_spark.iceberg.relocation.warehouse import relocate


def test_iceberg_java_reads_a_relocated_table_with_its_deletes_and_its_history(tmp_path):
    wh, new = tmp_path / "wh", tmp_path / "new"
    iceberg_tables.make_with_deletes(wh, numbered(0), numbered(1))
    iceberg_tables.append(wh, numbered(2))
    expected = ids(wh, iceberg_tables.NAME)
    relocate(str(wh), str(new), copy=True, dry_run=False, say=print)
    (wh / "db").rename(tmp_path / "aside")  # nothing of it is read
    location = iceberg_tables.table_in(new).metadata_location
    with open_java() as java:
        assert java.numbers(java.table(location)) == expected
        oldest = iceberg_tables.table_in(new).metadata.snapshots[0].snapshot_id
        read = java._iceberg.data.IcebergGenerics.read(java.table(location))
        rows = read.useSnapshot(oldest).build().iterator()
        assert sorted(
            iter(lambda: rows.next().getField("id") if rows.hasNext() else None, None)
        ) == list(range(20))
