"""Reading from Iceberg: snapshots as batches, each row exactly once."""
