"""Arrow: schemas, types and batches, and files that are written from batches."""
