"""Topics read by Kafka's own console consumer, in Java."""

import subprocess

from patience import PATIENCE

from krishiv_spark.kafka.dev.brokers import KAFKA_VERSION, kafka_jars
from krishiv_spark.maven import Jar, bring, java

QUIET_MS = 5_000
"""It ends when nothing has come for so long; a start of Java and a poll take less."""

MAIN = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def console_values(bootstrap: str, topic: str) -> list[str]:
    """Values of all records of committed transactions, as text."""
    tools = Jar("org.apache.kafka", "kafka-tools", KAFKA_VERSION)
    folder = bring(f"{tools.name}-{tools.version}", [tools], transitive=False)
    given = ("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning")
    how = ("--isolation-level", "read_committed", "--timeout-ms", str(QUIET_MS))
    path = f"{folder}/*:{kafka_jars()}/*"
    run = subprocess.run(
        [java(), "-Xmx256m", "-cp", path, MAIN, *given, *how],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    values = run.stdout.splitlines()
    assert run.returncode == 0, run.stderr
    assert f"Processed a total of {len(values)} messages" in run.stderr, run.stderr
    return values
