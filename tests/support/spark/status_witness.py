"""A comparison of ``krishiv-spark status`` for a killed query with independent readers."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from click.testing import CliRunner
from drivers import Driver
from patience import await_that
from status_targets import Found, Target

from krishiv_spark.cli import main

_PROMISE = re.compile(r"(plans|runs|completes) epoch (\d+)")
_EPOCH = re.compile(r"EPOCH (\d+) ")


class Witness:
    """Compares, after each kill, and holds each next driver to what was said that it does.

    Args:
        checkpoint: Of the query.
        target: As outsiders see it.
        rows_of: How many rows an epoch has, or all up to its end, by the offset of its one source.
        adds_up: Whether offsets say how many rows there are in an epoch; else, in all up to it.

    Attributes:
        looks: How often it has compared.
        kept: What drivers have done as was said, by the verb.
        between: How often an epoch was true, and Spark did not know that it is over.
        staged: How often something was there that nobody saw.
        planned: How many rows there are up to the end of the newest epoch that was seen.
    """

    def __init__(
        self,
        checkpoint: str,
        target: Target,
        rows_of: Callable[[Mapping[str, Any]], int],
        *,
        adds_up: bool,
    ) -> None:
        self.looks, self.between, self.staged, self.planned = 0, 0, 0, 0
        self.kept: list[str] = []
        self._checkpoint, self._target = checkpoint, target
        self._rows_of, self._adds_up = rows_of, adds_up
        self._known: dict[int, int] = {-1: 0}
        self._promise = ""
        self._promised_of: Driver | None = None

    def look(self, driver: Driver) -> None:
        """Compare; called with a driver that has lost something, is dead, or is done."""
        if driver is not self._promised_of:  # it may have come to its end in an earlier look
            self._hold_to_promise(driver)
        self._compare()  # also while what a dead driver had started goes on
        if not driver.outlives(0):
            driver.await_rest()
            self._promised_of = driver
            self._check_still(await_that(self._compare, "the target does not come to rest"))
        self.looks += 1

    def _hold_to_promise(self, driver: Driver) -> None:
        """As soon as it has had an epoch; one that was killed before has shown nothing."""
        begun = next(filter(None, map(_EPOCH.match, driver.lines)), None)
        said = _PROMISE.search(self._promise.rpartition(", then ")[2])
        if begun and self._promise:
            first_refused = "refused by Spark 4.1" in self._promise  # which the drivers have off
            does, epoch = said.groups() if said else ("plans", "0" if first_refused else "none")
            assert begun[1] == epoch, f"status: {self._promise!r}; the driver: {begun[0]}"
            if does == "completes":
                assert self._target.intents(int(epoch)) <= 1, f"epoch {epoch} was staged again"
            self.kept.append(does)
            self._promise = ""

    # --- one look

    def _compare(self) -> tuple[dict[str, Any], Found] | None:
        """Compare the status with other readers, if nothing has changed meanwhile.

        A change may be visible before or after; the status must lie between.
        """
        before, said, after = self._target.look(), self._status(), self._target.look()
        lower, upper = self._rows(said)
        told = f"{said}\nbefore: {before}\nafter: {after}"
        assert before.rows <= upper, f"more rows are visible than {upper}: {told}"
        assert lower <= after.rows, f"fewer rows are visible than {lower}: {told}"
        hidden = self._target.hidden_by(said)
        if hidden is not None:
            assert before.open & after.open <= hidden <= before.open | after.open, told
        return (said, after) if before == after else None

    def _check_still(self, seen: tuple[dict[str, Any], Found]) -> None:
        """Nobody moves any more: all has to be the same."""
        said, found = seen
        _, upper = self._rows(said)
        held, open_epoch = _held(said)
        told = f"{said}\nfound: {found}"
        if found.rows < upper:  # an epoch is true, and not visible yet
            assert open_epoch is not None, told
            assert found.open, told
            assert found.hidden_rows is None or found.rows + found.hidden_rows >= upper, told
        assert found.held is None or found.held == held, told
        self._target.check_still(said, found)
        self._promise = said.get("next", "plans epoch 0")
        self.staged += bool(found.open)
        newest = said.get("newest")
        self.between += newest is not None and not newest["is_over"] and held == newest["epoch"]

    def _status(self) -> dict[str, Any]:
        """Nothing if Spark has not yet written down which query it is."""
        done = _run("status", self._checkpoint, *self._target.words, "--json")
        if done.exit_code:
            assert "no query id" in done.output, done.output
            return {}
        return json.loads(done.output)

    def _rows(self, said: Mapping[str, Any]) -> tuple[int, int]:
        """Return the numbers of rows that readers find, at least and at most, by the status."""
        newest = said.get("newest")
        if newest is None:
            return 0, 0
        self.planned = self._until(newest["epoch"])
        held, open_epoch = _held(said)
        over = newest["epoch"] - (not newest["is_over"])
        assert held <= newest["epoch"]
        upper = self._until(max(held, over))
        # What is over has no rows, or is held.
        assert open_epoch is not None or upper == self._until(held), said
        return (upper if open_epoch is None else self._until(open_epoch - 1)), upper

    def _until(self, epoch: int) -> int:
        """Return the number of rows up to the end of an epoch."""
        if epoch not in self._known:
            done = _run("epochs", "show", self._checkpoint, str(epoch), "--json")
            assert not done.exit_code, done.output
            (text,) = json.loads(done.output)["offsets"].values()
            rows = 0 if text == "-" else self._rows_of(json.loads(text))
            before = self._until(epoch - 1) if self._adds_up else 0
            self._known[epoch] = before + rows
        return self._known[epoch]


def _held(said: Mapping[str, Any]) -> tuple[int, int | None]:
    """The newest epoch that is true, -1 for none, and the same if it may not be visible yet."""
    told = said.get("log") or said.get("table") or {}
    held, open_epoch = told.get("held"), told.get("open_epoch")
    assert open_epoch in {None, held}
    return (-1 if held is None else held), open_epoch


def _run(*words: str) -> Any:
    return CliRunner().invoke(main, list(words))


__all__ = ["Found", "Target", "Witness"]
