"""Batch reads of PostgreSQL."""
