"""The target of a replayed query, by the options of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from krishiv_spark.datasource import select_dead_letters
from krishiv_spark.errors import LogError, OptionError
from krishiv_spark.offsets import Claim, State, open_log
from krishiv_spark.sinks.log_checks import operators_claim
from krishiv_spark.sinks.participant import Replay, kafka_cannot
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage import StoreUrl

if TYPE_CHECKING:
    from krishiv_spark.memory.results import QueryResult
    from krishiv_spark.options import Options
    from krishiv_spark.sinks.iceberg.maintenance.rollback import Rollback
    from krishiv_spark.sinks.logged import LogCommitter

__all__ = ["ReplayTarget", "open_target"]

_ICEBERG = {"table", "iceberg.table", "warehouse", "iceberg.warehouse"}
_PARQUET = {"path", "parquet.path"}

_NAME_IT = (
    "name the target of the query: --table PATH (krishiv-parquet); -o table=… with -o "
    "warehouse=… or -o catalog.uri=… (krishiv-iceberg); or the routes as -o "
    "route.NAME.format=… and their options (krishiv-fanout). Results of krishiv-memory are "
    "found without options, on the machine of the driver. Queries with another sink, such as "
    "foreachBatch, cannot be replayed"
)


class ReplayTarget(Protocol):
    """The target of a query, which can be rewound to the end of an epoch. Operator."""

    def identity(self) -> str:
        """Return a text that identifies the target; changes nothing."""
        ...

    def lines(self, replay: Replay) -> list[str]:
        """Return a line for each action of `take_back`; changes nothing.

        Raises:
            KrishivError: If the target cannot be rewound, or cannot be reached.
        """
        ...

    def settle(self) -> None:
        """Finish an epoch that is committed and not completely visible, as the next start would.

        Raises:
            KrishivError: If that is not possible; then a rewind is not possible either.
        """
        ...

    def take_back(self, replay: Replay) -> None:
        """Rewind the target and its epoch log.

        It may be repeated until it succeeds. Raises as `lines`.
        """
        ...


class _LogTarget:
    """A sink with an epoch log: ``krishiv-parquet``, ``krishiv-fanout``, or a third-party sink."""

    def __init__(
        self, committer: LogCommitter[Any], checkpoint: SparkCheckpoint, query: str, name: str
    ) -> None:
        self._committer = committer
        self._checkpoint = checkpoint
        self._query = query
        self._name = name

    def identity(self) -> str:
        self._read_state()  # first: other options may name a target that cannot be reached
        return self._committer.participant.known_target() or f"{self._name}, {self._log}"

    def _read_state(self) -> State:
        """Return the state of the log.

        Raises:
            OptionError: If there is no log.
        """
        state: State = self._log.state()
        if state.number == 0:
            raise OptionError(
                f"there is no epoch log of query {self._query} in {self._log}: give the options of "
                "the query's writer, with --epoch-log if it has 'epochLog'"
            )
        return state

    @property
    def _log(self) -> Any:
        return self._committer.log(self._query)

    def lines(self, replay: Replay) -> list[str]:
        state, found = self._read_state(), self._committer.participant.known_target()
        target = None if state.claim is None else state.claim.target
        if target not in {None, found}:
            raise LogError(
                f"the epochs in the epoch log {self._log} were written to {target}, and the "
                f"options name {found or 'a target without an id'}. Nothing was changed: give the "
                "options of the query's writer"
            )
        return [
            *self._committer.participant.plan_replay(replay),
            f"epoch log {self._log}: is rewound to the end of epoch {replay.before.epoch}",
        ]

    def settle(self) -> None:
        self._committer.resolve(self._query, self._checkpoint.is_committed, takes_back=True)

    def take_back(self, replay: Replay) -> None:
        # Another driver may have continued since `settle`. It is fenced, and the epochs that it has
        # published are finished, before the first is taken back.
        self.settle()
        self._committer.participant.take_back(replay)
        self._committer.participant.verify_adoption(replay.query, replay.before.epoch)
        log, target = self._log, self._committer.participant.target()
        state = log.begin(operators_claim(self._query, log.state()))
        # Records of the removed epochs in the target must not count as newer epochs of this log.
        self._committer.participant.sweep(self._query, state.owner, clean=False)
        log.adopt(state, Claim(query=self._query, offsets=replay.before, target=target))


class _TableTarget:
    """A table of ``krishiv-iceberg``, which records the epoch in the commit of the rows."""

    def __init__(self, rollback: Rollback) -> None:
        self._rollback = rollback

    def identity(self) -> str:
        return self._rollback.identity()

    def lines(self, replay: Replay) -> list[str]:
        return self._rollback.lines(replay)

    def settle(self) -> None:
        """Do nothing: an epoch is completely in the table, or not at all."""

    def take_back(self, replay: Replay) -> None:
        self._rollback.run(replay)


class _MemoryTarget:
    """A result of ``krishiv-memory`` on this machine."""

    def __init__(self, result: QueryResult) -> None:
        self._result = result

    def identity(self) -> str:
        return f"krishiv-memory result of query {self._result.query}"

    def lines(self, replay: Replay) -> list[str]:
        try:
            later = self._result.check_back(replay.first)
        except OptionError as error:
            raise OptionError(
                f"{error}. Nothing was changed. Two ways on: with output mode 'complete', "
                f"krishiv_spark.memory_clear({self._result.query!r}), then 'krishiv-spark "
                f"checkpoint rewind {replay.checkpoint} --to {replay.before.epoch}'; in all other "
                "cases a new checkpoint, with which all rows are read again"
            ) from error
        if not later:
            return [f"krishiv-memory: no epoch from {replay.first} on is in the result"]
        kept = f"{self._result.folder}/replayed/{replay.name}"
        what = f"epochs {later[0]} to {later[-1]} go out of the result; they stay in {kept}"
        return [f"krishiv-memory: {what} until memory_clear() or a restart of the machine"]

    def settle(self) -> None:
        """Do nothing: an epoch is completely in the result, or not at all."""

    def take_back(self, replay: Replay) -> None:
        self._result.take_back(replay.first, replay.name)


def open_target(
    checkpoint: SparkCheckpoint, given: Mapping[str, str], first: int, name: str | None = None
) -> ReplayTarget:
    """Return the target that options name, or that the query's checkpoint shows.

    Args:
        checkpoint: The checkpoint of the query.
        given: The options of the query's writer; others are ignored.
        first: The first epoch that is to be processed again, for messages.
        name: The format of the sink without ``krishiv-``; None if the options show it.

    Raises:
        OptionError: If no target is named, if it cannot be rewound, or if an option is invalid.
    """
    query = checkpoint.query_id()
    name = name or _guess(given, checkpoint, query)
    if name == "kafka":
        raise OptionError(kafka_cannot(checkpoint.location, first))
    if (route := _kafka_route(given)) is not None:
        raise OptionError(f"{route}: {kafka_cannot(checkpoint.location, first)}")
    _check_options_of_routes(checkpoint, given, name)
    if name == "memory":
        from krishiv_spark.memory.results import QueryResult
        from krishiv_spark.memory.store import open_store

        return _MemoryTarget(QueryResult(open_store(), query))
    if name == "iceberg" and not select_dead_letters(given):
        return _TableTarget(_rollback(checkpoint, given))
    committer = _committer(name, checkpoint, given)
    return _LogTarget(committer, checkpoint, query, f"krishiv-{name}")


def _kafka_route(given: Mapping[str, str]) -> str | None:
    """Return the name of a route to a topic, for a message; None for none."""
    for key, text in given.items():
        words = key.lower().split(".")
        if words[-1] == "format" and text.lower() == "krishiv-kafka":
            if words[0] == "route":
                return f"route {words[1]!r}"
            if words[0] == "deadletters":
                return "deadLetters"
    return None


def _check_options_of_routes(
    checkpoint: SparkCheckpoint, given: Mapping[str, str], name: str
) -> None:
    """Refuse the options of one target for a query that has several.

    Raises:
        OptionError: If the checkpoint records several targets, and the options name one.
    """
    recorded = checkpoint.recorded_target()
    is_divided = recorded is not None and recorded.format == "krishiv-fanout"
    if is_divided and name != "fanout" and not select_dead_letters(given):
        raise OptionError(
            f"the query writes to {recorded}: give the options of all targets, with -o "
            "deadLetters.format=… or -o route.NAME.format=…"
        )


def _guess(given: Mapping[str, str], checkpoint: SparkCheckpoint, query: str) -> str:
    """Return the format of a query's sink, without ``krishiv-``."""
    keys = {key.lower() for key in given}
    if any(key.startswith("route.") for key in keys):
        return "fanout"
    if keys & _PARQUET:
        return "parquet"
    if keys & _ICEBERG or any(key.startswith("catalog.") for key in keys):
        return "iceberg"
    return _guess_by_traces(checkpoint, query)


def _guess_by_traces(checkpoint: SparkCheckpoint, query: str) -> str:
    place = StoreUrl.parse(checkpoint.location) / "krishiv"
    claim = open_log(str(place), query, checkpoint.storage).state().claim
    target = "" if claim is None else claim.target or ""
    if target.startswith("Kafka cluster"):
        return "kafka"
    if target:
        raise OptionError(f"the query writes to {target}: {_NAME_IT}")
    from krishiv_spark.memory.store import open_store

    if query in open_store().known("queries"):
        return "memory"
    raise OptionError(_NAME_IT)


def _rollback(checkpoint: SparkCheckpoint, given: Mapping[str, str]) -> Rollback:
    from krishiv_spark.sinks.iceberg.maintenance.rollback import Rollback
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

    own = _sink_options(IcebergSinkOptions, checkpoint, given)
    return Rollback(IcebergSinkOptions.parse(own, "krishiv-iceberg"))


def _committer(
    name: str, checkpoint: SparkCheckpoint, given: Mapping[str, str]
) -> LogCommitter[Any]:
    import pyarrow as pa

    from krishiv_spark.formats import format_of
    from krishiv_spark.sinks.base import OutputMode
    from krishiv_spark.sinks.logged import LogCommitter

    source = format_of(name)
    kind = source.writer_type
    if kind is None:
        raise OptionError(f"{source.format_name} is not a sink")
    own = _sink_options(kind.options_type, checkpoint, given) | select_dead_letters(given)
    kind, options = source.open_sink(own)
    # There are no columns, since nothing is written.
    writer = kind(options, pa.schema([]), OutputMode.APPEND, streaming=True)
    committer = writer.committer()
    if not isinstance(committer, LogCommitter):
        raise OptionError(
            f"{source.format_name} cannot be replayed: it has no epoch log. {_NAME_IT}"
        )
    return committer


def _sink_options(
    model: type[Options], checkpoint: SparkCheckpoint, given: Mapping[str, str]
) -> dict[str, str]:
    """Return those of the given options that a sink has, with its checkpoint.

    Raises:
        OptionError: If they name a query whose epochs are not those of a checkpoint.
    """
    taken = {"txnappid", "txnversion", "queryid", "checkpointlocation"}
    for key in given:
        if key.lower() in taken - {"checkpointlocation"}:
            raise OptionError(
                f"a query with {key!r} cannot be replayed: the checkpoint's offsets do not "
                "identify the epochs in its target"
            )
    own = {key: text for key, text in model.select(given).items() if key.lower() not in taken}
    return {**own, "checkpointLocation": checkpoint.location}
