"""Topics read by Kafka's own console consumer, in Java."""

import subprocess

from patience import PATIENCE

from krishiv_spark.kafka.dev.brokers import KAFKA_VERSION, kafka_jars
from krishiv_spark.kafka.dev.maven import Jar, bring, java

MAIN = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def console_values(bootstrap: str, topic: str, most: int) -> list[str]:
    """Values of the first records of committed transactions, as text; awaits so many of them.

    It could be told to end when nothing has come for a while, which on a busy machine is at once.
    """
    tools = Jar("org.apache.kafka", "kafka-tools", KAFKA_VERSION)
    folder = bring(f"{tools.name}-{tools.version}", [tools], transitive=False)
    given = ("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning")
    how = ("--isolation-level", "read_committed", "--max-messages", str(most))
    waits = ("--timeout-ms", str(1000 * PATIENCE))
    path = f"{folder}/*:{kafka_jars()}/*"
    run = subprocess.run(
        [java(), "-Xmx256m", "-cp", path, MAIN, *given, *how, *waits],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    values = run.stdout.splitlines()
    assert run.returncode == 0, run.stderr
    assert f"Processed a total of {len(values)} messages" in run.stderr, run.stderr
    return values
