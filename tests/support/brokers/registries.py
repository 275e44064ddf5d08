"""Schema registries that tests start, and records of independent serializers."""

import json

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.schemas.registry import RegistrySettings
from servers.apicurio import running_registry


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A registry of the module's own; its tests use subjects of their own."""
    try:
        with running_registry(tmp_path_factory.mktemp("registry")) as (url, server):
            yield Registry(url, server)
    except KrishivError as error:
        pytest.skip(f"no schema registry: {error}")


class Registry:
    """A running registry, with Confluent's own client."""

    def __init__(self, url, server):
        self.url, self.server = url, server
        self.client = SchemaRegistryClient({"url": url})

    def settings(self, **options):
        given = {f"registry.{name}": str(value) for name, value in options.items()}
        return RegistrySettings.from_options({"registry.url": self.url, **given})

    def register(self, subject, schema, kind="AVRO", references=()):
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return self.client.register_schema(subject, Schema(text, kind, list(references)))

    def serialize_json(self, topic, schema, *values, part=MessageField.VALUE):
        """Values, or keys, as Confluent's serializer of JSON writes them."""
        write = JSONSerializer(json.dumps(schema), self.client)
        return [write(value, SerializationContext(topic, part)) for value in values]

    def serialize(self, topic, schema, *values, part=MessageField.VALUE):
        """Values, or keys, as Confluent's serializer writes them; it registers the schema."""
        write = AvroSerializer(self.client, json.dumps(schema))
        context = SerializationContext(topic, part)
        return [None if value is None else write(value, context) for value in values]
