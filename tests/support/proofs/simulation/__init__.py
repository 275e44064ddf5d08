"""Histories of the production code that never happened, but may: see docs/design/models.md."""
