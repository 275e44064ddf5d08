"""Fixtures: catalogs on loopback."""

from iceberg_catalogs import place, postgresql, rest  # noqa: F401  fixtures
