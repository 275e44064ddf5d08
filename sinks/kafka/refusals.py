"""What a leader's refusal means, and what its user can change."""

from __future__ import annotations

__all__ = ["explain"]

_FENCED = (
    "the producer was fenced, by another attempt at this task or by a newer driver on the same "
    "checkpoint"
)
_EXPIRED = "the transaction was ended by the broker or by another driver: see its time-out"
_EXPLANATIONS = {
    "MessageSizeTooLargeError": "raise the topic's 'max.message.bytes', or lower "
    "'kafka.batch.size'",
    "RecordListTooLargeError": "lower 'kafka.batch.size' below the topic's 'segment.bytes'",
    "TopicAuthorizationFailedError": "the user needs the ACL WRITE on this topic",
    "TransactionalIdAuthorizationFailedError": "the user needs the ACLs WRITE and DESCRIBE on "
    "the transactional id",
    "ClusterAuthorizationFailedError": "the user needs the ACL IDEMPOTENT_WRITE on the cluster",
    "InvalidProducerEpochError": _FENCED,
    "ProducerFencedError": _FENCED,
    "InvalidTxnStateError": _EXPIRED,
    "InvalidProducerIdMappingError": _EXPIRED,
    "TransactionAbortableError": _EXPIRED,
    "InvalidTimestampError": "the topic's 'message.timestamp.before.max.ms' and "
    "'...after.max.ms' refuse this time: change them, or the column 'timestamp'",
    "InvalidRecordError": "a compacted topic needs a key in every record",
    "UnsupportedCompressionTypeError": "choose another 'kafka.compression.type'",
    "NotEnoughReplicasError": "fewer replicas are in sync than 'min.insync.replicas' requires",
}
"""By the name of kafka-python's error."""


def explain(error: Exception, records: int, size: int) -> str:
    """The text of a refusal, with what to do.

    Args:
        error: The kafka-python error that stands for the broker's code.
        records: How many records the batch had.
        size: How many bytes.
    """
    what = f"{error} (a batch of {records} records, {size} bytes)"
    hint = _EXPLANATIONS.get(type(error).__name__)
    return f"{what}; {hint}" if hint else what
