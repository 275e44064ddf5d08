"""Change data: records that tell how a row of a database has changed."""
