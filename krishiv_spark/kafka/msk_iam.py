"""Logins at Amazon MSK by IAM, with credentials that change while a query runs.

botocore finds the credentials as for all programs of AWS: environment, profile, container, machine.
They are read again at each login, in a separate thread, because the machine's metadata service
may be slow. For ``AWS_MSK_IAM`` kafka-python signs with them. For OAUTHBEARER they sign a token of
the form of AWS's published signers (``aws-msk-iam-sasl-signer``).
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.kafka.login_tokens import LoginTokenError, Token

__all__ = [
    "MskLogin",
    "MskTokenLogin",
    "fetch_credentials",
    "find_msk_login",
    "find_region",
    "sign_token",
]

_CACHED_S = 60.0
"""Time for which several connections that log in together use the same credentials."""

_TOKEN_LIFE_S = 900
"""Life of a signed token, as AWS's signers choose it."""

_SIGNED = "https://kafka.{}.amazonaws.com/?Action=kafka-cluster%3AConnect"
"""The request of a token, by the region. AWS's signers have one form for all partitions of AWS."""

_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$")


@dataclass(frozen=True)
class MskLogin:
    """A login by IAM.

    Attributes:
        profile: Name of a profile of AWS; empty for the usual one.
    """

    profile: str = ""

    @property
    def origin(self) -> str:
        """The source of the credentials, for messages."""
        return f"the AWS profile {self.profile!r}" if self.profile else "AWS"

    @property
    def extensions(self) -> tuple[tuple[str, str], ...]:
        """None: this mechanism has no extensions."""
        return ()

    def secrets(self) -> set[str]:
        """Return none: its secrets are those of AWS."""
        return set()


@dataclass(frozen=True)
class MskTokenLogin(MskLogin):
    """A login by IAM with OAUTHBEARER.

    Attributes:
        host: The broker to contact first, whose name contains the region.
    """

    host: str = ""


def find_msk_login(values: Mapping[str, Any]) -> MskLogin | None:
    """Return the login by IAM in the settings of a cluster; None if they log in another way.

    Args:
        values: Keyword arguments for kafka-python, and those of this package.
    """
    profile, mechanism = values.get("msk_profile", ""), values.get("sasl_mechanism")
    if mechanism == "AWS_MSK_IAM":
        return MskLogin(profile)
    if mechanism == "OAUTHBEARER" and values.get("msk_token"):
        server: str = next(iter(values["bootstrap_servers"]))
        return MskTokenLogin(profile, server.rpartition(":")[0] or server)
    return None


def sign_token(login: MskTokenLogin) -> Token:
    """Return a token for OAUTHBEARER: a signed request as base64, which the broker sends to AWS.

    Another login soon signs another one, since credentials may have changed. If AWS gives none
    then, this one remains valid for 15 minutes.

    Raises:
        LoginTokenError: If there are no credentials or no region, or botocore is missing.
    """
    found, default = _find_credentials(login)
    region = find_region(login.host, default)
    if region is None:
        raise LoginTokenError(f"the region of {login.host} is not known: set AWS_DEFAULT_REGION")
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    request = AWSRequest("GET", _SIGNED.format(region))
    SigV4QueryAuth(found, "kafka-cluster", region, expires=_TOKEN_LIFE_S).add_auth(request)
    signed = f"{request.url}&User-Agent=krishiv-spark".encode()
    text = base64.urlsafe_b64encode(signed).decode().rstrip("=")
    now_s = time.monotonic()
    parts = tuple(filter(None, (found.secret_key, found.token)))
    return Token(text, now_s + _CACHED_S, now_s + _TOKEN_LIFE_S, parts)


def fetch_credentials(login: MskLogin) -> Token:
    """Return the current credentials as JSON: the arguments of kafka-python's signer.

    Raises:
        LoginTokenError: If there are none, or botocore is missing.
    """
    found, region = _find_credentials(login)
    text = json.dumps([found.access_key, found.secret_key, found.token, region])
    return Token.with_life(text, _CACHED_S, (found.secret_key, found.token or ""))


def _find_credentials(login: MskLogin) -> tuple[Any, str | None]:
    """Return botocore's credentials of this moment, and the region of the environment."""
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise LoginTokenError(
            f"a login by IAM needs a library that is missing ({error}): pip install "
            "'krishiv-spark[s3]'"
        ) from None
    why = ""
    try:
        # A new session reads environment, files and the machine's role again.
        session = Session(profile=login.profile or None)
        found = session.get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
        region = session.get_config_variable("region")
    except BotoCoreError as error:
        why = f"{login.origin} gives no credentials: {error}"
    else:
        if frozen is not None:
            return frozen, region
        why = f"{login.origin} has no credentials for this process: see 'aws configure list'"
    raise LoginTokenError(why)


def find_region(host: str, default: str | None) -> str | None:
    """Return the region in the name of a broker, which is that of its cluster; else a default."""
    found = _HOST.search(host.lower())
    return default if found is None else found[1]
