"""What inputs, outputs and checkpoints name, as formats with their options."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic.alias_generators import to_camel

from krishiv_spark.jobs.depots import Address, Depot, Depots, format_called
from krishiv_spark.jobs.models import JobInput, JobOutput

__all__ = ["DataPlace", "folder_of", "input_place", "misfits", "output_place"]

_KAFKA, _ICEBERG, _MEMORY = "krishiv-kafka", "krishiv-iceberg", "krishiv-memory"
_NAMES = {_ICEBERG: {"path", "table"}, _MEMORY: {"path", "name"}}
"""By format, options in lower case that say where it is, if there are several."""

_FITS = {
    "keys": ({_ICEBERG, _MEMORY}, "'keys' (upsert)"),
    "output_mode": ({_ICEBERG, _MEMORY}, "'outputMode' = update"),
    "sort": ({_ICEBERG}, "'sort'"),
    "properties": ({_ICEBERG}, "'properties'"),
    "partition_by": ({_ICEBERG, "krishiv-parquet"}, "'partitionBy'"),
}
"""By key of an output, the formats that it is for, and how it is called."""


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
    def is_ours(self) -> bool:
        """Whether it is one of this package's formats."""
        return self.format.startswith("krishiv-")


def input_place(given: JobInput, depots: Depots) -> DataPlace:
    """Where an input reads.

    Raises:
        ValueError: If that is not said, or twice.
    """
    return _place(given, depots, {_KAFKA: "subscribe"})


def output_place(given: JobOutput, depots: Depots) -> DataPlace:
    """Where an output writes; with the options that its own keys stand for.

    Raises:
        ValueError: Likewise.
    """
    place = _place(given, depots, {_KAFKA: "topic"})
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


def _place(given: JobInput | JobOutput, depots: Depots, keys: Mapping[str, str]) -> DataPlace:
    decodes = (given.format or "").strip().lower() == "kafkajson"
    if given.dataset is None:
        if given.format is None:
            raise ValueError("give 'dataset', or 'format' with its 'options'")
        name = format_called(given.format)
        return DataPlace(name, given.options, _shown(name, given.options), decodes)
    address = Address.parse(given.dataset)
    depot = depots.of(address)
    name = _agreed(given.format, depot, address)
    key = keys.get(name, "path")
    where = _where(name, depot, address)
    _check_said_once(given, where, _NAMES.get(name, set()) | {key})
    options = {**depot.options, key: where, **given.options}
    return DataPlace(name, options, f"{address.depot}: {where}", decodes)


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


def _where(name: str, depot: Depot, address: Address) -> str:
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
    if name in {_KAFKA, _MEMORY}:
        if address.collection:
            raise ValueError(
                f"the depot {address.depot!r} has no collections: write "
                f"'dataos://{address.depot}:default/{address.dataset}', or give the depot 'place', "
                "as '{collection}.{dataset}'"
            )
        return address.dataset
    parts = [part for part in (address.collection, address.dataset) if part]
    if name == _ICEBERG:
        return ".".join(parts)
    if depot.folder is None:
        raise ValueError(f"the depot {address.depot!r} has neither 'folder' nor 'place'")
    return "/".join([depot.folder.rstrip("/"), *parts])


def _shown(name: str, options: Mapping[str, str]) -> str:
    """Of all options only those that say where it is: others may be secret."""
    where = {key.lower(): text for key, text in options.items()}
    known = [where[key] for key in ("subscribe", "topic", "table", "path", "name") if key in where]
    return f"{name}: {known[0]}" if known else name


def misfits(given: JobOutput, place: DataPlace) -> Iterator[tuple[str, str]]:
    """Keys of an output that its format has no use for, each with what is wrong."""
    for key, (formats, what) in _FITS.items():
        value = getattr(given, key)
        wanted = value == "update" if key == "output_mode" else bool(value)
        # Spark's own formats take partitions, and say themselves what they do not.
        spares = key == "partition_by" and not place.is_ours
        if wanted and not spares and place.format not in formats:
            yield (
                to_camel(key),
                f"{what} is for {' and '.join(sorted(formats))}, not for {place.format}",
            )


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
