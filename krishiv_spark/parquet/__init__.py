"""What the Parquet source and sink share: the layout of a table's folder."""
