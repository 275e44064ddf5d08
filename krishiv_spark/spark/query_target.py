"""The external system that a query writes to, as the query's checkpoint records it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from typing_extensions import Self

from krishiv_spark.messages.redaction import redact

__all__ = ["QueryTarget"]

_DIGITS = 32


@dataclass(frozen=True)
class QueryTarget:
    """A table, a folder, a topic or a memory result. It contains no secret.

    Attributes:
        format: The format of the sink, such as ``krishiv-iceberg``.
        name: Table, path or topic, redacted. It is for messages and is not compared.
        digest: A digest of the whole name. Targets without an identity are compared by it.
        identity: The external system's own id of the target, which does not depend on the path or
            URL; None if the system has no such id, or the target does not exist yet.
        may_be_restored: True if a target of the same name is the same one, also with another
            identity: a database that was restored from a dump has the epochs of the old one.
    """

    format: str
    name: str
    digest: str
    identity: str | None = None
    may_be_restored: bool = False

    @classmethod
    def of(
        cls,
        format_name: str,
        name: str,
        identity: str | None = None,
        secrets: Iterable[str] = (),
        *,
        may_be_restored: bool = False,
    ) -> Self:
        """Describe a target.

        Args:
            format_name: The format of the sink.
            name: The whole name, which may contain a login.
            identity: See the attribute.
            secrets: Values that must not be stored.
            may_be_restored: See the attribute.
        """
        shown = redact(name, secrets)
        return cls(format_name, shown, digest_of(name), identity, may_be_restored)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a record.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: If it is damaged.
        """
        found = json.loads(text)
        identity = found.get("id")
        parts = [found["format"], found["target"], found["digest"], identity]
        if not all(isinstance(part, str) for part in parts if part is not None):
            raise ValueError("a value in it is not text")
        kept = found.get("restored") is True
        return cls(found["format"], found["target"], found["digest"], identity, kept)

    def record(self) -> str:
        """Return the text that `parse` reads: one line."""
        found = {"format": self.format, "target": self.name, "digest": self.digest}
        known: dict[str, object] = {} if self.identity is None else {"id": self.identity}
        known |= {"restored": True} if self.may_be_restored else {}
        return f"{json.dumps({**found, **known})}\n"

    def hiding(self, values: Iterable[str]) -> Self:
        """Return the same target, with some values removed from its name."""
        return replace(self, name=redact(self.name, values))

    def is_same(self, now: QueryTarget) -> bool:
        """Return True if `now` describes this recorded target.

        Args:
            now: The target as it is described today. If it has no identity and the recorded one
                has, the target was removed, and `now` is another one.
        """
        if self.format != now.format:
            return False
        if self.identity is None or (self.may_be_restored and self.digest == now.digest):
            return self.digest == now.digest
        return self.identity == now.identity

    def __str__(self) -> str:
        named = f" ({self.identity})" if self.identity is not None else ""
        return f"{self.format} {self.name}{named}"


def digest_of(name: str) -> str:
    """Return the digest that a record contains instead of the whole name."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:_DIGITS]
