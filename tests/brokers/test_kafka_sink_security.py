"""The permissions that the sink needs, and its errors without them."""

import uuid

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from kafka_topics import LIMITS, make_topic, set_transaction_version
from patience import await_that

from krishiv_spark.errors import CommitUnknown
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaRefusedError, open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import ACLS, open_cluster
from krishiv_spark.operate.doctor.findings import FindingList, Questions
from krishiv_spark.operate.doctor.probe import check_brokers
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaWriter

pytestmark = pytest.mark.long  # a cluster with TLS and ACLs

READ, WRITE, DESCRIBE = ACLOperation.READ, ACLOperation.WRITE, ACLOperation.DESCRIBE
ROW = pa.record_batch({"value": ["row"]})


class Bench:
    """A user who may do what is allowed here, in a cluster that asks."""

    def __init__(self, cluster, folder) -> None:
        self._cluster, self._folder = cluster, folder
        self.topic, self.prefix = f"t-{uuid.uuid4().hex}", f"p-{uuid.uuid4().hex}"
        make_topic(cluster.bootstrap, self.topic)
        self.anybody = open_client(
            KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap})
        )

    def allow_topic(self, *operations):
        self._allow(ResourcePattern(ResourceType.TOPIC, self.topic), operations)

    def allow_ids(self, *operations):
        prefixed = ACLResourcePatternType.PREFIXED
        pattern = ResourcePattern(ResourceType.TRANSACTIONAL_ID, f"{self.prefix}.", prefixed)
        self._allow(pattern, operations)

    def _allow(self, pattern, operations):
        admin = KafkaAdminClient(bootstrap_servers=self._cluster.bootstrap, **LIMITS)
        user = f"User:{self._cluster.secure.user}"
        made = [ACL(user, "*", what, ACLPermissionType.ALLOW, pattern) for what in operations]
        admin.create_acls(made)
        admin.close()

    def kafka(self):
        """Options that name the cluster."""
        return {
            **self._cluster.secure.options(),
            "kafka.transactional.id": self.prefix,
            "kafka.metadata.max.age.ms": "1",
        }

    def writer(self):
        given = {**self.kafka(), "topic": self.topic, "epochLog": str(self._folder)}
        options = KafkaSinkOptions.parse(given, "krishiv-kafka")
        return KafkaWriter(options, ROW.schema, OutputMode.APPEND)

    def stage(self, writer):
        """As a planner and a task do."""
        writer.check()
        owns = writer.committer().begin(Epoch("query", 0))
        task = Task("query", 0, 0, 0, owns.generation)
        staged = writer.stage(iter([ROW]), task, writer.plan(owns))
        return Epoch("query", 0, owns.generation), staged


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(secure=True, settings=ACLS) as found:
        yield found


@pytest.fixture
def bench(cluster, tmp_path):
    return Bench(cluster, tmp_path)


def test_a_topic_that_may_not_be_seen(bench):
    with pytest.raises(KafkaRefusedError, match="ACL DESCRIBE"):
        bench.writer().check()


def test_a_topic_that_may_not_be_written_is_refused_before_the_first_row(bench):
    bench.allow_topic(DESCRIBE)
    with pytest.raises(KafkaRefusedError, match=f"{bench.topic}.*ACL WRITE"):
        bench.writer().check()


def test_ids_that_may_not_be_seen(bench):
    bench.allow_topic(WRITE)
    with pytest.raises(KafkaRefusedError, match="TransactionalIdAuthorizationFailed"):
        bench.stage(bench.writer())


def test_ids_that_may_not_be_used_are_refused_before_a_row_is_sent(bench):
    bench.allow_topic(WRITE)
    bench.allow_ids(DESCRIBE)
    with pytest.raises(KafkaRefusedError, match="ACLs WRITE and DESCRIBE on this transactional id"):
        bench.stage(bench.writer())


def test_what_the_table_in_the_documentation_lists_is_enough(bench):
    bench.allow_topic(WRITE, DESCRIBE)
    bench.allow_ids(WRITE, DESCRIBE)
    writer = bench.writer()
    epoch, staged = bench.stage(writer)
    writer.committer().publish(epoch, [staged])
    assert transactions.find_outcomes(bench.anybody, [staged.transaction])


def test_a_refusal_behind_the_intent_is_not_answered_with_a_restart(bench):
    """The id is in use again, so only the topic can tell what became of the transaction."""
    bench.allow_topic(WRITE, DESCRIBE)
    bench.allow_ids(WRITE, DESCRIBE)
    writer = bench.writer()
    epoch, staged = bench.stage(writer)
    transactions.begin_transaction(bench.anybody, staged.transaction.transactional_id, 60_000)
    with pytest.raises(CommitUnknown, match="ACL READ") as failed:
        writer.committer().participant.finish_or_salvage(epoch, [staged])
    assert "restart" not in str(failed.value)


def test_under_the_older_rules_the_topic_has_to_be_read(bench, cluster):
    set_transaction_version(cluster.bootstrap, 1)
    bench.allow_topic(WRITE, DESCRIBE)
    with pytest.raises(KafkaRefusedError, match=r"ACL READ.*transaction\.version"):
        bench.writer().check()
    bench.allow_topic(READ)
    bench.writer().check()


def test_the_doctor_says_which_rights_are_missing(bench):
    def told():
        said = FindingList()
        check_brokers(Questions("p", topic=bench.topic, options=bench.kafka()), said)
        return [str(one) for one in said.found if one.level == "WRONG"]

    ids, topic = told()
    assert (
        f"allow WRITE and DESCRIBE on the transactional ids that start with '{bench.prefix}." in ids
    )
    assert bench.topic in topic
    assert "ACL" in topic
    bench.allow_ids(WRITE, DESCRIBE)
    bench.allow_topic(WRITE, READ)
    await_that(lambda: told() == [])
