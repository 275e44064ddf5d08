"""Catalogs of any class, guarded: their tables choose neither code nor hosts. Driver.

Apart from the classes themselves, since the one for REST brings ``requests``, whose import takes a
tenth of a second in each process; other catalogs do without.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog import Catalog, MetastoreCatalog

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.avro_files import bound_avro_files
from krishiv_spark.iceberg.guarded import GuardedCatalog, GuardedMetastoreCatalog
from krishiv_spark.iceberg.options import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from krishiv_spark.iceberg.file_access import FileAccess

__all__ = ["guard"]


def guard(catalog: Catalog, access: FileAccess, given: Mapping[str, Any]) -> Catalog:
    """Have a catalog of any class take no settings from its tables. Driver.

    Catalogs that it has as attributes, as one that adds a cache to another, are guarded too.

    Args:
        catalog: As PyIceberg has created it.
        access: The user's options.
        given: The user's settings of the catalog, before a server added its own.

    Returns:
        The same catalog.

    Raises:
        OptionError: If it is no catalog of PyIceberg.
    """
    bound_avro_files()
    if not isinstance(catalog, Catalog):
        raise OptionError(
            f"{FORMAT}: 'catalog.py-catalog-impl' names {type(catalog).__name__}, which is not "
            "a subclass of pyiceberg.catalog.Catalog"
        )
    if not isinstance(catalog, GuardedCatalog):
        catalog.__class__ = _guarded_class(type(catalog))
        for inner in [one for one in vars(catalog).values() if isinstance(one, Catalog)]:
            guard(inner, access, given)
        if _is_rest(type(catalog)):
            from krishiv_spark.iceberg.rest import GuardedRestCatalog

            cast("GuardedRestCatalog", catalog).keep_choices_of(given)
    guarded = cast("GuardedCatalog", catalog)
    guarded.file_access = access
    return guarded


@lru_cache(maxsize=16)
def _guarded_class(kind: type[Catalog]) -> type[Catalog]:
    return type(kind.__name__, (_find_mixin(kind), kind), {})


def _find_mixin(kind: type[Catalog]) -> type[GuardedCatalog]:
    if _is_rest(kind):
        from krishiv_spark.iceberg.rest import GuardedRestCatalog

        return GuardedRestCatalog
    return GuardedMetastoreCatalog if issubclass(kind, MetastoreCatalog) else GuardedCatalog


def _is_rest(kind: type[Catalog]) -> bool:
    # Without the module there is no class of it, nor one below it.
    module = sys.modules.get("pyiceberg.catalog.rest")
    return module is not None and issubclass(kind, module.RestCatalog)
