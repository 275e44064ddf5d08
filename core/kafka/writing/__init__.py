"""Writing to Kafka: rows of a task become batches, and batches reach the leaders, each once."""
