"""The parts of a new format, to be filled in."""
