"""Reading what was written, with as little as possible of the code that is measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.topics import Topics

__all__ = ["consumed", "memory_totals", "table_totals", "totals"]

_AT_ONCE = 200  # partitions: kafka-python looks at all that are assigned for each of them


def totals(table: Path, column: str) -> tuple[int, int]:
    """Return the number of rows and the sum of a column over all Parquet files, by DuckDB.

    Files in folders that Spark and we ourselves hide (``_temporary``, ``_krishiv``) would be read
    as well: if one is left there that looks like data, the numbers are wrong, and should be.
    """
    import duckdb

    files = f"read_parquet('{table}/**/*.parquet', hive_partitioning = true)"
    query = f'SELECT count(*), coalesce(sum("{column}"), 0) FROM {files}'
    ((rows, total),) = duckdb.execute(query).fetchall()
    return int(rows), int(total)


def memory_totals(result: str, column: str) -> tuple[int, int]:
    """Return the same for a memory result, which only the package itself can read."""
    from krishiv_spark import memory_table

    table = memory_table(result)
    return table.num_rows, sum(table[column].to_pylist())


def table_totals(
    warehouse: Path, column: str, table: str = "db.rows", catalog: str = "krishiv"
) -> tuple[int, int]:
    """Return the same for an Iceberg table in an embedded catalog, by PyIceberg alone."""
    import pyarrow.compute as pc
    from pyiceberg.catalog.sql import SqlCatalog

    with SqlCatalog(catalog, uri=f"sqlite:///{warehouse}/catalog.db") as opened:
        numbers = opened.load_table(table).scan(selected_fields=(column,)).to_arrow()[column]
    return len(numbers), pc.sum(numbers).as_py() or 0


def consumed(topics: Topics, name: str) -> tuple[int, int]:
    """Return the number of records and the sum of their numbers, by kafka-python's consumer.

    It reads what is committed, to the end as it is now: brokers make a committed transaction
    visible one partition after the other, which is waited for.
    """
    from kafka import KafkaConsumer, TopicPartition

    topics.settle()
    given = {"isolation_level": "read_committed", "enable_auto_commit": False}
    consumer = KafkaConsumer(bootstrap_servers=topics.bootstrap, **given)
    places = [TopicPartition(name, n) for n in consumer.partitions_for_topic(name) or ()]
    numbers: list[int] = []
    for begin in range(0, len(places), _AT_ONCE):
        some = places[begin : begin + _AT_ONCE]
        consumer.assign(some)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(some)
        while any(consumer.position(place) < end for place, end in ends.items()):
            for records in consumer.poll(timeout_ms=200).values():
                numbers += [int(record.value[:10]) for record in records]
    consumer.close()
    return len(numbers), sum(numbers)
