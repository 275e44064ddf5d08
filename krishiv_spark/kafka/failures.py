"""What can go wrong between a client and its cluster, and what may pass."""

from __future__ import annotations

from krishiv_spark.errors import KrishivError

__all__ = ["KafkaFailedError", "KafkaRefusedError", "is_retriable"]


class KafkaFailedError(KrishivError):
    """The cluster refused a request, or did not respond in time."""


class KafkaRefusedError(KafkaFailedError):
    """The user lacks a permission: a retry does not help until it is granted."""


def is_retriable(error: BaseException) -> bool:
    """Whether the same request may succeed later: a broker is away, a leader moves, ...

    A batch that arrived damaged counts too, as in Java's producer (``CorruptRecordException``).
    """
    from kafka.errors import (
        CorruptRecordError,
        RetriableError,  # pyright: ignore[reportAttributeAccessIssue]  # stubs of version 2
        UnknownBrokerIdError,  # pyright: ignore[reportAttributeAccessIssue]  # stubs of version 2
    )

    return isinstance(error, RetriableError | UnknownBrokerIdError | CorruptRecordError)
