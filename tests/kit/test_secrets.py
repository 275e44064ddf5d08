"""No secret in any part of an exception chain, a log line or a message, when the system fails."""

from dataclasses import replace

import pyarrow as pa
import pytest
from planted_sinks import leaking

from examples.webhook_sink import WebhookDataSource
from krishiv_spark.formats import (
    DeltaDataSource,
    IcebergDataSource,
    KafkaDataSource,
    ParquetDataSource,
    PostgresqlDataSource,
)
from krishiv_spark.testing import Broken, FailingConnector, Rule, SecretConformance

JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{}";'
)


class TestWebhookSink(SecretConformance):
    def connector(self, folder, address, secret):  # noqa: ARG002
        return FailingConnector(
            source=WebhookDataSource,
            options={"url": f"http://{address}/", "token": secret, "timeout": "2s"},
        )


@pytest.mark.long  # its client tries a request for ten seconds
class TestDeltaInS3(SecretConformance):
    def connector(self, folder, address, secret):  # noqa: ARG002
        return FailingConnector(
            source=DeltaDataSource,
            options={
                "path": "s3://box/table",
                "storage.s3.endpoint": f"http://{address}",
                "storage.s3.region": "us-east-1",
                "storage.s3.accessKeyId": "AKID",
                "storage.s3.secretAccessKey": secret,
                "storage.s3.sessionToken": secret,
                "storage.s3.timeout": "500 ms",
            },
            schema=pa.schema([("id", pa.int64())]),
            row=lambda number: (number,),
        )


class TestPostgresql(SecretConformance):
    ways = ("refuses", "hangs up")  # what answers in another protocol is a connection that breaks

    def connector(self, folder, address, secret):  # noqa: ARG002
        return FailingConnector(
            source=PostgresqlDataSource,
            options={
                "url": f"postgresql://spark@{address}/shop",
                "password": secret,
                "table": "orders",
                "connectTimeout": "2s",
            },
        )


class TestPostgresqlUrl(TestPostgresql):
    def connector(self, folder, address, secret):
        found = super().connector(folder, address, secret)
        url = f"postgresql://spark:{secret}@{address}/shop"
        return replace(found, options={"url": url, "table": "orders", "connectTimeout": "2s"})


class TestKafka(SecretConformance):
    # A broker repeats no request: what answers in another protocol is a connection that breaks.
    ways = ("refuses", "hangs up")

    def connector(self, folder, address, secret):  # noqa: ARG002
        return FailingConnector(
            source=KafkaDataSource,
            options={
                "kafka.bootstrap.servers": address,
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": JAAS.format(secret),
                "kafka.default.api.timeout.ms": "500",
            },
            schema=pa.schema([("value", pa.string())]),
            row=lambda number: (str(number),),
        )


class TestKafkaSource(TestKafka):
    def connector(self, folder, address, secret):
        found = super().connector(folder, address, secret)
        return FailingConnector(
            source=found.source,
            options={**found.options, "subscribe": "topic"},
            schema=found.schema,
            row=found.row,
        )


class KafkaLogin(TestKafkaSource):
    """Settings of a login beside the cluster, in which the secret is."""

    def connector(self, folder, address, secret):
        found = super().connector(folder, address, secret)
        kept = {key: text for key, text in found.options.items() if "sasl" not in key}
        own = {f"kafka.{name}": text for name, text in self.login(folder, address, secret).items()}
        return replace(found, options={**kept, **own})

    def login(self, folder, address, secret):
        raise NotImplementedError


class TestKafkaClientSecret(KafkaLogin):
    ways = ("refuses", "hangs up", "repeats")  # the token endpoint

    def login(self, folder, address, secret):  # noqa: ARG002
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"http://{address}/token",
            "sasl.oauthbearer.client.credentials.client.id": "spark",
            "sasl.oauthbearer.client.credentials.client.secret": secret,
        }


class TestKafkaTokenInAFile(KafkaLogin):
    def login(self, folder, address, secret):  # noqa: ARG002
        (folder / "token").write_text(secret)
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file://{folder}/token",
        }


class TestKafkaTokenOfACommand(KafkaLogin):
    def login(self, folder, address, secret):  # noqa: ARG002
        (folder / "token").write_text(secret)
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.command": f"cat {folder}/token",
        }


class TestKafkaKeyStore(KafkaLogin):
    def login(self, folder, address, secret):  # noqa: ARG002
        (folder / "store.p12").write_bytes(b"\x30\x82")
        return {
            "security.protocol": "SSL",
            "ssl.truststore.location": str(folder / "store.p12"),
            "ssl.truststore.password": secret,
            "ssl.keystore.location": str(folder / "store.p12"),
            "ssl.keystore.password": secret,
            "ssl.key.password": secret,
        }


class TestKafkaAtMsk(KafkaLogin):
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch, tmp_path):
        for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def login(self, folder, address, secret):  # noqa: ARG002
        (folder / "credentials").write_text(
            "[default]\naws_access_key_id = AKID\n"
            f"aws_secret_access_key = {secret}\naws_session_token = {secret}\n"
        )
        return {"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"}


class TestSchemaRegistry(TestKafkaSource):
    ways = ("refuses", "hangs up", "repeats")

    def connector(self, folder, address, secret):
        found = super().connector(folder, "127.0.0.1:1", secret)
        avro = {
            "valueFormat": "avro",
            "registry.url": f"http://{address}",
            "registry.timeout": "300ms",
            "registry.basic.auth.user.info": f"user:{secret}",
        }
        return replace(found, options={**found.options, **avro})


class TestIcebergCatalog(SecretConformance):
    def connector(self, folder, address, secret):  # noqa: ARG002
        return FailingConnector(
            source=IcebergDataSource,
            options={
                "table": "a.b",
                "catalog.type": "rest",
                "catalog.uri": f"http://{address}",
                "catalog.credential": f"user:{secret}",
                "catalog.header.X-Api-Key": secret,
            },
        )


class TestParquetInS3(SecretConformance):
    ways = ("repeats",)

    def connector(self, folder, address, secret):  # noqa: ARG002
        return FailingConnector(
            source=ParquetDataSource,
            options={
                "path": "s3://bucket/table",
                "storage.s3.endpoint": f"http://{address}",
                "storage.s3.region": "eu-west-1",
                "storage.s3.accessKeyId": "AK",
                "storage.s3.secretAccessKey": secret,
                "storage.s3.sessionToken": secret,
                "storage.s3.timeout": "1s",
            },
        )


class TestParquetInAzure(SecretConformance):
    ways = ("repeats",)

    def connector(self, folder, address, secret):  # noqa: ARG002
        return FailingConnector(
            source=ParquetDataSource,
            options={
                "path": "az://container/table",
                "storage.azure.endpoint": f"http://{address}/acct",
                "storage.azure.accountName": "acct",
                "storage.azure.sasToken": f"sp=rcwdl&sig={secret}",
                "storage.azure.timeout": "1s",
            },
        )


class TestParquetInHdfs(SecretConformance):
    ways = ("repeats",)

    def connector(self, folder, address, secret):  # noqa: ARG002
        return FailingConnector(
            source=ParquetDataSource,
            options={
                "path": f"webhdfs://{address}/table",
                "storage.hdfs.token": secret,
                "storage.hdfs.timeout": "1s",
            },
        )


@pytest.mark.long  # each role waits five seconds for a store that is away
class TestParquetInS3ThatIsDown(TestParquetInS3):
    ways = ("refuses", "hangs up")


@pytest.mark.long
class TestParquetInAzureThatIsDown(TestParquetInAzure):
    ways = ("refuses", "hangs up")


@pytest.mark.long
class TestParquetInHdfsThatIsDown(TestParquetInHdfs):
    ways = ("refuses", "hangs up")


@pytest.mark.parametrize(
    ("bug", "place"),
    [
        ("SaysItInTheError", "text: "),
        ("KeepsTheCause", "traceback: "),
        ("LogsIt", "log: "),
        ("SendsItToTheCommitter", "what it returns: "),
    ],
)
def test_a_planted_leak_is_found(bug, place, tmp_path):
    class Planted(SecretConformance):
        def connector(self, folder, address, secret):  # noqa: ARG002
            return FailingConnector(
                source=getattr(leaking, bug), options={"url": f"http://{address}", "token": secret}
            )

    with pytest.raises(Broken) as caught:
        Planted().test_no_secret_is_shown_when_no_process_listens("a promise", tmp_path)
    assert caught.value.rule is Rule.NO_SECRET_SHOWN
    assert place in caught.value.seen
    assert "canary" not in str(caught.value)  # a failure of the suite shows it neither


def test_a_connector_that_does_not_fail_proves_nothing(tmp_path):
    class Idle(SecretConformance):
        def connector(self, folder, address, secret):  # noqa: ARG002
            return FailingConnector(
                source=leaking.AsksNobody, options={"url": f"http://{address}", "token": secret}
            )

    with pytest.raises(Broken) as caught:
        Idle().test_no_secret_is_shown_when_no_process_listens("a promise", tmp_path)
    assert caught.value.rule is Rule.SEEN
