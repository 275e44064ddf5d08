"""The speed at which rows of an Iceberg table are replaced by their keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from benchmarks.bench import Run, benchmark
from benchmarks.iceberg_tables import OURS, TABLES, THEIRS, Warehouse, names, warehouse
from benchmarks.measure import Figure, expect, figure, in_turn, ratios, seconds
from benchmarks.peer import ICEBERG

__all__ = ["upsert"]

_FILES = 8
_STEP = 111  # between keys: about nine of ten are in the table, and the rest after its end


@benchmark("iceberg.upsert", "pyiceberg", peers=(ICEBERG,), alone=True)
def upsert(run: Run) -> Iterator[Figure]:
    """10 000 rows into a million, their keys all over it; against MERGE INTO of Iceberg's own."""
    rows = 200_000 if run.quick else 1_000_000
    with warehouse(run, "krishiv_upsert") as place:
        for name in names(run):
            _fill(place, TABLES[name], rows)
        variants = {name: _Upserts(run, place, name, rows).once for name in names(run)}
        in_turn(1, variants, lambda text: run.told(f"warming up: {text}"))
        taken = in_turn(3 if run.quick else 5, variants, run.told)
    for name, times in taken.items():
        yield figure(f"{name}, {rows // 100:,} rows into {rows:,}", "s", times)
    if THEIRS in taken:
        speed = ratios(taken[THEIRS], taken[OURS])
        yield figure(f"speed, {OURS} / {THEIRS}", "x", speed)


def _fill(place: Warehouse, table: str, rows: int) -> None:
    place.make(table, _rows(0, 0).schema)
    for number in range(_FILES):
        place.add(table, _rows(number * rows // _FILES, (number + 1) * rows // _FILES))


def _rows(first: int, end: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, end), pa.int64()),
            "round": pa.array([0] * (end - first), pa.int64()),
            "customer": pa.array(
                [f"a customer, number {n}" for n in range(first, end)], pa.string()
            ),
        }
    )


class _Upserts:
    """Upserts into one table, by one connector: the same keys in each round."""

    def __init__(self, run: Run, place: Warehouse, name: str, rows: int) -> None:
        self._spark, self._place, self._name, self._rows = run.spark(), place, name, rows
        self._rounds = 0

    def once(self) -> float:
        """One round, in seconds."""
        self._rounds += 1
        changes = self._spark.range(0, self._changed, 1, 2).selectExpr(
            f"id * {_STEP} AS id",
            f"cast({self._rounds} AS bigint) AS round",
            "concat('somebody else, number ', id) AS customer",
        )
        taken = seconds(lambda: self._write(changes))
        self._verify()
        return taken

    @property
    def _changed(self) -> int:
        return self._rows // 100

    def _verify(self) -> None:
        """Each row is there once, and those that were upserted have the number of the round."""
        added = range(0, self._changed * _STEP, _STEP)[-(-self._rows // _STEP) :]
        rows, total = self._rows, self._rows * (self._rows - 1) // 2
        ids = self._place.totals(TABLES[self._name], "id")
        expect(f"{self._name}, rows and sum of ids", ids, (rows + len(added), total + sum(added)))
        _, rounds = self._place.totals(TABLES[self._name], "round")
        expect(f"{self._name}, sum of rounds", rounds, self._rounds * self._changed)

    def _write(self, changes: Any) -> None:
        write = self._ours if self._name == OURS else self._theirs
        write(changes)

    def _ours(self, changes: Any) -> None:
        given = {**self._place.options, "mode": "upsert", "keyColumns": "id"}
        writer = changes.write.format(OURS).mode("append").options(**given)
        writer.save(f"db.{TABLES[OURS]}")

    def _theirs(self, changes: Any) -> None:
        changes.createOrReplaceTempView("krishiv_changes")
        self._spark.sql(
            f"MERGE INTO {self._place.name}.db.{TABLES[THEIRS]} AS old "
            "USING krishiv_changes AS new ON old.id = new.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
