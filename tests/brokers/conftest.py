"""Fixtures: catalogs and PostgreSQL on loopback."""

from iceberg_catalogs import place, postgresql, rest  # noqa: F401  fixtures
from pg_server import database, server  # noqa: F401  fixtures
