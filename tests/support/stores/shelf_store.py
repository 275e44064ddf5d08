"""A store of another package: the class that its author writes.

`test_storage_registry.py` installs it.
"""

from dataclasses import dataclass
from functools import cache

from pydantic import Field, SecretStr

from krishiv_spark.errors import OptionError
from krishiv_spark.storage.gcs import CopiedObjects
from krishiv_spark.storage.objects import ObjectStore
from krishiv_spark.storage.settings import StoreSettings
from krishiv_spark.storage.uploads import RenameUploads


class ShelfSettings(StoreSettings):
    """The settings of a shelf."""

    key: SecretStr | None = Field(default=None, description="Key of the shelf.")


@dataclass(frozen=True)
class ShelfStore(ObjectStore):
    """A bucket in the memory of this process."""

    kind = "shelf"
    schemes = ("shelf", "shelves")
    settings_type = ShelfSettings
    login_options = "'storage.shelf.key'"

    settings: ShelfSettings

    def open_obstore(self, **limits):
        del limits
        if self.settings.key is None:
            raise OptionError(f"{self.url} needs 'storage.shelf.key'")
        return open_shelf(self.url.bucket)

    def uploads(self):
        return RenameUploads(self.url, CopiedObjects(self))


@cache
def open_shelf(bucket):
    from obstore import store

    del bucket
    return store.MemoryStore()
