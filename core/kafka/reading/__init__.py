"""Reading Kafka: where a query stands, what a batch takes, and the rows of its tasks."""
