"""Those who look at a table again and again while its writer is being killed."""

import json
import threading
from collections import Counter
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from store_tables import Onlooker
from tables import epoch_in, epoch_of, logged_epoch, look, visible_names
from typing_extensions import Self

_PAUSE_S = 0.1


class Looker:
    """Looks, in a thread of its own, as long as it is open.

    Attributes:
        looks: How often it has looked.
        problems: What it saw that nobody may ever see.
        failures: Why it could not look.
    """

    def __init__(self) -> None:
        self.looks = 0
        self.problems: list[str] = []
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def once(self) -> None:
        """Look; what is wrong is told to `report`."""
        raise NotImplementedError

    def report(self, what: str) -> None:
        print(f"look {self.looks}: {what}")
        self.problems.append(f"look {self.looks}: {what}")

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            try:
                self.once()
            except Exception as error:  # noqa: BLE001  a thread's would be lost
                self.failures.append(f"{type(error).__name__}: {error}")
            else:
                self.looks += 1

    def _check_epochs(self, names: set[str], logged: int) -> None:
        stray = sorted(name for name in names if epoch_of(name) > logged)
        if stray:
            self.report(f"{stray} visible, epoch {logged} is logged")


class DiskLooker(Looker):
    """Looks at a folder, by DuckDB."""

    def __init__(self, table: Path) -> None:
        super().__init__()
        self._table = table

    def once(self) -> None:
        names = visible_names(self._table)
        self._check_epochs(names, logged_epoch(self._table))
        rows, distinct, _ = look(self._table)
        if rows != distinct:
            self.report(f"{rows} rows, {distinct} distinct")


class StoreLooker(Looker):
    """Looks at a folder of a store, by that store's own client and PyArrow.

    Each file is read once, as soon as it is there, and has to stay.

    Args:
        reader: Of the folder.
        column: Whose values are all different.

    Attributes:
        found: How often each value was seen.
    """

    def __init__(self, reader: Onlooker, column: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._reader, self._column = reader, column
        self._seen: set[str] = set()
        self._logged: dict[str, int] = {}

    @property
    def epochs(self) -> int:
        """Return the number of epochs that have had a file."""
        return len({epoch_of(_name(key)) for key in self._seen})

    def once(self) -> None:
        keys = {*self._reader.keys()}
        self._check_epochs({_name(key) for key in keys}, self._logged_epoch())
        if gone := sorted(self._seen - keys):
            self.report(f"{gone} were visible, and are not any more")
        for key in sorted(keys - self._seen):
            self._read(key)
            self._seen.add(key)

    def _read(self, key: str) -> None:
        data = self._reader.read(key)
        try:
            values = pq.read_table(BytesIO(data))[self._column].to_pylist()
        except pa.ArrowException as error:
            self.report(f"{key} of {len(data)} bytes is not whole: {error}")
            return
        self.found.update(values)
        if twice := [value for value in values if self.found[value] > 1]:
            self.report(f"{key} has rows that are there already: {twice[:5]}")

    def _logged_epoch(self) -> int:
        """The newest epoch with an intent; an entry that was folded meanwhile is in a snapshot."""
        for key in self._reader.iter_files():
            if key.startswith("_krishiv/") and key.endswith(".json") and key not in self._logged:
                self._logged[key] = self._epoch_of_entry(key)
        return max(self._logged.values(), default=-1)

    def _epoch_of_entry(self, key: str) -> int:
        try:
            text = self._reader.read(key)
        except Exception:  # by whichever name each client says it
            if key in self._reader.iter_files():
                raise
            return -1
        return -1 if text is None else epoch_in(key, json.loads(text))


def _name(key: str) -> str:
    return key.rpartition("/")[2]
