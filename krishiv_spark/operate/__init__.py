"""Tools for operators: the commands, and the code that they call."""
