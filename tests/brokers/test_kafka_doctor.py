"""The doctor's questions to a real broker leave nothing open, and fence nobody."""

import uuid

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.operate.doctor.findings import FindingList, Questions
from krishiv_spark.operate.doctor.probe import check_brokers


def test_two_doctors_have_an_id_each_and_leave_no_transaction_open():
    team = f"team-{uuid.uuid4().hex[:8]}"
    with open_cluster() as cluster:
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "kafka.transactional.id": team}
        for probe in ("one", "two"):
            said = FindingList()
            check_brokers(Questions(probe, options=given), said)
            assert [f for f in said.found if "described and listed" in str(f)], said.found
        client = open_client(KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap}))
        found = transactions.list_transactions(client, f"{team}.")
    assert found == {f"{team}.doctor-{probe}.0.0": "Empty" for probe in ("one", "two")}
