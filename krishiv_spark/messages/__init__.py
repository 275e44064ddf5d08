"""Texts for people: what errors, warnings and terminals show, without secrets."""
