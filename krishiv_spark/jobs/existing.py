"""Save modes that Spark refuses for Python formats: ``ignore`` and ``errorIfExists``. Driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError
from krishiv_spark.jobs.ready import ReadyOutput

if TYPE_CHECKING:
    from krishiv_spark.jobs.places import DataPlace

__all__ = ["check_save_mode"]


def check_save_mode(output: ReadyOutput) -> bool:
    """Whether an output is to be written, as far as that depends on what is there.

    Two jobs that look at the same time both write: nothing is held in between.

    Returns:
        False if something is there, and is to be left as it is.

    Raises:
        OptionError: If something is there, and nothing may be.
    """
    mode = output.model.save_mode
    if mode in {"append", "overwrite"} or not output.place.is_ours or not _is_there(output.place):
        return True
    if mode == "ignore":
        return False
    raise OptionError(
        f"output {output.model.name!r}: {output.place.shown} exists already, and 'saveMode' is "
        "errorIfExists: set append, overwrite or ignore, or another target"
    )


def _is_there(place: DataPlace) -> bool:
    if place.format == "krishiv-iceberg":
        from krishiv_spark.iceberg.catalogs import catalog_errors, open_catalog
        from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

        table = IcebergSinkOptions.parse(place.options, place.format)
        with catalog_errors(table, "look for the table"):
            catalog = open_catalog(table, create=True)
            return bool(catalog.table_exists(table.identifier))
    if place.format == "krishiv-parquet":
        from krishiv_spark.sinks.parquet.kinds import kind_of
        from krishiv_spark.sinks.parquet.options import ParquetSinkOptions

        files = kind_of(ParquetSinkOptions.parse(place.options, place.format)).table.visible()
        return next(iter(files), None) is not None
    if place.format == "krishiv-memory":
        from krishiv_spark.memory.results import is_name
        from krishiv_spark.memory.store import open_store
        from krishiv_spark.sinks.memory import MemorySinkOptions

        name = MemorySinkOptions.parse(place.options, place.format).result_name()
        return name is not None and is_name(open_store(), name)
    return False
