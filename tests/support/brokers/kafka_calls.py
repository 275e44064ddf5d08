"""The calls by which our code asks brokers, for the kit to stop at."""

from krishiv_spark.kafka.client import KafkaFailedError

REQUESTS = {
    f"krishiv_spark.kafka.client:KafkaClient.{name}": KafkaFailedError for name in ("ask", "submit")
}
