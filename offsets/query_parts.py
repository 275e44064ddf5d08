"""What a query is called in each of several targets that have one epoch log together."""

from __future__ import annotations

__all__ = ["part_of_query", "whole_query"]


def part_of_query(query: str, route: str) -> str:
    """What the part of a query is called that goes one route."""
    return f"{query}-{route}"


def whole_query(part: str, route: str | None) -> str:
    """The query that a part belongs to; itself without a route."""
    return part if route is None else part.removesuffix(f"-{route}")
