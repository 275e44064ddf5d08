"""The source of ``krishiv-iceberg``: batches, streams and changes of tables."""
