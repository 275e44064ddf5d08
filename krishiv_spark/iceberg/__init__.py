"""Apache Iceberg: the parts that its source and its sink share, over PyIceberg's catalogs."""
