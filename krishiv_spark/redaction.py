"""Texts without what must not be shown."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["without_secrets"]


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """A text with ``***`` in the place of each secret."""
    # The longest first: one that is a part of another would leave the rest of it.
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
