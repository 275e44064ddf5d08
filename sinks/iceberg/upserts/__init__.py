"""Epochs that change rows: their changes, the rows that they replace, and the deletes of these."""
