"""Checks of a job without Spark: names of views and outputs, locations, options, modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from krishiv_spark.errors import OptionError
from krishiv_spark.formats import find_format, format_names, installed_formats
from krishiv_spark.jobs.depots import Depots
from krishiv_spark.jobs.models import JobInput, JobOutput, JobSpec, JobStep
from krishiv_spark.jobs.plan import (
    DataLocation,
    ReadyInput,
    ReadyJob,
    ReadyOutput,
    add_json_options,
    find_columns_error,
    find_misfits,
    find_option_without_fields,
    locate_input,
    locate_output,
    resolve_folder,
)
from krishiv_spark.jobs.yaml_nodes import NodePath, Problems, YamlNode
from krishiv_spark.messages.suggestions import did_you_mean, suggest
from krishiv_spark.options import Options
from krishiv_spark.sources.kafka.options import KafkaSourceOptions

__all__ = ["JobChecker"]


_Mistake = tuple[NodePath, str]


def find_name_errors(job: JobSpec, left_out: set[str]) -> Iterator[_Mistake]:
    """Yield the errors in the names of a job, each with its path in the job.

    Args:
        job: The job as it is written in the file.
        left_out: Names, in lower case, of views that could not be checked. Steps may use them.
    """
    known: dict[str, str] = {}
    for where, view, used in _views(job):
        for number, other in enumerate(used):
            yield from _unknown(other, known, left_out, (*where, "inputs", number))
        if view.lower() in known:
            yield (
                (*where, "name"),
                f"there is a view {view!r} already; SQL takes names in any case",
            )
        known[view.lower()] = view
    names: set[str] = set()
    for number, output in enumerate(job.outputs):
        key = "view" if output.view else "name"
        yield from _unknown(output.source, known, left_out, ("outputs", number, key))
        if output.name in names:
            text = (
                f"two outputs are called {output.name!r}, and each needs its own checkpoint: "
                f"rename one of them, and write 'view: {output.source}'"
            )
            yield ("outputs", number, "name"), text
        names.add(output.name)


def _unknown(
    view: str, known: Mapping[str, str], left_out: set[str], where: NodePath
) -> Iterator[_Mistake]:
    if view.lower() not in known and view.lower() not in left_out:
        near = did_you_mean(view.lower(), known, f"known: {', '.join(known.values())}")
        yield where, f"no input and no step before is called {view!r}; {near}"


def _views(job: JobSpec) -> Iterator[tuple[NodePath, str, list[str]]]:
    """Yield the path of each view, its name, and the views that its function receives."""
    for number, one in enumerate(job.inputs):
        yield ("inputs", number), one.name, []
    for number, step in enumerate(job.steps):
        if isinstance(step, JobStep):
            yield ("steps", number), step.name, step.inputs
            continue
        for place, inner in enumerate(step.sequence):
            yield ("steps", number, "sequence", place), inner.name, inner.inputs


_ADDRESS = "dataos:"

_OF_SPARK = {
    *("avro", "binaryfile", "console", "csv", "delta", "image", "jdbc", "json", "libsvm", "memory"),
    *("noop", "orc", "parquet", "rate", "rate-micro-batch", "socket", "statestore", "text", "xml"),
}
"""Names of Spark's own formats, and of Delta Lake, in lower case."""


class JobChecker:
    """A check of a job's description, which makes a `ReadyJob` and reports every mistake.

    Args:
        tree: The content of the file, with positions.
        depots: The depots that addresses name.
        problems: Receives the mistakes.
        notes: Receives remarks for the user.
        left_out: Names of parts that could not be checked because they contain mistakes.
    """

    def __init__(
        self,
        tree: YamlNode,
        depots: Depots,
        problems: Problems,
        notes: list[str],
        left_out: Iterable[str] = (),
    ) -> None:
        self._tree = tree
        self._left_out = {name.lower() for name in left_out}
        self._depots = depots
        self._problems = problems
        self._notes = notes

    def check(self, job: JobSpec, name: str, base: NodePath) -> ReadyJob:
        """Check a job.

        Args:
            job: The job as it is written in the file.
            name: The name of the job.
            base: The path of the job in the file.
        """
        self._base = base
        for where, text in find_name_errors(job, self._left_out):
            self._wrong(where, text)
        self._check_streaming(job)
        checkpoint = self._folder(job.streaming.checkpoint_location, "streaming")
        inputs = [self._input(one, n) for n, one in enumerate(job.inputs)]
        outputs = [self._output(job, one, n, checkpoint) for n, one in enumerate(job.outputs)]
        return ReadyJob(
            name,
            job,
            tuple(one for one in inputs if one is not None),
            tuple(one for one in outputs if one is not None),
            checkpoint,
        )

    # --- streams

    def _check_streaming(self, job: JobSpec) -> None:
        given = job.streaming.model_fields_set - {"checkpoint_location"}
        if not job.is_streaming:
            if given:
                self._notes.append(
                    "'streaming' has no effect: no input has 'isStream: true', so the job is a "
                    "batch"
                )
            return
        streams = [one for one in job.inputs if one.is_stream]
        if job.streaming.for_each_batch_mode and len(streams) > 1:
            self._wrong(
                ("streaming", "forEachBatchMode"),
                f"a batch is that of one stream, and {len(streams)} inputs have 'isStream: true'",
            )
        mode = job.streaming.trigger_mode
        if job.streaming.batch_mode and mode in {"ProcessingTime", "Continuous"}:
            self._notes.append("'batchMode' has no effect beside a 'triggerMode' that never ends")
        if job.streaming.trigger_duration is not None and mode in {"Once", "AvailableNow"}:
            self._notes.append(f"'triggerDuration' has no effect with 'triggerMode' = {mode}")

    def _check_modes(
        self, job: JobSpec, output: JobOutput, place: DataLocation, at: NodePath
    ) -> None:
        in_batches = not job.is_streaming or job.streaming.for_each_batch_mode
        if in_batches and output.output_mode is not None:
            why = "the job is a batch" if not job.is_streaming else "each batch is written as one"
            self._wrong((*at, "outputMode"), f"'outputMode' is for streams: {why}; give 'saveMode'")
        if job.is_streaming and output.save_mode in {"ignore", "errorIfExists"}:
            self._wrong((*at, "saveMode"), f"'saveMode' = {output.save_mode} is for batches")
        if output.output_mode == "update" and not output.keys:
            self._wrong((*at, "outputMode"), "'outputMode' = update needs 'keys': the columns by "
                        "which a row takes the place of an earlier one")  # fmt: skip
        for key, text in find_misfits(output, place):
            self._wrong((*at, key), text)
        if (
            place.source is not None
            and place.source.is_append_only
            and output.save_mode != "append"
        ):
            self._wrong(
                (*at, "saveMode"), f"{place.format} only appends rows: set 'saveMode' to append"
            )
        if job.streaming.for_each_batch_mode and not place.is_ours:
            self._notes.append(
                f"output {output.name!r}: {place.format} writes a batch that comes again, after a "
                "crash, once more"
            )

    # --- places

    def _input(self, given: JobInput, number: int) -> ReadyInput | None:
        at: NodePath = ("inputs", number)
        self._note_format(given.format)
        self._note_address(given.dataset)
        try:
            place = locate_input(given, self._depots)
        except ValueError as error:
            self._wrong((*at, "format" if given.dataset is None else "dataset"), str(error))
            return None
        if given.sample_values is not None and (not place.decodes or given.schema_ is not None):
            self._wrong(
                (*at, "sampleValues"), "'sampleValues' is for 'format: kafkajson' without 'schema'"
            )
        self._check_input(given, place, at)
        return ReadyInput(given, place)

    def _check_input(self, given: JobInput, place: DataLocation, at: NodePath) -> None:
        options = place.options
        if place.decodes and given.schema_ is None and given.sample_values is None:
            if (key := find_option_without_fields(options)) is not None:
                self._wrong(
                    (*at, "options", key),
                    f"option {key!r} is for the fields of JSON values: give 'schema', as "
                    "'id BIGINT, name STRING', or 'sampleValues'",
                )
                return
        elif place.decodes:
            try:
                # One field represents those that are inferred when the job starts.
                options = add_json_options(options, given.schema_ or "sampled STRING")
            except ValueError as error:
                self._wrong((*at, "schema"), str(error))
                return
        model = self._check_options(place, options, at, writes=False)
        if model is KafkaSourceOptions:
            kafka = KafkaSourceOptions.parse(options, place.format)
            fault = find_columns_error(kafka, None if place.decodes else given.schema_)
            if fault is not None:
                self._wrong((*at, "options" if given.schema_ is None else "schema"), fault)

    def _output(
        self, job: JobSpec, given: JobOutput, number: int, folder: str | None
    ) -> ReadyOutput | None:
        at: NodePath = ("outputs", number)
        self._note_format(given.format)
        self._note_address(given.dataset)
        try:
            place = locate_output(given, self._depots)
        except ValueError as error:
            self._wrong((*at, "format" if given.dataset is None else "dataset"), str(error))
            return None
        self._check_modes(job, given, place, at)
        checkpoint = self._checkpoint(job, given, folder, at)
        options = dict(place.options)
        if checkpoint is not None and place.is_ours:
            options["checkpointLocation"] = checkpoint
        self._check_options(place, options, at, writes=True)
        return ReadyOutput(given, place, checkpoint)

    def _checkpoint(
        self, job: JobSpec, given: JobOutput, folder: str | None, at: NodePath
    ) -> str | None:
        own = self._folder(given.checkpoint_location, *at)
        if not job.is_streaming:
            return None
        if job.streaming.for_each_batch_mode:
            if own is not None:
                self._wrong(
                    (*at, "checkpointLocation"),
                    "in forEachBatchMode all outputs are one query: give 'checkpointLocation' "
                    "under 'streaming'",
                )
            if folder is None:
                self._wrong(("streaming",), "a stream needs 'checkpointLocation'")
            return None
        if own is None and folder is None:
            self._wrong(
                at,
                f"output {given.name!r} needs 'checkpointLocation', here or under 'streaming', "
                "where each output has a folder",
            )
        return own if own is not None or folder is None else f"{folder}/{given.name}"

    def _note_format(self, given: str | None) -> None:
        """Add a note if a format is unknown, but similar to one of this package's or of Spark's."""
        name = (given or "").strip().lower()
        ours = {"iceberg", "kafka", "kafkajson", *(f"krishiv-{each}" for each in format_names())}
        if not name or "." in name or name in ours | _OF_SPARK or find_format(name) is not None:
            return
        if near := suggest(name, sorted(ours | _OF_SPARK), likeness=0.7):
            self._notes.append(
                f"'format' = {given!r} is none of this package's or of Spark's own: did you mean "
                f"{near!r}? Only Spark knows whether it is there ('--dry-run')"
            )

    def _folder(self, text: str | None, *at: str | int) -> str | None:
        if text is None:
            return None
        self._note_address(text)
        try:
            return resolve_folder(text, self._depots)
        except ValueError as error:
            self._wrong((*at, "checkpointLocation"), str(error))
            return None

    def _note_address(self, text: str | None) -> None:
        if text is not None and text.startswith(_ADDRESS) and "?" in text:
            query = text.partition("?")[2]
            self._notes.append(f"not used here: {f'?{query}'!r} of addresses")

    # --- options

    def _check_options(
        self, place: DataLocation, options: Mapping[str, str], at: NodePath, *, writes: bool
    ) -> type[Options] | None:
        """Return the class of the options if they are valid; None for Spark's own formats."""
        if not place.is_ours:
            return None
        try:
            model = _options_of(place.format, options, writes=writes)
        except OptionError as error:
            self._wrong((*at, "format"), str(error))
            return None
        faults = model.find_errors(options, place.format)
        for fault in faults:
            path = (*at, "options") if fault.key is None else (*at, "options", fault.key)
            self._wrong(path, fault.text)
        return None if faults else model

    def _wrong(self, where: NodePath, text: str) -> None:
        self._problems.add(self._tree.mark_of((*self._base, *where)), text)


def _options_of(name: str, options: Mapping[str, str], *, writes: bool) -> type[Options]:
    source = find_format(name)
    if source is None:
        known = [each.format_name for each in installed_formats()]
        hint = did_you_mean(name, known, f"known: {', '.join(known)}")
        raise OptionError(f"there is no format {name!r}; {hint}")
    side = source.writer_type if writes else source.reader_type
    if side is None:
        raise OptionError(f"{name} cannot be {'written' if writes else 'read'}")
    return source.sink_options(options) if writes else side.options_type
