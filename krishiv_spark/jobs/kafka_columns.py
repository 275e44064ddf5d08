"""The columns of an input that reads Kafka: options of ``kafkajson``, and their check. Driver."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.records.scanner import SCHEMA
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.row_schema import KafkaRowSchema, parse_fields
from krishiv_spark.sources.kafka.values import ERROR_COLUMN, RAW_COLUMN, UNKNOWN_COLUMN

__all__ = ["columns_fault", "json_options", "option_without_fields"]

_COMPANIONS = (
    ("badrecords", "divert", (RAW_COLUMN, ERROR_COLUMN)),
    ("unknownfields", "keep", (UNKNOWN_COLUMN,)),
)
"""By option in lower case and value, the columns that it adds."""

_OF_VALUES = {"badrecords", "nullvalues", "unknownfields", "timezone", "epochunit"}
"""Options about the fields of values, in lower case."""


def json_options(options: Mapping[str, str], schema: str) -> dict[str, str]:
    """Return the options of a ``kafkajson`` input with those that its schema stands for.

    Its columns are Kafka's own, the fields of the values, and those that the options add.

    Args:
        options: As given, in any case. They take precedence.
        schema: The fields of the values.

    Raises:
        ValueError: If the schema cannot be parsed.
    """
    given = {key.lower(): text.strip().lower() for key, text in options.items()}
    names = [field.name for field in parse_fields(schema)]
    left_out = set() if given.get("includeheaders") == "true" else {"headers"}
    kafka = [name for name in SCHEMA.names if name not in left_out]
    added = [
        name
        for option, value, companions in _COMPANIONS
        if given.get(option) == value
        for name in companions
    ]
    chosen = dict.fromkeys([*(name for name in kafka if name not in names), *names, *added])
    own = {"valueFormat": "json", "valueSchema": schema, "columns": ",".join(chosen)}
    return {**{key: text for key, text in own.items() if key.lower() not in given}, **options}


def option_without_fields(options: Mapping[str, str]) -> str | None:
    """Return an option about JSON values where no option asks for JSON; None if there is none."""
    if any(key.lower() in {"valueformat", "valueschema"} for key in options):
        return None
    return next((key for key in options if key.lower() in _OF_VALUES), None)


def columns_fault(options: KafkaSourceOptions, schema: str | None) -> str | None:
    """Return the reason for which the source would refuse its columns at the start; None if none.

    Args:
        options: Of the source.
        schema: The columns that are given to Spark, if any.
    """
    if options.value_format == "avro":  # the registry has the columns
        return None
    try:
        if schema is None:
            KafkaRowSchema.from_options(options)
            return None
        fields = parse_fields(schema)
    except (OptionError, SchemaError) as error:
        return str(error)
    except ValueError:  # Spark knows more types than the options
        return None
    try:
        KafkaRowSchema.from_schema(options, pa.schema(list(fields))).check()
    except (OptionError, SchemaError) as error:
        return str(error)
    return None
