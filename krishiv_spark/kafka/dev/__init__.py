"""Real Kafka brokers on loopback, for development and tests.

    with open_cluster() as cluster:
        KafkaProducer(bootstrap_servers=cluster.bootstrap)

    with open_cluster(secure=True, settings=ACLS) as cluster:
        rows = spark.read.format("krishiv-kafka").options(**cluster.secure.options("PLAIN"))

Brokers come from the first of these that is there: the environment variable
``KRISHIV_TEST_KAFKA`` (the address of some that run already), a container engine, or Kafka's own
jars from Maven Central, which are kept in the user's cache.
"""

from krishiv_spark.kafka.dev.clusters import Cluster, open_cluster
from krishiv_spark.kafka.dev.secure import ACLS, Secure

__all__ = ["ACLS", "Cluster", "Secure", "open_cluster"]
