"""How long a test waits for what must happen: for ever, if the machine is only slow enough."""

PATIENCE = 600
"""Seconds. What does not happen fails then; what happens late does not fail."""
