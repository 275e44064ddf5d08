"""A random history of one Iceberg table, which this package, PyIceberg and Iceberg-Java change.

A dictionary of counters has the rows that the table must have. PyIceberg reads the table after each
step, and all readers do after some of them and at the end. The weights of `readChanges` must sum up
to the table at each check, and a plain stream must return the rows that were appended.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from duckdb import DuckDBPyConnection
from iceberg_life import IcebergLife
from iceberg_reading import batch, reader, rows_of
from iceberg_tables import NAME, catalog, compact, delete_rows
from java_iceberg import JavaTables
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, StringType

from krishiv_spark.errors import CommitRejected, DataLossError, OptionError
from krishiv_spark.iceberg.property_keys import EPOCH_KEY
from krishiv_spark.sinks.iceberg.maintenance.compaction import CompactionRequest, compact_in_steps
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.table_copies import open_own_table
from krishiv_spark.sources.base import UNLIMITED, Limit

__all__ = ["LakeHistory", "Mismatch", "play"]

Row = frozenset  # of pairs (field id, value), without nulls
_KEYS = 16
_LAYOUTS = ("", "", "bucket(3, id)", "part", "truncate(2, id)")
_QUERY = "query-1"


class Mismatch(AssertionError):  # noqa: N818  it names what differs
    """A reader returns other rows than the model has."""


@dataclass
class _Streams:
    """A stream of changes and a plain one, with what they have returned."""

    names: list[str]
    head: int | None
    changes: Any
    plain: Any
    changes_at: Any
    plain_at: Any
    sums: Counter = field(default_factory=Counter)
    appended: Counter = field(default_factory=Counter)
    expected: Counter = field(default_factory=Counter)


class LakeHistory:
    """The steps of one history.

    Args:
        folder: The warehouse, which is empty.
        seed: Of all choices.
        duck: A connection of `open_duckdb`.
        java: Iceberg-Java, or None without it.

    Attributes:
        tale: The steps so far, in words.
        counts: Number of checks by each reader, and of steps by their kind.
    """

    def __init__(
        self, folder: Path, seed: int, duck: DuckDBPyConnection, java: JavaTables | None
    ) -> None:
        self.folder, self.catalog = folder, catalog(folder)
        self.duck, self.java = duck, java
        self.pick = random.Random(seed)
        self.tale: list[str] = []
        self.counts: Counter[str] = Counter()
        self.rows: Counter[Row] = Counter()
        self.states: dict[int, Counter[Row]] = {}
        self.branches: dict[str, Counter[Row]] = {}
        self.appended: dict[int, Counter[Row]] = {}
        self.epochs, self.names = 0, 0
        self.keys = self.pick.choice([("id",), ("id",), ("id", "part")])
        layout = self.pick.choice(_LAYOUTS)
        given = {
            "path": NAME,
            "mode": "upsert",
            "keyColumns": ",".join(self.keys),
            "opColumn": "op",
            "upsertMode": self.pick.choice(["merge-on-read", "merge-on-read", "copy-on-write"]),
            "compact": self.pick.choice(["off", "auto"]),
            "schemaEvolution": "add",
            "commitTimeout": "20 s",
        }
        if layout:
            given["partitionBy"] = layout
        if self.pick.random() < 0.2:
            given["sortBy"] = "text"
        if self.pick.random() < 0.3:
            given["keepSnapshots"] = str(self.pick.randint(1, 5))
        if self.pick.random() < 0.3:
            given["tableProperty.write.metadata.compression-codec"] = "gzip"
        self.life = IcebergLife(folder, query=_QUERY, **given)
        self.is_flat = not layout  # unpartitioned, in all its specs
        self.tale.append(f"options {given}")

    def begin(self) -> None:
        """Create the table by a first epoch."""
        self.epoch()
        self.streams = self._open_streams()

    # --- the table and the model

    @property
    def table(self) -> Any:
        return self.catalog.load_table(NAME)

    def field_ids(self) -> dict[str, int]:
        return {one.name: one.field_id for one in self.table.schema().fields}

    def values(self, rows: Counter[Row]) -> Counter[tuple]:
        """Return rows as tuples of the present columns."""
        ids = list(self.field_ids().values())
        found: Counter[tuple] = Counter()
        for row, count in rows.items():
            known = dict(row)
            found[tuple(known.get(number) for number in ids)] += count
        return found

    def random_row(self) -> dict[str, Any]:
        """Return values of the present columns."""
        row: dict[str, Any] = {}
        for one in self.table.schema().fields if self.epochs else ():
            row[one.name] = self._random_value(one.name, one.field_type)
        if not self.epochs:
            row = {name: self._random_value(name, None) for name in ("id", "part", "text")}
        return row

    def _random_value(self, name: str, kind: Any) -> Any:
        if name == "id":
            return self.pick.randrange(_KEYS)
        if name == "part":
            return self.pick.randrange(3)
        if kind is None or isinstance(kind, StringType):
            return self.pick.choice([None, "a", "b", "c", f"text {self.pick.randrange(10**6)}"])
        return self.pick.choice([None, 0, 7, 2**40])

    def to_row(self, values: dict[str, Any]) -> Row:
        ids = self.field_ids()
        return Row((ids[name], value) for name, value in values.items() if value is not None)

    def remember(self, *, appended: Counter[Row] | None = None, id: int | None = None) -> None:  # noqa: A002
        """Note the state of the newest snapshot of main."""
        table = self.table
        head = table.current_snapshot()
        if head is None:
            return
        self.states[head.snapshot_id] = Counter(self.rows)
        if appended is not None:
            self.appended[id or head.snapshot_id] = appended

    # --- steps

    def step(self) -> None:
        """Do something at random, and have PyIceberg read the table."""
        kinds: dict[Callable[[], None], int] = {
            self.epoch: 7,
            self.race: 4,
            self.repeat_epoch: 1,
            self.append: 2,
            self.compact: 2,
            self.delete: 1,
            self.add_column: 1,
            self.rename_column: 1,
            self.drop_column: 1,
            self.change_partitions: 1,
            self.change_mode: 1,
            self.expire: 2,
            self.roll_back: 1,
            self.grow_branch: 1,
        }
        if self.is_flat:
            kinds |= {self.compact_by_pyiceberg: 1, self.delete_positions: 1}
        if self.java is not None:
            kinds |= {self.rewrite_manifests_by_java: 1, self.expire_by_java: 1}
        work = self.pick.choices(list(kinds), list(kinds.values()))[0]
        self.tale.append(work.__name__)
        self.counts[f"step {work.__name__}"] += 1
        if self.pick.random() < 0.5:
            self.check_streams()
        work()
        if list(self.field_ids()) != self.streams.names:
            self._restart_streams()
        self.check_by_pyiceberg()

    def epoch(self) -> None:
        """Upsert and delete rows of some keys, perhaps with a column that is new."""
        changes = [self.random_row() for _ in range(self.pick.randint(1, 8))]
        ops = [self.pick.choice("uuud") for _ in changes] if self.epochs else ["u"] * len(changes)
        if self.epochs and self.pick.random() < 0.05:
            self.names += 1
            changes = [{**row, f"c{self.names}": self.pick.choice([None, 5])} for row in changes]
        rows = self._to_arrow(changes, ops)
        self.tale.append(f"  epoch {self.epochs}: {list(zip(changes, ops, strict=True))}")
        for attempt in range(3):
            try:
                self.life.epoch(self.epochs, rows, tasks=self.pick.choice([1, 1, 2]))
                break
            except CommitRejected as error:  # the layout was changed meanwhile: a restart
                self.tale.append(f"  rejected: {error}")
                if attempt == 2 or "restart the query" not in str(error):
                    raise
        ids = self.field_ids()
        own = self._find_snapshot(self.epochs)
        self.epochs += 1
        newest: dict[tuple, tuple[dict, str]] = {}
        for row, op in zip(changes, ops, strict=True):
            newest[tuple(row[name] for name in self.keys)] = (row, op)
        key_ids = [ids[name] for name in self.keys]
        for row in list(self.rows):
            if tuple(dict(row).get(number) for number in key_ids) in newest:
                del self.rows[row]
        added = Counter(self.to_row(row) for row, op in newest.values() if op == "u")
        self.rows += added
        self.remember(appended=added, id=own)

    def _to_arrow(self, changes: list[dict], ops: list[str]) -> pa.Table:
        columns = {}
        for name in changes[0]:
            values = [row[name] for row in changes]
            is_text = name == "text" or any(isinstance(value, str) for value in values)
            kind = self._type_of(name)
            kind = kind or (pa.string() if is_text else pa.int64())
            columns[name] = pa.array(values, kind)
        return pa.table({**columns, "op": pa.array(ops)})

    def _type_of(self, name: str) -> Any:
        if not self.epochs or name not in (schema := self.table.schema()).column_names:
            return None
        return pa.int64() if isinstance(schema.find_type(name), LongType) else pa.string()

    def _find_snapshot(self, epoch: int) -> int | None:
        for snapshot in self.table.metadata.snapshots:
            if snapshot.summary.additional_properties.get(EPOCH_KEY) == str(epoch):
                return snapshot.snapshot_id
        return None

    def race(self) -> None:
        """Let another program commit while an epoch or a compaction does."""
        others = [self.append, self.expire, self.add_column, self.rename_column]
        others += [self.compact_by_pyiceberg, self.delete_positions] if self.is_flat else []
        others += [self.rewrite_manifests_by_java] if self.java is not None else []
        work = self.pick.choice([self.epoch, self.epoch, self.compact])
        if work == self.compact:
            others.append(self.epoch)
        other, real = self.pick.choice(others), SqlCatalog.commit_table

        def commit_table(*arguments: Any) -> Any:
            SqlCatalog.commit_table = real
            self.tale.append(f"  meanwhile {other.__name__}")
            other()
            return real(*arguments)

        SqlCatalog.commit_table = commit_table
        try:
            work()
        finally:
            SqlCatalog.commit_table = real

    def repeat_epoch(self) -> None:
        """Publish the newest epoch again, as a restart does: it changes nothing."""
        rows = self._to_arrow([self.random_row()], ["u"])
        self.life.epoch(self.epochs - 1, rows)

    def append(self) -> None:
        """Append by PyIceberg, also rows whose key the table has."""
        rows = [self.random_row() for _ in range(self.pick.randint(1, 4))]
        table = self.table
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        table.append(pa.Table.from_pylist(rows, schema=schema))
        self.tale.append(f"  appended {rows}")
        added = Counter(map(self.to_row, rows))
        self.rows += added
        self.remember(appended=added)

    def compact(self) -> None:
        """Compact by the command's functions."""
        options = self._options()
        groups = CompactionRequest(deleted_share=self.pick.choice([0.0, 0.1, 0.5])).find_groups(
            open_own_table(options), options
        )
        done = list(compact_in_steps(options, groups))
        self.tale.append(f"  {len(groups)} groups: {done}")
        self.remember()

    def _options(self) -> IcebergSinkOptions:
        given = {k: v for k, v in self.life.options.items() if k in ("path", "warehouse")}
        return IcebergSinkOptions.parse(given, "krishiv-iceberg")

    def compact_by_pyiceberg(self) -> None:
        """Rewrite all rows into one file, which leaves dangling deletes."""
        if self.rows:
            compact(self.folder)
            self.remember()

    def delete(self) -> None:
        """Delete by PyIceberg, which rewrites files."""
        number = self.field_ids()["id"]
        there = {dict(row)[number] for row in self.rows}
        if not there:
            return
        key = self.pick.choice(sorted(there))
        self.tale.append(f"  id {key}")
        self.table.delete(EqualTo("id", key))
        for row in list(self.rows):
            if dict(row).get(number) == key:
                del self.rows[row]
        self.remember()

    def delete_positions(self) -> None:
        """Delete one row of a file by a position delete of another program."""
        tasks = [
            task for task in self.table.scan().plan_files() if not task.delete_files
        ]  # otherwise its rows are not known by position here
        if not tasks:
            return
        task = self.pick.choice(tasks)
        rows = self._read_file(task)
        at = self.pick.randrange(len(rows))
        delete_rows(self.folder, {task.file.file_path: [at]})
        self.tale.append(f"  position {at} of {task.file.file_path[-20:]}: {rows[at]}")
        ids = {*self.field_ids().values()}
        gone = self.to_row(rows[at])
        # Values of dropped columns are in the model still, and in no reader's rows.
        self.rows[next(row for row in self.rows if gone == {p for p in row if p[0] in ids})] -= 1
        self.rows += Counter()
        self.remember()

    def _read_file(self, task: Any) -> list[dict]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        table = self.table
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        return scan.to_table([task]).to_pylist()

    def add_column(self) -> None:
        """Add an optional column, by PyIceberg."""
        self.names += 1
        with self.table.update_schema() as update:
            kind = self.pick.choice([LongType(), StringType()])
            update.add_column(f"c{self.names}", kind)

    def _extra_columns(self) -> list[str]:
        return [name for name in self.field_ids() if name not in {"id", "part", "text"}]

    def rename_column(self) -> None:
        """Rename a column that is no key."""
        if extra := self._extra_columns():
            self.names += 1
            with self.table.update_schema() as update:
                update.rename_column(self.pick.choice(extra), f"c{self.names}")

    def drop_column(self) -> None:
        """Drop a column that is no key."""
        if extra := self._extra_columns():
            with self.table.update_schema() as update:
                update.delete_column(self.pick.choice(extra))

    def change_partitions(self) -> None:
        """Add a partition field, or remove one; the sink then checks the table's own layout."""
        fields = self.table.spec().fields
        with self.table.update_spec() as update:
            if fields and self.pick.random() < 0.5:
                update.remove_field(self.pick.choice(fields).name)
            else:
                self.names += 1
                transform = self.pick.choice([IdentityTransform(), BucketTransform(2)])
                column = self.pick.choice(["id", "part"])
                if any(field.source_id == self.field_ids()[column] for field in fields):
                    return  # PyIceberg reads no manifest of two fields of a column
                update.add_field(column, transform, f"p{self.names}_{column}")
        self.life.options.pop("partitionBy", None)
        self.is_flat = False

    def change_mode(self) -> None:
        """Continue the query with the other mode of upserts."""
        now = self.life.options["upsertMode"]
        others = {"merge-on-read": "copy-on-write", "copy-on-write": "merge-on-read"}
        self.life.options["upsertMode"] = others[now]

    def expire(self) -> None:
        """Expire some snapshots by PyIceberg."""
        table = self.table
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        may = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in kept]
        if may:
            ids = self.pick.sample(may, self.pick.randint(1, len(may)))
            table.maintenance.expire_snapshots().by_ids(ids).commit()

    def roll_back(self) -> None:
        """Roll main back to an ancestor whose state is known."""
        table, may = self.table, []
        by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
        head = table.current_snapshot()
        at = head.parent_snapshot_id
        while at in by_id:
            if at in self.states:
                may.append(at)
            at = by_id[at].parent_snapshot_id
        if may:
            target = self.pick.choice(may)
            table.manage_snapshots().rollback_to_snapshot(target).commit()
            self.rows = Counter(self.states[target])
            self.tale.append(f"  to {target}")
            self._restart_streams()

    def grow_branch(self) -> None:
        """Create a branch, append to it, or remove it; main must not notice."""
        table = self.table
        if not self.branches or self.pick.random() < 0.4:
            self.names += 1
            name = f"b{self.names}"
            head = table.current_snapshot().snapshot_id
            table.manage_snapshots().create_branch(head, name).commit()
            self.branches[name] = Counter(self.rows)
            return
        name = self.pick.choice(list(self.branches))
        if self.pick.random() < 0.2:
            table.manage_snapshots().remove_branch(name).commit()
            del self.branches[name]
            return
        rows = [self.random_row()]
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        table.append(pa.Table.from_pylist(rows, schema=schema), branch=name)
        self.branches[name] += Counter(map(self.to_row, rows))

    def rewrite_manifests_by_java(self) -> None:
        """Merge or split manifests by Iceberg-Java."""
        assert self.java is not None
        self.java.open_table(self.folder, NAME).rewriteManifests().commit()
        self.remember()

    def expire_by_java(self) -> None:
        """Expire all but the newest snapshots by Iceberg-Java, which deletes their files."""
        assert self.java is not None
        expiry = self.java.open_table(self.folder, NAME).expireSnapshots()
        expiry.expireOlderThan(2**62).retainLast(self.pick.randint(1, 3)).commit()

    # --- checks

    def check_by_pyiceberg(self) -> None:
        """Compare main as PyIceberg reads it; no path may be live twice."""
        self._compare("PyIceberg", self.table.scan().to_arrow())
        self._check_paths()

    def _check_paths(self) -> None:
        table = self.table
        head = table.current_snapshot()
        paths = Counter(
            entry.data_file.file_path
            for manifest in head.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        )
        twice = [path for path, count in paths.items() if count > 1]
        if twice:
            raise Mismatch(f"live twice: {twice}")

    def check_all(self) -> None:
        """Compare all readers, of all branches where they can read them."""
        names = list(self.field_ids())
        self._compare("krishiv-iceberg", batch(self.folder))
        for branch, rows in self.branches.items():
            found = batch(self.folder, branch=branch)
            # A branch has its own rows, in the columns of the table now or of its snapshot.
            self.counts["krishiv-iceberg, branch"] += 1
            if found.num_rows != rows.total():
                raise Mismatch(f"branch {branch}: {found.num_rows} rows of {rows.total()}")
        columns = ", ".join(f'"{name}"' for name in names)
        location = self.table.metadata_location
        found = self.duck.sql(f"SELECT {columns} FROM iceberg_scan('{location}')").fetchall()
        self._compare_tuples("DuckDB", Counter(found))
        if self.java is not None:
            self._compare_tuples("Iceberg-Java", Counter(self.java.rows(location, names)))
        self.check_streams()

    def check_streams(self) -> None:
        """Compare the sums of the weights, and the appended rows.

        Streams that were left behind by an expiry must fail; they begin again.
        """
        streams, new = self.streams, self._list_new()
        try:
            self._drain(streams)
        except (DataLossError, OptionError):
            if new is not None:
                raise
            self.counts["streams left behind"] += 1
            self._restart_streams()
            return
        self._compare_tuples("readChanges", Counter({k: n for k, n in streams.sums.items() if n}))
        self.counts["stream"] += 1
        streams.head = self.table.current_snapshot().snapshot_id
        for snapshot in new or ():
            if snapshot.summary.operation is Operation.APPEND:
                streams.expected += self.values(self.appended[snapshot.snapshot_id])
        if new is None:  # a stream that has read on may be at a snapshot without its parent
            streams.expected = Counter(streams.appended)
        if streams.appended != streams.expected:
            raise Mismatch(f"stream: {self._difference(streams.appended, streams.expected)}")

    def _list_new(self) -> list[Any] | None:
        """Return the snapshots since the last check; None if some of them have expired."""
        table, found = self.table, []
        by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
        at = table.current_snapshot().snapshot_id
        while at != self.streams.head:
            if at not in by_id:
                return None
            found.append(by_id[at])
            at = by_id[at].parent_snapshot_id
        return found if self.streams.head in by_id else None

    def _drain(self, streams: _Streams) -> None:
        limit = self.pick.choice([UNLIMITED, Limit(files=1)])
        names = list(self.field_ids())
        while (end := streams.changes.latest(streams.changes_at, limit)) != streams.changes_at:
            found = rows_of(streams.changes, streams.changes_at, end)
            streams.changes_at = end
            weights = found["_weight"].to_pylist()
            for values, weight in zip(to_tuples(found, names), weights, strict=True):
                streams.sums[values] += weight
        while (end := streams.plain.latest(streams.plain_at, limit)) != streams.plain_at:
            streams.appended.update(to_tuples(rows_of(streams.plain, streams.plain_at, end), names))
            streams.plain_at = end

    def _open_streams(self) -> _Streams:
        """Open streams: that of changes at the oldest snapshot, the plain one at the newest."""
        now = self.table.current_snapshot().snapshot_id
        changes = reader(self.folder, readChanges="true")
        skips = {
            "streaming_skip_overwrite_snapshots": "true",
            "streaming_skip_delete_snapshots": "true",
        }
        plain = reader(self.folder, start_snapshot_id=str(now), **skips)
        return _Streams(
            list(self.field_ids()), now, changes, plain, changes.initial(), plain.initial()
        )

    def _restart_streams(self) -> None:
        self.streams = self._open_streams()

    def _compare(self, name: str, found: pa.Table) -> None:
        self._compare_tuples(name, Counter(to_tuples(found, list(self.field_ids()))))

    def _compare_tuples(self, name: str, found: Counter) -> None:
        self.counts[name] += 1
        expected = self.values(self.rows)
        if found != expected:
            raise Mismatch(f"{name}: {self._difference(found, expected)}")

    @staticmethod
    def _difference(found: Counter, expected: Counter) -> str:
        lacking = {k: n - found[k] for k, n in expected.items() if n != found[k]}
        more = {k: n for k, n in found.items() if k not in expected}
        return f"lacks {lacking}, has besides {more}"


def to_tuples(found: pa.Table, names: list[str]) -> list[tuple]:
    """Return some columns as rows."""
    return list(zip(*(found[name].to_pylist() for name in names), strict=True))


def play(
    folder: Path, seed: int, duck: DuckDBPyConnection, java: JavaTables | None, steps: int = 14
) -> LakeHistory:
    """Play a history; an error has its seed and its `tale`."""
    history = LakeHistory(folder, seed, duck, java)
    checked = set(history.pick.sample(range(steps), min(5, steps)))
    try:
        history.begin()
        for number in range(steps):
            history.step()
            if number in checked or number == steps - 1:
                history.check_all()
    except BaseException as error:
        error.args = (f"{error}\nseed {seed}:\n" + "\n".join(history.tale),)
        raise
    return history
