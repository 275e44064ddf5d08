"""Sinks: the contract in `base`, and one module per format."""
