"""Writing to Iceberg: tasks write data files, the driver commits a snapshot for each epoch."""
