"""Texts of errors, warnings and terminals, without secrets."""
