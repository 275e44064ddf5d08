"""Rows that a program pushes, as a stream."""
