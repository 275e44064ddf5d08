"""Apache Iceberg: what its source and sink share, over PyIceberg's catalogs."""
