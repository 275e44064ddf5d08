"""The statements of docs/from-spark-kafka.md about each option of Spark's connector."""

import re

import pytest
from wheels import ROOT

from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sources.kafka.options import KafkaSourceOptions

PAGE = (ROOT / "docs" / "from-spark-kafka.md").read_text()
ROW = re.compile(
    r"^\| (`[\w.]+`(?:, `[\w.]+`)*)(?: \(sink\))? \| (same|no effect|unknown|refused|other) \|",
    re.MULTILINE,
)
VALUES = {
    "kafka.bootstrap.servers": "b:9092",
    "subscribe": "t",
    "subscribePattern": "t.*",
    "assign": '{"t": [0]}',
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "startingTimestamp": "1",
    "endingTimestamp": "1",
    "startingOffsetsByTimestamp": '{"t": {"0": 1}}',
    "endingOffsetsByTimestamp": '{"t": {"0": 1}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "maxTriggerDelay": "5m",
    "kafka.isolation.level": "read_committed",
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.compression.type": "zstd",
    "topic": "t",
}
ALONE = {"subscribePattern", "assign"}  # one of these goes with no subscribe
BESIDE = {
    "kafka.sasl.mechanism": {"kafka.security.protocol": "SASL_PLAINTEXT"},
    "maxTriggerDelay": {"minOffsetsPerTrigger": "5"},
}
OTHERWISE = {  # needs files, or a whole login: docs/kafka-operations.md, tests/brokers
    "kafka.sasl.jaas.config",
    "kafka.sasl.mechanism",
    "kafka.security.protocol",
    "kafka.ssl.keystore.location",
    "kafka.ssl.keystore.password",
    "kafka.ssl.truststore.location",
    "kafka.ssl.truststore.password",
}


def rows(heading: str) -> list[tuple[str, str]]:
    """The options of a part of the page, and what becomes of each."""
    (part,) = re.findall(rf"^{re.escape(heading)}.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return [
        (name, fate) for names, fate in ROW.findall(part) for name in re.findall(r"[\w.]+", names)
    ]


def faults(model, name):
    given = {"kafka.bootstrap.servers": "b:9092", **BESIDE.get(name, {})}
    if model is KafkaSourceOptions and name not in ALONE:
        given["subscribe"] = "t"
    given[name] = VALUES.get(name, "5")
    found = model.find_errors(given, "krishiv-kafka")
    return [fault for fault in found if fault.key == name or f"'{name}'" in fault.text]


SOURCE = [(KafkaSourceOptions, *row) for row in rows("## The source, option by option")]
SINK = [(KafkaSinkOptions, *row) for row in rows("## The sink, option by option")]
SETTINGS = [(KafkaSinkOptions, *row) for row in rows("## Kafka's own settings")]


@pytest.mark.parametrize(
    ("model", "name", "fate"),
    [row for row in (*SOURCE, *SINK, *SETTINGS) if row[1] not in OTHERWISE],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_option_fares_as_the_page_says(model, name, fate):
    found = faults(model, name)
    assert bool(found) == (fate in {"refused", "unknown"})
    if fate == "unknown":
        assert "unknown" in found[0].text.lower()


def test_the_page_has_each_option_of_sparks_source():
    listed = {name for _, name, _ in SOURCE}
    ours = {name.lower() for name in KafkaSourceOptions.names()}
    assert len(listed) == 24
    accepted = {name for name in listed if name.lower() in ours}
    assert listed - accepted <= {"kafka.bootstrap.servers"}
