"""Records whose schema is in a registry: Avro to Arrow columns and back."""
