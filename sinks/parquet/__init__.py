"""The sink ``krishiv-parquet``, which writes folders of Parquet files."""
