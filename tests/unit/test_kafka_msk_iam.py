"""Logins at Amazon MSK by IAM: the payload, and credentials that change."""

import base64
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
from krishiv_spark.kafka.msk_iam import (
    MskLogin,
    MskTokenLogin,
    fetch_credentials,
    find_msk_login,
    find_region,
    sign_token,
)

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
    login = find_msk_login(KafkaConfig.from_settings(given).values)
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


# --- OAUTHBEARER

HANDLER = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
BY_TOKEN = {
    **AWS,
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.login.callback.handler.class": HANDLER,
}
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
# Printed by `MSKAuthTokenProvider.__construct_auth_token` of aws-msk-iam-sasl-signer-python 1.0.2
# with the time and the credentials of this file, and decoded from base64.
START = (
    "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
    "&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20261127%2Feu-west-1%2F"
    "kafka-cluster%2Faws4_request&X-Amz-Date=20261127T123005Z&X-Amz-Expires=900"
    "&X-Amz-SignedHeaders=host"
)
OF_AWS = {
    None: "&X-Amz-Signature=264a060d872b20fb230469faeb868ad4cc7afcb333ff4a2f3b7fda076e57bd9a",
    "IQoJb3JpZ2luX2VjE+/==": "&X-Amz-Security-Token=IQoJb3JpZ2luX2VjE%2B%2F%3D%3D"
    "&X-Amz-Signature=2d16e360a34af3895a673bd29ca76a415b227e72058b7f25b6e8bd701151f7c4",
}


def find_token_login(**more):
    return find_msk_login(KafkaConfig.from_settings({**BY_TOKEN, **more}).values)


def read_token(token):
    assert "=" not in token.text
    return base64.urlsafe_b64decode(token.text + "==").decode()


@pytest.mark.parametrize("session", [*OF_AWS])
def test_a_token_is_that_of_awss_published_signer(monkeypatch, session):
    if session is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", session)
    monkeypatch.setattr(auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None))
    login = find_token_login(**{"sasl.jaas.config": f"{MODULE};"})
    assert login == MskTokenLogin("", HOST)
    token = sign_token(login)
    # The program's name is not signed.
    assert read_token(token) == f"{START}{OF_AWS[session]}&User-Agent=krishiv-spark"
    assert token.secrets() >= {"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
    assert token.is_fresh()
    assert token.end_s > token.renew_s + 800


def test_a_token_follows_credentials_that_change(monkeypatch):
    tokens = LoginTokens(find_token_login(), sign_token)
    assert "AKIDEXAMPLE" in read_token(tokens.get(10))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOTHER")
    tokens.record_refusal()
    assert "AKIDOTHER" in read_token(tokens.get(10))


def test_a_token_of_a_profile_and_of_a_region(tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "credentials").write_text(
        "[streams]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = x\n"
    )
    named = {"sasl.jaas.config": f'{MODULE} awsProfileName="streams" awsDebugCreds="true";'}
    login = find_token_login(**named)
    assert "AKIDPROFILE" in read_token(sign_token(login))
    other = find_token_login(**named, **{"bootstrap.servers": "kafka.internal:9098"})
    with pytest.raises(LoginTokenError, match="internal is not known: set AWS"):
        sign_token(other)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert "https://kafka.eu-north-1.amazonaws.com/" in read_token(sign_token(other))
    with pytest.raises(LoginTokenError, match="AWS has no credentials for this process"):
        sign_token(find_token_login())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sasl.oauthbearer.token.command": "print"}, "AWS signs the tokens of software.amazon"),
        ({"sasl.jaas.config": f'{MODULE} awsRoleArn="x";'}, "in a profile of AWS"),
        (
            {
                "sasl.login.callback.handler.class": "OAuthBearerLoginCallbackHandler",
                "sasl.jaas.config": f'{MODULE} awsProfileName="x";',
            },
            "awsProfileName in 'kafka.sasl.jaas.config' needs",
        ),
    ],
)
def test_tokens_of_aws_exclude_other_sources(given, said):
    with pytest.raises(ValueError, match=said):
        KafkaConfig.from_settings({**BY_TOKEN, **given})
