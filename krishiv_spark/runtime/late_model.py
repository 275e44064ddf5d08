"""What our pydantic models have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["LateModel"]


class LateModel(BaseModel):
    """A model whose validator is built by who validates first: most processes never do.

    Those of others are built at once. They may be sent by value, as from a notebook; where one
    comes a second time, cloudpickle gives the class that is there its first state again, and
    pydantic would look for ever for a validator that it has built already.
    """

    model_config = ConfigDict(defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Build it, unless it is one of this package's."""
        super().__pydantic_init_subclass__(**kwargs)
        if not cls.__module__.startswith("krishiv_spark."):
            cls.model_rebuild(raise_errors=False)
