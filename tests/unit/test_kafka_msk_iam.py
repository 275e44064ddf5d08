"""Logins at Amazon MSK by IAM: the payload, and credentials that change."""

import datetime as dt
import json
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore import auth
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from kafka.net.sasl import get_sasl_mechanism, msk

from krishiv_spark.kafka import _kafka_python
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.login_tokens import LoginTokenError, LoginTokens
from krishiv_spark.kafka.msk_iam import MskLogin, fetch_credentials, find_region

NOW = dt.datetime(2026, 11, 27, 12, 30, 5, tzinfo=dt.timezone.utc)
HOST = "b-1.demo.abc123.c4.kafka.eu-west-1.amazonaws.com"
AWS = {
    "bootstrap.servers": f"{HOST}:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
}
JAAS = "software.amazon.msk.auth.iam.IAMLoginModule required"


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


def payload(host=HOST):
    """The first message of the mechanism, as a connection makes it."""
    tokens = LoginTokens(MskLogin(), fetch_credentials)
    tokens.get(10)
    provider = _kafka_python._TokenProvider(tokens)
    mechanism = get_sasl_mechanism("AWS_MSK_IAM")(
        host=host, security_protocol="SASL_SSL", sasl_oauth_token_provider=provider
    )
    return json.loads(mechanism.auth_bytes())


def sign(host, token, monkeypatch):
    """The parameters of the request that AWS's signer for MSK makes, by botocore."""
    monkeypatch.setattr(auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None))
    request = AWSRequest("GET", f"https://{host}/?Action=kafka-cluster%3AConnect")
    keys = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    SigV4QueryAuth(keys, "kafka-cluster", "eu-west-1", expires=900).add_auth(request)
    return {key.lower(): text for key, (text,) in parse_qs(urlsplit(request.url).query).items()}


@pytest.mark.parametrize("token", [None, "IQoJb3JpZ2luX2VjE+/=="])
def test_the_payload_is_that_of_awss_own_signer(monkeypatch, token):
    if token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    fixed = SimpleNamespace(datetime=SimpleNamespace(now=lambda _: NOW), timezone=dt.timezone)
    monkeypatch.setattr(msk, "datetime", fixed)
    ours = payload()
    assert ours.pop("version") == "2020_10_22"
    assert ours.pop("host") == HOST
    assert ours.pop("user-agent")
    assert ours == sign(HOST, token, monkeypatch)


def test_credentials_that_change_are_followed(monkeypatch):
    assert payload()["x-amz-credential"].startswith("AKIDEXAMPLE/")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOTHER")
    assert payload()["x-amz-credential"].startswith("AKIDOTHER/")


def test_the_region_is_that_of_the_broker():
    assert find_region(HOST, None) == "eu-west-1"
    assert find_region("boot-x.c1.kafka-serverless.us-east-2.amazonaws.com", "a") == "us-east-2"
    assert find_region("kafka.internal", "eu-north-1") == "eu-north-1"
    with pytest.raises(Exception, match="set AWS_DEFAULT_REGION"):
        payload("kafka.internal")


def test_a_profile_is_that_of_the_jaas_configuration(tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "credentials").write_text(
        "[streams]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = x\n"
    )
    handler = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    given = {
        **AWS,
        "sasl.jaas.config": f'{JAAS} awsProfileName="streams";',
        "sasl.client.callback.handler.class": handler,
    }
    login = MskLogin.from_values(KafkaConfig.from_settings(given).values)
    assert login == MskLogin("streams")
    assert "AKIDPROFILE" in fetch_credentials(login).text
    with pytest.raises(LoginTokenError, match="AWS has no credentials for this process"):
        fetch_credentials(MskLogin())
    with pytest.raises(LoginTokenError, match="'other' gives no credentials"):
        fetch_credentials(MskLogin("other"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"security.protocol": "SASL_PLAINTEXT"}, "AWS_MSK_IAM needs 'kafka.security.protocol'"),
        ({"sasl.jaas.config": f'{JAAS} awsRoleArn="x";'}, "in a profile of AWS"),
        ({"sasl.client.callback.handler.class": "x.Y"}, "cannot run here"),
    ],
)
def test_settings_that_do_not_work_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        KafkaConfig.from_settings({**AWS, **given})
