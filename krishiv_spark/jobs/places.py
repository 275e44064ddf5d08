"""What inputs, outputs and checkpoints name, as formats with their options."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic.alias_generators import to_camel

from krishiv_spark.datasource import DatasetOptions, KrishivDataSource
from krishiv_spark.formats import find_format, installed_formats
from krishiv_spark.jobs.depots import Address, Depot, Depots, format_called
from krishiv_spark.jobs.models import JobInput, JobOutput

__all__ = ["DataPlace", "folder_of", "input_place", "misfits", "output_place"]

_FITS: Mapping[str, tuple[str, str]] = {
    "keys": ("key_columns", "'keys' (upsert)"),
    "output_mode": ("key_columns", "'outputMode' = update"),
    "sort": ("sort_by", "'sort'"),
    "properties": ("table_properties", "'properties'"),
    "partition_by": ("partition_by", "'partitionBy'"),
}
"""By key of an output, the option of a sink that it stands for, and its name in messages."""

_PLAIN = DatasetOptions()
"""How Spark's own formats name their data."""


@dataclass(frozen=True)
class DataPlace:
    """A format and where it reads or writes.

    Attributes:
        format: As Spark knows it.
        options: Of the format, the path among them; some are secret, so they are never shown.
        shown: Where it is, for people.
        decodes: Whether values of Kafka are taken apart (``kafkajson``).
    """

    format: str
    options: Mapping[str, str] = field(repr=False)
    shown: str
    decodes: bool = False

    @property
    def source(self) -> type[KrishivDataSource] | None:
        """The class of the format; None for those of Spark, and of others that are none."""
        return find_format(self.format)

    @property
    def is_ours(self) -> bool:
        """True for a format that is, or by its name should be, a `KrishivDataSource`."""
        return self.format.startswith("krishiv-") or self.source is not None


def input_place(given: JobInput, depots: Depots) -> DataPlace:
    """Where an input reads.

    Raises:
        ValueError: If that is not said, or twice.
    """
    return _place(given, depots, writes=False)


def output_place(given: JobOutput, depots: Depots) -> DataPlace:
    """Where an output writes; with the options that its own keys stand for.

    Raises:
        ValueError: Likewise.
    """
    place = _place(given, depots, writes=True)
    added = _own_options(given, place)
    return DataPlace(place.format, {**place.options, **added}, place.shown, place.decodes)


def folder_of(text: str, depots: Depots) -> str:
    """A folder, from a path, a URL or an address.

    Raises:
        ValueError: If the depot is not known, or has no folder.
    """
    if not text.startswith("dataos:"):
        return text.rstrip("/")
    address = Address.parse(text)
    folder = depots.of(address).folder
    if folder is None:
        raise ValueError(f"the depot {address.depot!r} has no 'folder', in which files could lie")
    return "/".join(
        part for part in (folder.rstrip("/"), address.collection, address.dataset) if part
    )


def _place(given: JobInput | JobOutput, depots: Depots, *, writes: bool) -> DataPlace:
    decodes = (given.format or "").strip().lower() == "kafkajson"
    if given.dataset is None:
        if given.format is None:
            raise ValueError("give 'dataset', or 'format' with its 'options'")
        name = format_called(given.format)
        return DataPlace(name, given.options, _shown(name, given.options), decodes)
    address = Address.parse(given.dataset)
    depot = depots.of(address)
    name = _agreed(given.format, depot, address)
    dataset = _dataset_options(name)
    keys = dataset.write if writes else dataset.read
    where = _where(dataset, depot, address)
    _check_said_once(given, where, keys)
    options = {**depot.options, keys[0]: where, **given.options}
    return DataPlace(name, options, f"{address.depot}: {where}", decodes)


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


def _agreed(given: str | None, depot: Depot, address: Address) -> str:
    if depot.format is None:
        if given is None:
            raise ValueError(
                f"set 'format': the depot {address.depot!r} does not specify the format of its "
                "datasets"
            )
        return format_called(given)
    own = format_called(depot.format)
    # `Parquet` of a depot of krishiv-parquet is that: published files know short names only.
    if given is not None and own not in {format_called(given), f"krishiv-{given.strip().lower()}"}:
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
    """Of all options only those that say where it is: others may be secret."""
    where = {key.lower(): text for key, text in options.items()}
    own = _dataset_options(name)
    keys = (*own.read, *own.write, "subscribe", "topic", "table", "path", "name")
    known = [where[key] for key in keys if key in where]
    return f"{name}: {known[0]}" if known else name


def misfits(given: JobOutput, place: DataPlace) -> Iterator[tuple[str, str]]:
    """Yield the keys of an output that its format has no option for, each with an error text."""
    for key, (option, what) in _FITS.items():
        value = getattr(given, key)
        wanted = value == "update" if key == "output_mode" else bool(value)
        # Spark's own formats take partitions, and report themselves what they do not support.
        spares = key == "partition_by" and not place.is_ours
        if wanted and not spares and not _has_option(place.source, option):
            fits = sorted(
                source.format_name for source in installed_formats() if _has_option(source, option)
            )
            yield to_camel(key), f"{what} is for {' and '.join(fits)}, not for {place.format}"


def _has_option(source: type[KrishivDataSource] | None, option: str) -> bool:
    writer = None if source is None else source.writer_type
    return writer is not None and option in writer.options_type.model_fields


def _own_options(given: JobOutput, place: DataPlace) -> dict[str, str]:
    """The options that an output's own keys stand for, where they fit."""
    unfit = {key for key, _ in misfits(given, place)}
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
