"""Logins at Amazon MSK by IAM (``AWS_MSK_IAM``), with credentials that change while a query runs.

botocore finds the credentials as for all programs of AWS: environment, profile, container, machine.
They are read again at each login, in a separate thread, because the machine's metadata service
may be slow. kafka-python signs with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.kafka.login_tokens import LoginTokenError, Token

__all__ = ["MskLogin", "fetch_credentials", "find_region"]

_CACHED_S = 60.0
"""Time for which several connections that log in together use the same credentials."""

_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$")


@dataclass(frozen=True)
class MskLogin:
    """A login by IAM.

    Attributes:
        profile: Name of a profile of AWS; empty for the usual one.
    """

    profile: str = ""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> MskLogin | None:
        """Return the login in the settings of a cluster; None if they log in another way."""
        if values.get("sasl_mechanism") != "AWS_MSK_IAM":
            return None
        return cls(values.get("msk_profile", ""))

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


def fetch_credentials(login: MskLogin) -> Token:
    """Return the current credentials as JSON: the arguments of kafka-python's signer.

    Raises:
        LoginTokenError: If there are none, or botocore is missing.
    """
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise LoginTokenError(
            f"AWS_MSK_IAM needs a library that is missing ({error}): pip install "
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
            text = json.dumps([frozen.access_key, frozen.secret_key, frozen.token, region])
            secret = (frozen.secret_key, frozen.token or "")
            return Token.with_life(text, _CACHED_S, secret)
        why = f"{login.origin} has no credentials for this process: see 'aws configure list'"
    raise LoginTokenError(why)


def find_region(host: str, default: str | None) -> str | None:
    """Return the region in the name of a broker, which is that of its cluster; else a default."""
    found = _HOST.search(host.lower())
    return default if found is None else found[1]
