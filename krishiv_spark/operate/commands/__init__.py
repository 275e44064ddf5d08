"""The commands of ``krishiv-spark``: one module each, which defines a command of its own name."""
