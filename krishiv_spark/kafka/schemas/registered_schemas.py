"""Schemas of a registry, as they were found there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ["RegisteredSchema"]


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry.

    Attributes:
        id: Its number, by which records name it.
        kind: "avro", "protobuf" or "json-schema".
        text: The schema.
        references: The name and text of each schema that it refers to, after those that this one
            needs itself.
        version: Its version in the subject by which it was found; 0 if it was found by its id.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    version: int = 0

    @property
    def fingerprint(self) -> str:
        """A digest of the schema with all that it refers to."""
        parts = [self.kind, self.text, *(f"{k}={v}" for k, v in self.references)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
