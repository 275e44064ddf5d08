"""Events as Spark's listeners get them, from its JSON."""

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

QUERY = "0f000000-0000-0000-0000-000000000001"
RUN = "0f000000-0000-0000-0000-0000000000ff"
AT = "2013-01-01T05:00:00.000Z"
SOURCE = {
    "description": "KafkaV2[Subscribe[orders]]",
    "startOffset": None,
    "endOffset": {"orders": {"0": 10, "1": 5}},
    "latestOffset": {"orders": {"0": 12, "1": 5}},
    "numInputRows": 15,
    "inputRowsPerSecond": 3.0,
    "processedRowsPerSecond": 5.0,
}


def started(query: str = QUERY, name: str | None = "orders", run: str = RUN) -> QueryStartedEvent:
    return QueryStartedEvent.fromJson(
        {"id": query, "runId": run, "name": name, "timestamp": AT, "jobTags": []}
    )


def progressed(epoch: int = 0, query: str = QUERY, **said: object) -> QueryProgressEvent:
    told = {
        "id": query,
        "runId": RUN,
        "name": "orders",
        "timestamp": AT,
        "batchId": epoch,
        "batchDuration": 1500,
        "durationMs": {"addBatch": 1000, "triggerExecution": 1500},
        "eventTime": {"watermark": "2013-01-01T04:00:00.000Z"},
        "stateOperators": [],
        "sources": [SOURCE],
        "sink": {"description": "sink", "numOutputRows": 15},
        "numInputRows": 15,
        "inputRowsPerSecond": 3.0,
        "processedRowsPerSecond": 10.0,
    }
    return QueryProgressEvent.fromJson({"progress": {**told, **said}})


def idle(query: str = QUERY, run: str = RUN) -> QueryIdleEvent:
    return QueryIdleEvent.fromJson({"id": query, "runId": run, "timestamp": AT})


def ended(
    query: str = QUERY,
    error: str | None = None,
    error_class: str | None = None,
    run: str = RUN,
) -> QueryTerminatedEvent:
    told = {"id": query, "runId": run, "exception": error, "errorClassOnException": error_class}
    return QueryTerminatedEvent.fromJson(told)
