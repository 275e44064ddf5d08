"""The parts that the Parquet source and sink share, such as the layout of a table's folder."""
