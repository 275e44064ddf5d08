"""The source ``krishiv-memory``, a stream of rows that a program pushes."""
