"""Tables with all versions of rows (``mode = scd2``)."""
