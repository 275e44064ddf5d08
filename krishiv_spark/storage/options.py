"""What users say of the stores that a connector reaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.options import Options
from krishiv_spark.storage.settings import check_settings, secret_settings
from krishiv_spark.storage.storage import ENVIRONMENT, PREFIX, Storage

__all__ = ["StorageOptions"]


def _storage(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    check_settings(given)
    return Storage.of(given)


class StorageOptions(Options):
    """How stores are reached; for a connector with a checkpoint, an epoch log or a table in one.

    Attributes:
        storage: For all of them.
    """

    storage: Annotated[Storage, BeforeValidator(_storage)] = Field(
        default=ENVIRONMENT,
        validation_alias="storage.<kind>.<setting>",
        description="Settings of object stores and HDFS, where the environment does not specify "
        "them; [storage.md](storage.md).",
    )

    @model_validator(mode="after")
    def _bind_logins(self) -> Self:
        """Have logins go to the places that these options name, and to no other server."""
        named = (value for name, value in vars(self).items() if name != "storage")
        texts = (each for value in named for each in (value if type(value) is tuple else (value,)))
        vars(self)["storage"] = self.storage.also_at(*texts)  # the model is frozen for users
        return self

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """See `Options`."""
        of_stores = {key: text for key, text in given.items() if key.lower().startswith(PREFIX)}
        return super().secret_keys(given) | secret_settings(of_stores)

    gathers: ClassVar[Mapping[str, tuple[str, ...]]] = {"storage": (PREFIX,)}
