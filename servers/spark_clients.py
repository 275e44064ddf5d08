"""Spark's own clients of stores, which are not among its jars: Hadoop's connectors."""

import re
from pathlib import Path

import pyspark

from krishiv_spark.kafka.dev.maven import Jar, bring
from servers.stores import HADOOP, Store

__all__ = ["client_jars", "spark_settings"]

AWS_SDK = "2.35.4"  # what hadoop-aws was built with
ANALYTICS = "1.3.1"
GOOGLE = "hadoop3-2.2.26"
_HADOOP = "org.apache.hadoop"

# What the bundle of Amazon's SDK has that s3a calls: 15 of its 690 MB.
_OF_SDK = [
    Jar("software.amazon.awssdk", name, AWS_SDK)
    for name in ("s3", "s3-transfer-manager", "sts", "netty-nio-client", "apache-client")
]
_OWN = {
    "s3a": [
        Jar(_HADOOP, "hadoop-aws", HADOOP),
        Jar("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", ANALYTICS),
    ],
    # Not Hadoop's own (hadoop-gcp 3.5.0): that asks Google itself, whatever is set.
    "gs": [Jar("com.google.cloud.bigdataoss", "gcs-connector", GOOGLE, "shaded")],
    "abfs": [
        Jar(_HADOOP, "hadoop-azure", HADOOP),
        Jar("com.microsoft.azure", "azure-storage", "7.0.1"),
        Jar("org.hdrhistogram", "HdrHistogram", "2.2.2"),
        Jar("org.wildfly.openssl", "wildfly-openssl", "2.2.5.Final"),
    ],
    "hdfs": [],
}
_NAME = re.compile(r"(.+?)-\d")


def spark_settings(store: Store) -> dict[str, str]:
    """By which a session of Spark reaches a store; the first call brings the jars."""
    scheme = store.url.partition(":")[0]
    jars = client_jars(scheme)
    hadoop = {f"spark.hadoop.{name}": value for name, value in store.hadoop.items()}
    return {**hadoop, **({"spark.jars": ",".join(map(str, jars))} if jars else {})}


def client_jars(scheme: str) -> list[Path]:
    """Return the jars that Spark needs for stores of a scheme; the first call downloads them."""
    own = _OWN[scheme]
    version = GOOGLE if scheme == "gs" else HADOOP
    folders = [bring(f"hadoop-{scheme}-{version}", own, transitive=False)] if own else []
    if scheme == "s3a":
        folders.append(bring(f"aws-sdk-s3-{AWS_SDK}", _OF_SDK, transitive=True))
    spark = {_artifact(path) for path in Path(pyspark.__path__[0], "jars").glob("*.jar")}
    found = [path for folder in folders for path in sorted(folder.glob("*.jar"))]
    return [path for path in found if _artifact(path) not in spark]


def _artifact(path: Path) -> str:
    match = _NAME.match(path.name)
    return match[1] if match else path.stem
