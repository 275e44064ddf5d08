"""A Kafka cluster in memory: coordinators, partitions, brokers, and the network before them."""
