"""The source ``krishiv-parquet``, which reads folders of Parquet files."""
