"""Credentials of S3 that obstore does not read: those of profiles, as Amazon's own tools do.

Obstore reads keys in environment variables, tokens of web identities (EKS), and what containers
and instances are given. Profiles with keys, roles, SSO or a ``credential_process`` are boto3's.
"""

from __future__ import annotations

import os
from configparser import ConfigParser
from configparser import Error as ConfigError
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.exception_chains import describe, raise_alone

if TYPE_CHECKING:
    from krishiv_spark.storage.settings import S3Settings

__all__ = ["profile_credentials"]

_KEPT = timedelta(minutes=5)
"""boto3 renews what expires within 15 minutes; whoever asks it more seldom may be too late."""

_LOGINS = ("aws_access_key_id", "credential_process", "role_arn", "sso_session", "sso_start_url")
_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}


def profile_credentials(settings: S3Settings) -> Any:
    """Obstore's provider of the credentials of a profile; None where it needs none.

    Keys in options go before a profile in options, and those in the environment before one there.

    Raises:
        OptionError: If only a profile says how to log in, and boto3 is missing or cannot read it.
    """
    named = settings.profile
    if settings.anonymous or settings.access_key_id is not None:
        return None
    if named is None and ("AWS_ACCESS_KEY_ID" in os.environ or not _has_login(_profile())):
        return None
    shown = named or _profile()
    if find_spec("boto3") is None:
        raise OptionError(
            f"only the profile {shown!r} says how to log in to S3, which needs boto3: install "
            "krishiv-spark[s3] on every machine; or give keys, by 'storage.s3.accessKeyId' and "
            "'storage.s3.secretAccessKey' or by environment variables"
        )
    import boto3
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=named), ttl=_KEPT)
    except (BotoCoreError, ValueError) as error:
        raise_alone(OptionError(f"the profile {shown!r} does not log in to S3: {describe(error)}"))


def _profile() -> str:
    return os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"


def _has_login(profile: str) -> bool:
    found: set[str] = set()
    for variable, usual in _FILES.items():
        parser = ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(Path(os.environ.get(variable, usual)).expanduser())
        except ConfigError:  # of boto3 and the like, which say more of it
            continue
        for section in (profile, f"profile {profile}"):  # the latter in the file of settings
            found.update(parser[section] if parser.has_section(section) else ())
    return not found.isdisjoint(_LOGINS)
