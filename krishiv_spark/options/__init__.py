"""Options of connectors, parsed into typed models: unknown keys are refused.

Values may be references to secrets (`references`). A secret that is written out causes a warning
(`plain_secrets`).
"""

from krishiv_spark.options.model import (
    ByteSize,
    DistinctNames,
    Duration,
    Names,
    OptionFault,
    Options,
    SecretStr,
    parse_bytes,
    parse_duration,
)

__all__ = [
    "ByteSize",
    "DistinctNames",
    "Duration",
    "Names",
    "OptionFault",
    "Options",
    "SecretStr",
    "parse_bytes",
    "parse_duration",
]
