"""Reading folders of Parquet files, and all that this alone needs."""
