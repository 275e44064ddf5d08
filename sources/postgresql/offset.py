"""Offsets of a batch read, which no checkpoint stores: there is only a start and an end."""

from __future__ import annotations

from typing import ClassVar, Literal

from krishiv_spark.offsets import Offset

__all__ = ["PostgresqlOffset"]


class PostgresqlOffset(Offset):
    """The position of a batch read.

    Attributes:
        at: ``start`` before the first row, ``end`` after the last one.
    """

    kind: ClassVar[str] = "postgresql"

    at: Literal["start", "end"] = "start"
