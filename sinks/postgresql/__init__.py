"""The sink ``krishiv-postgresql``."""
