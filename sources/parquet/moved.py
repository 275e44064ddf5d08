"""Whether a query reads on where it has read before. Driver.

Files are known by their paths below the folder that is listed (`Place.root`), so that it can be
moved. Those of another folder would count as read where their names are the same; and where a
pattern moves the folder up, all paths are others, and all files would be read again.
"""

from __future__ import annotations

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.advice import NEW_CHECKPOINT
from krishiv_spark.sources.parquet.places import Place
from krishiv_spark.sources.parquet.position import ParquetOffset

__all__ = ["check_place"]


def check_place(offset: ParquetOffset, place: Place, moved_from: str | None) -> None:
    """Refuse a position in another place.

    Args:
        offset: Where the query stands, or what it is to read again.
        place: Where it looks now.
        moved_from: The option `movedFrom`: where the same files were then.

    Raises:
        OptionError: If the position is one of another folder. Those of releases that did not say
            where they were are taken for ones of this folder.
    """
    known = offset.root
    if known is None or known == place.root:
        return
    if moved_from is not None and known == Place.of(moved_from, place.storage).root:
        return
    raise OptionError(
        f"krishiv-parquet: this query has read files below {known}, and 'path' is {place.root} "
        "now, where others of the same names would count as read: put 'path' back. If these are "
        f"the same, moved: .option('movedFrom', '{known}'). For others use {NEW_CHECKPOINT}"
    )
