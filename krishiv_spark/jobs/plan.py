"""Checked jobs: their inputs and outputs as formats with options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pydantic.alias_generators import to_camel

from krishiv_spark.arrow.column_text import parse_fields
from krishiv_spark.datasource import DatasetOptions, KrishivDataSource
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.formats import find_format, installed_formats
from krishiv_spark.jobs.depots import Address, Depot, Depots, resolve_format_name
from krishiv_spark.jobs.models import JobInput, JobOutput, JobSpec
from krishiv_spark.kafka.records.scanner import SCHEMA
from krishiv_spark.messages.redaction import redact
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.row_schema import KafkaRowSchema
from krishiv_spark.sources.kafka.values import ERROR_COLUMN, RAW_COLUMN, UNKNOWN_COLUMN

__all__ = [
    "DataLocation",
    "LoadedJobs",
    "ReadyInput",
    "ReadyJob",
    "ReadyOutput",
    "add_json_options",
    "find_columns_error",
    "find_misfits",
    "find_option_without_fields",
    "locate_input",
    "locate_output",
    "resolve_folder",
]


_COMPANIONS = (
    ("badrecords", "divert", (RAW_COLUMN, ERROR_COLUMN)),
    ("unknownfields", "keep", (UNKNOWN_COLUMN,)),
)
"""Columns that an option adds, by the option (in lower case) and its value."""

_OF_VALUES = {"badrecords", "nullvalues", "unknownfields", "timezone", "epochunit"}
"""Options for the fields of values, in lower case."""


def add_json_options(options: Mapping[str, str], schema: str) -> dict[str, str]:
    """Return the options of a ``kafkajson`` input, with those that its schema implies.

    The columns are Kafka's own, the fields of the values, and those that the options add.

    Args:
        options: The options in the file, in any case. They take precedence.
        schema: The fields of the values.

    Raises:
        ValueError: If the schema cannot be parsed.
    """
    given = {key.lower(): text.strip().lower() for key, text in options.items()}
    names = [field.name for field in parse_fields(schema)]
    left_out = set() if given.get("includeheaders") == "true" else {"headers"}
    kafka = [name for name in SCHEMA.names if name not in left_out]
    added = [
        name
        for option, value, companions in _COMPANIONS
        if given.get(option) == value
        for name in companions
    ]
    chosen = dict.fromkeys([*(name for name in kafka if name not in names), *names, *added])
    own = {"valueFormat": "json", "valueSchema": schema, "columns": ",".join(chosen)}
    return {**{key: text for key, text in own.items() if key.lower() not in given}, **options}


def find_option_without_fields(options: Mapping[str, str]) -> str | None:
    """Return an option for JSON values if no option selects JSON; None if there is none."""
    if any(key.lower() in {"valueformat", "valueschema"} for key in options):
        return None
    return next((key for key in options if key.lower() in _OF_VALUES), None)


def find_columns_error(options: KafkaSourceOptions, schema: str | None) -> str | None:
    """Return the error that the source would raise about its columns; None if there is none.

    Args:
        options: The options of the source.
        schema: The columns that are passed to Spark, if any.
    """
    if options.registered_parts:  # the columns are in the registry
        return None
    try:
        if schema is None:
            KafkaRowSchema.from_options(options)
            return None
        fields = parse_fields(schema)
    except (OptionError, SchemaError) as error:
        return str(error)
    except ValueError:  # Spark knows more types than the options
        return None
    try:
        KafkaRowSchema.from_schema(options, pa.schema(list(fields))).check()
    except (OptionError, SchemaError) as error:
        return str(error)
    return None


_FITS: Mapping[str, tuple[str, str]] = {
    "keys": ("key_columns", "'keys' (upsert)"),
    "output_mode": ("key_columns", "'outputMode' = update"),
    "sort": ("sort_by", "'sort'"),
    "properties": ("table_properties", "'properties'"),
    "partition_by": ("partition_by", "'partitionBy'"),
}
"""By key of an output, the field of the sink's options that it sets, and its name in messages."""

_PLAIN = DatasetOptions()
"""The options by which Spark's own formats name their data."""


@dataclass(frozen=True)
class DataLocation:
    """A format and the location that it reads or writes.

    Attributes:
        format: The format's name for Spark.
        options: The options of the format, including the path. They may contain secrets, so they
            are never shown.
        shown: The location, for messages.
        decodes: True if the values of Kafka are decoded (``kafkajson``).
    """

    format: str
    options: Mapping[str, str] = field(repr=False)
    shown: str
    decodes: bool = False

    @property
    def source(self) -> type[KrishivDataSource] | None:
        """The class of the format; None for Spark's own and third-party formats."""
        return find_format(self.format)

    @property
    def is_ours(self) -> bool:
        """True for a `KrishivDataSource`, and for a name that only one can have."""
        return self.format.startswith("krishiv-") or self.source is not None


def locate_input(given: JobInput, depots: Depots) -> DataLocation:
    """Return the location that an input reads.

    Raises:
        ValueError: If the location is not specified, or is specified twice.
    """
    return _locate(given, depots, writes=False)


def locate_output(given: JobOutput, depots: Depots) -> DataLocation:
    """Return the location that an output writes, with the options that its keys imply.

    Raises:
        ValueError: As `locate_input`.
    """
    place = _locate(given, depots, writes=True)
    added = _own_options(given, place)
    return DataLocation(place.format, {**place.options, **added}, place.shown, place.decodes)


def resolve_folder(text: str, depots: Depots) -> str:
    """Return the folder that a path, a URL or an address names.

    Raises:
        ValueError: If the depot is unknown, or has no folder.
    """
    if not text.startswith("dataos:"):
        return text.rstrip("/")
    address = Address.parse(text)
    folder = depots.of(address).folder
    if folder is None:
        raise ValueError(f"the depot {address.depot!r} has no 'folder' for files")
    return "/".join(
        part for part in (folder.rstrip("/"), address.collection, address.dataset) if part
    )


def _locate(given: JobInput | JobOutput, depots: Depots, *, writes: bool) -> DataLocation:
    decodes = (given.format or "").strip().lower() == "kafkajson"
    if given.dataset is None:
        if given.format is None:
            raise ValueError("give 'dataset', or 'format' with its 'options'")
        name = resolve_format_name(given.format)
        return DataLocation(name, given.options, _shown(name, given.options), decodes)
    address = Address.parse(given.dataset)
    depot = depots.of(address)
    name = _agree_on_format(given.format, depot, address)
    dataset = _dataset_options(name)
    keys = dataset.write if writes else dataset.read
    where = _where(dataset, depot, address)
    _check_said_once(given, where, keys)
    options = {**depot.options, keys[0]: where, **given.options}
    return DataLocation(name, options, f"{address.depot}: {where}", decodes)


def _dataset_options(name: str) -> DatasetOptions:
    source = find_format(name)
    return _PLAIN if source is None else source.dataset


def _check_said_once(given: JobInput | JobOutput, where: str, keys: Collection[str]) -> None:
    for key, text in given.options.items():
        if key.lower() in keys and text != where:
            raise ValueError(
                f"'dataset' = {given.dataset!r} is {where!r}, but the option {key!r} is "
                f"{text!r}: remove one of them"
            )


def _agree_on_format(given: str | None, depot: Depot, address: Address) -> str:
    if depot.format is None:
        if given is None:
            raise ValueError(
                f"set 'format': the depot {address.depot!r} does not specify the format of its "
                "datasets"
            )
        return resolve_format_name(given)
    own = resolve_format_name(depot.format)
    # If the depot's format is krishiv-parquet, `Parquet` means that: published files contain short
    # names only.
    if given is not None and own not in {
        resolve_format_name(given),
        f"krishiv-{given.strip().lower()}",
    }:
        raise ValueError(f"'format' = {given!r}, but the depot {address.depot!r} has {own!r}")
    return own


def _where(dataset: DatasetOptions, depot: Depot, address: Address) -> str:
    if not address.dataset:
        raise ValueError(f"{address.depot!r}: the address names no dataset")
    if depot.place is not None:
        try:
            return depot.place.format(collection=address.collection, dataset=address.dataset)
        except (LookupError, ValueError) as error:
            raise ValueError(
                f"the depot's 'place' = {depot.place!r}: it may contain only {{collection}} and "
                f"{{dataset}} ({error})"
            ) from None
    if dataset.form == "name":
        if address.collection:
            raise ValueError(
                f"the depot {address.depot!r} has no collections: write "
                f"'dataos://{address.depot}:default/{address.dataset}', or give the depot 'place', "
                "as '{collection}.{dataset}'"
            )
        return address.dataset
    parts = [part for part in (address.collection, address.dataset) if part]
    if dataset.form == "table":
        return ".".join(parts)
    if depot.folder is None:
        raise ValueError(f"the depot {address.depot!r} has neither 'folder' nor 'place'")
    return "/".join([depot.folder.rstrip("/"), *parts])


def _shown(name: str, options: Mapping[str, str]) -> str:
    """Return a location for messages: only the options that name it, since others may be secret."""
    where = {key.lower(): text for key, text in options.items()}
    own = _dataset_options(name)
    keys = (*own.read, *own.write, "subscribe", "topic", "table", "path", "name")
    known = [where[key] for key in keys if key in where]
    return f"{name}: {known[0]}" if known else name


def find_misfits(given: JobOutput, place: DataLocation) -> Iterator[tuple[str, str]]:
    """Yield the keys of an output that its format has no option for, each with an error text."""
    for key, (option, what) in _FITS.items():
        value = getattr(given, key)
        wanted = value == "update" if key == "output_mode" else bool(value)
        # Spark's own formats accept partitions, and report unsupported ones themselves.
        spares = key == "partition_by" and not place.is_ours
        if wanted and not spares and not _has_option(place.source, option):
            fits = sorted(
                source.format_name for source in installed_formats() if _has_option(source, option)
            )
            yield to_camel(key), f"{what} is for {' and '.join(fits)}, not for {place.format}"


def _has_option(source: type[KrishivDataSource] | None, option: str) -> bool:
    writer = None if source is None else source.writer_type
    return writer is not None and option in writer.options_type.model_fields


def _own_options(given: JobOutput, place: DataLocation) -> dict[str, str]:
    """Return the options that an output's own keys imply, as far as the format has them."""
    unfit = {key for key, _ in find_misfits(given, place)}
    found: dict[str, str] = {}
    if given.keys and "keys" not in unfit:
        found |= {"mode": "upsert", "keyColumns": ",".join(given.keys)}
    if given.sort and "sort" not in unfit:
        found["sortBy"] = ", ".join(given.sort)
    if given.properties and "properties" not in unfit:
        found |= {f"tableProperty.{key}": text for key, text in given.properties.items()}
    if given.partition_by and place.is_ours and "partitionBy" not in unfit:
        found["partitionBy"] = ", ".join(given.partition_by)
    return found


BATCHES = "_batches"
"""Folder of a checkpoint that several outputs share. No output can have this name."""


@dataclass(frozen=True)
class ReadyInput:
    """An input of a job.

    Attributes:
        model: The input as it is written in the file.
        place: The location of its rows.
    """

    model: JobInput
    place: DataLocation


@dataclass(frozen=True)
class ReadyOutput:
    """An output of a job.

    Attributes:
        model: The output as it is written in the file.
        place: The location that its rows are written to.
        checkpoint: The checkpoint of its own query; None for a batch, and if one query writes the
            batches of all outputs.
    """

    model: JobOutput
    place: DataLocation
    checkpoint: str | None = None


@dataclass(frozen=True)
class ReadyJob:
    """A checked job.

    Attributes:
        name: The name of the job.
        model: The job as it is written in the file.
        inputs: The inputs, in order.
        outputs: The outputs, in order.
        checkpoint: The folder that contains the checkpoint of each query; None for a batch.
        other_checkpoints: The checkpoints of the queries of other jobs in the file.
    """

    name: str
    model: JobSpec
    inputs: tuple[ReadyInput, ...]
    outputs: tuple[ReadyOutput, ...]
    checkpoint: str | None
    other_checkpoints: frozenset[str] = frozenset()

    @property
    def writes_batches(self) -> bool:
        """True if one query writes all outputs of each batch."""
        return self.model.is_streaming and self.model.streaming.for_each_batch_mode

    @property
    def batches_checkpoint(self) -> str:
        """The checkpoint of the one query that writes all outputs."""
        return f"{self.checkpoint}/{BATCHES}"

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoints of the job's queries."""
        if self.writes_batches:
            return [self.batches_checkpoint]
        by_name = {one.model.name: one.checkpoint for one in self.outputs}
        return [location for location in by_name.values() if location is not None]

    @property
    def ends(self) -> bool:
        """True if the job ends without being stopped."""
        streaming = self.model.streaming
        by_trigger = streaming.batch_mode or streaming.trigger_mode in {"Once", "AvailableNow"}
        limited = self.model.timeout is not None or self.model.stop_after_idle is not None
        return not self.model.is_streaming or by_trigger or limited


@dataclass(frozen=True)
class LoadedJobs:
    """The content of a job file.

    Attributes:
        jobs: The jobs, in order.
        side_by_side: True if the jobs run at the same time.
        notes: Remarks for the user, one line each.
        secrets: Values that must not be shown.
        hide: A function that replaces the values of variables in a text by their names.
    """

    jobs: tuple[ReadyJob, ...]
    side_by_side: bool
    notes: tuple[str, ...]
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    hide: Callable[[str], str] = field(default=str, repr=False, compare=False)

    @property
    def calls_python(self) -> bool:
        """True if a step is a Python function."""
        steps = (step for job in self.jobs for step in job.model.flat_steps())
        return any(step.python is not None for step in steps)

    def redact(self, text: str) -> str:
        """Return a text without the secrets and the values of variables."""
        return self.hide(redact(text, self.secrets))
