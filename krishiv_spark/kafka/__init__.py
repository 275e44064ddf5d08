"""Apache Kafka: what its source and sink share, and real brokers for development."""
