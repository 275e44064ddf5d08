"""Results of queries: the epochs of a streaming query, and the meanings of names.

A name is a separate log. A streaming query that takes the name replaces its whole content; a batch
job appends its rows or replaces the content. So the owner of the name is determined by one
exclusive creation, and a query that has lost it notices that when it next publishes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from krishiv_spark.durable import exists, is_folder, remove_file
from krishiv_spark.errors import CommitRejected, Fenced, OptionError
from krishiv_spark.memory.entry import EncodedRows, Header, StoreEntry, decode, encode
from krishiv_spark.memory.log import Log
from krishiv_spark.memory.store import Store, quote_name

__all__ = [
    "NamedResult",
    "QueryResult",
    "check_kept_keys",
    "check_keys",
    "forget",
    "is_name",
    "result_bodies",
    "upsert",
]


class QueryResult:
    """The rows of one streaming query, by epoch."""

    def __init__(self, store: Store, query: str) -> None:
        self.store = store
        self.query = query
        self.folder = store.folder("queries", query)
        self.epochs: Log = store.log("queries", quote_name(query), "epochs")

    def publish(self, number: int, entry: StoreEntry, name: str | None) -> None:
        """Make an epoch visible, under the query's id and under its name.

        Raises:
            CommitRejected: If the epoch is committed already, or the result is full.
            Fenced: If another query or batch job has taken the name.
        """
        newest, before = self.epochs.newest_header() or (-1, None)
        if number <= newest:
            raise CommitRejected(f"query {self.query} has published epoch {newest} already")
        alone = entry.after(number, None)
        entry.bound.refuse(alone.rows, alone.size)  # before an older result loses its name
        if name is not None:
            self._hold(NamedResult(self.store, name))
        if self._put(number, entry, before):
            self.epochs.remove_below(self.epochs.first())

    def check_name(self, name: str) -> None:
        """Refuse to add to a name with another meaning, since taking the name removes its rows.

        Raises:
            OptionError: If the name belongs to the rows of another query or job.
        """
        owner = NamedResult(self.store, name).owner()
        if owner not in {None, self.query}:
            job = self.query.removesuffix(f".{name}")
            raise OptionError(
                f"krishiv-memory: {name!r} has rows of {owner}, which batches of 'txnAppId' = "
                f"{job!r} cannot be added to: give each of them a separate result name, or "
                f"remove the rows with memory_clear({name!r})"
            )

    def bodies(self) -> Iterator[bytes]:
        """Yield the bodies of its epochs, oldest first."""
        return (body for _, body in self.epochs.snapshot())

    def check_back(self, first: int) -> list[int]:
        """Return the epochs from one on, ascending, if the result can be rewound before them.

        Args:
            first: The oldest epoch to remove.

        Raises:
            OptionError: If later epochs have replaced earlier ones.
        """
        found = self.epochs.newest_header()
        if found is None or found[0] < first:
            return []
        newest, header = found
        if header.first >= first > 0:
            raise OptionError(
                f"krishiv-memory: the result of query {self.query} has nothing from before "
                f"epoch {first}: epoch {header.first} replaced the previous rows (output mode "
                "'complete', 'mode' = 'upsert' or 'onFull' = 'dropOldest'), so it cannot be "
                "rewound"
            )
        return list(self.epochs.numbers(first, newest + 1))

    def take_back(self, first: int, replay: str) -> None:
        """Remove epochs from the result, the newest first.

        Their files remain in the query's folder.

        Args:
            first: The oldest epoch to remove.
            replay: Name of the folder to which they are moved.
        """
        folder = f"{self.folder}/replayed/{replay}"
        for number in reversed(self.check_back(first)):
            os.makedirs(folder, exist_ok=True)
            self.epochs.move_out(number, f"{folder}/{number}")

    def _put(self, number: int, entry: StoreEntry, before: Header | None) -> bool:
        try:
            return self.epochs.put(number, entry, before)
        except FileExistsError as error:
            raise CommitRejected(f"epoch {number} of {self.query} exists already") from error

    def _hold(self, name: NamedResult) -> None:
        mark = f"{self.folder}/as.{quote_name(name.name)}"
        owner = name.owner()
        if owner != self.query:
            if exists(mark):
                raise Fenced(
                    f"the memory result {name.name!r} of query {self.query} was taken over by "
                    f"{owner}: stop one of them, and start this one under another name "
                    f"or after memory_clear({name.name!r})"
                )
            name.take(self.query)
        if not exists(mark):
            name.release_replaced()
            os.makedirs(self.folder, exist_ok=True)
            # This is the last step: without it, all of this is repeated.
            with open(mark, "wb"):
                pass


class NamedResult:
    """The meaning of a name: a streaming query, batch jobs, or both."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.entries: Log = store.log("names", quote_name(name))

    def owner(self) -> str | None:
        """Return the query or batch job whose rows come first; None for an unused name."""
        found = self.entries.newest_header()
        if found is None:
            return None
        newest, header = found
        if header.first == newest:
            return header.query
        try:
            return self.entries.header(header.first).query
        except FileNotFoundError:  # replaced or cleared in this moment
            return None

    def take(self, query: str) -> None:
        """Assign the name to a streaming query, and to nothing else."""
        self.entries.append(StoreEntry(replaces=True, query=query, stream=True))

    def add(self, entry: StoreEntry) -> None:
        """Make the rows of a batch job visible, with its marker: both are links to one file.

        Raises:
            CommitRejected: If the job has published already, or the result is full.
        """
        if self.holds(entry.query):
            raise CommitRejected(f"{entry.query} has published already")
        if self.entries.append(entry, mark=quote_name(entry.query)):
            self.release_replaced()

    def holds(self, job: str) -> bool:
        """Return True if the rows of a batch job have become visible."""
        try:
            return os.stat(f"{self.store.aside}/{quote_name(job)}").st_nlink > 1
        except FileNotFoundError:
            return False

    def release_replaced(self) -> None:
        """Remove the data that the name no longer refers to. It may be called repeatedly."""
        first, owner = self.entries.first(), self.owner()
        for header in self._headers(first):
            if header.query != owner:  # it may have taken the name twice
                self._release(header)
        self.entries.remove_below(first)

    def remove(self) -> None:
        """Remove all data that the name refers to, and the markers of queries that have lost it."""
        for header in self._headers(self.entries.next_number()):
            self._release(header)
        shutil.rmtree(self.entries.folder, ignore_errors=True)
        for query in self.store.known("queries"):
            folder = self.store.folder("queries", query)
            remove_file(f"{folder}/as.{quote_name(self.name)}")
            with contextlib.suppress(OSError):  # it has another name, or rows
                os.rmdir(folder)

    def bodies(self) -> Iterator[bytes]:
        """Yield the bodies of all entries, oldest first."""
        for header, body in self.entries.snapshot():
            if header.stream:
                yield from QueryResult(self.store, header.query).bodies()
            else:
                yield body

    def _headers(self, end: int) -> Iterator[Header]:
        for number in self.entries.numbers(0, end):
            with contextlib.suppress(FileNotFoundError):  # another process removes it too
                yield self.entries.header(number)

    def _release(self, header: Header) -> None:
        if header.stream:
            epochs = QueryResult(self.store, header.query).epochs
            shutil.rmtree(epochs.folder, ignore_errors=True)
        else:
            remove_file(f"{self.store.aside}/{quote_name(header.query)}")


def is_name(store: Store, key: str) -> bool:
    """Return True if a result has the name."""
    return is_folder(store.folder("names", key))


def _is_query(store: Store, key: str) -> bool:
    return is_folder(QueryResult(store, key).epochs.folder)


def result_bodies(store: Store, key: str) -> list[bytes]:
    """Return the bodies of a result, oldest first.

    Args:
        store: The folder that sinks of this machine share.
        key: A name, or the id of a query.

    Raises:
        OptionError: If there is no such result; the message names the existing ones.
    """
    if is_name(store, key):
        return list(NamedResult(store, key).bodies())
    if _is_query(store, key):
        return list(QueryResult(store, key).bodies())
    raise _unknown(store, key)


def forget(store: Store, key: str) -> None:
    """Remove a result. It raises the errors of `result_bodies`."""
    if is_name(store, key):
        NamedResult(store, key).remove()
    elif _is_query(store, key):
        shutil.rmtree(store.folder("queries", key), ignore_errors=True)
    else:
        raise _unknown(store, key)


def _unknown(store: Store, key: str) -> OptionError:
    queries = [query for query in store.known("queries") if _is_query(store, query)]
    known = ", ".join(store.known("names") + queries) or "none"
    return OptionError(
        f"krishiv-memory: no result {key!r} on this machine; known: {known}. A result starts "
        "with the first epoch that its query publishes"
    )


_ROW = "krishiv.row"


def check_keys(keys: Sequence[str], rows: pa.Schema) -> None:
    """Refuse columns that cannot identify a row. Planner.

    Raises:
        OptionError: If there is no key column, or one is missing, nested or a floating-point
            number.
    """
    if not keys:
        raise OptionError("krishiv-memory: 'mode' = 'upsert' needs the option 'keyColumns'")
    for name in keys:
        if name not in rows.names:
            known = ", ".join(rows.names)
            raise OptionError(f"krishiv-memory: 'keyColumns' names {name!r}, but there are {known}")
        kind = rows.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise OptionError(
                f"krishiv-memory: 'keyColumns' names {name!r}: {kind} cannot be a key"
            )


def check_kept_keys(keys: Sequence[str], kept: Sequence[str]) -> None:
    """Refuse an epoch by which a result could have two rows with one key. Planner.

    Args:
        keys: Key columns of the query; empty if it appends.
        kept: Key columns of the newest upsert of the result; empty if there was none.

    Raises:
        OptionError: If the result has upserts by other columns.
    """
    if not kept or sorted(keys) == sorted(kept):
        return
    given, names = ",".join(keys), ",".join(kept)
    raise OptionError(
        f"krishiv-memory: the result is upserted by {names!r}, and this query "
        f"{f'upserts by {given!r}' if keys else 'appends'}: rows of one key would be there twice. "
        f"Nothing was written: give 'mode' = 'upsert' and 'keyColumns' = {names!r}, or another "
        "name; or, if that is meant, 'allowMixedKeys' = 'true'"
    )


def upsert(
    held: Iterable[bytes], staged: Iterable[bytes], keys: Sequence[str], schema: pa.Schema
) -> EncodedRows:
    """Return a result with the rows of an epoch; of rows with the same key, the last one is kept.

    Args:
        held: Bodies of the result, oldest first.
        staged: Bodies of the epoch, by task.
        keys: Columns that identify a row; null is a value like any other.
        schema: Columns of the epoch. Columns that only older rows have are kept, and are null in
            new rows.
    """
    batches = [batch for bodies in (held, staged) for body in bodies for batch in decode(body)]
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    rows = pa.concat_tables([schema.empty_table(), *tables], promote_options="default")
    numbered = rows.select(list(keys)).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    newest = numbered.group_by(list(keys)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    kept = rows.take(pa.array(np.sort(newest.to_numpy())))
    return encode(kept.to_batches(), kept.schema)
