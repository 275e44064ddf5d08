"""The commands of ``krishiv-spark``. Each is a function with the name of the command."""
