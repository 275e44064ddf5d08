"""Moving or copying a warehouse of the embedded catalog: ``krishiv-spark iceberg relocate``."""
