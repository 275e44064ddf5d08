"""JSON records with a schema; `krishiv_spark.arrow` reads them."""
