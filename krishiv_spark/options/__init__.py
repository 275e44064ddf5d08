"""Options of connectors, parsed into typed models: unknown keys are refused.

Their values may be references to secrets (`references`), and a secret that is written out is warned
of (`plain_secrets`).
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
