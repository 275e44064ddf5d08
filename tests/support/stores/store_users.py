"""Users of stores who may do a part of what there is to do."""

import datetime as dt
import json
import subprocess
import uuid

import boto3
from azure.storage.blob import generate_container_sas

from servers.programs import from_go
from servers.stores import ACCOUNT, KEY, SECRET, USER, VERSITYGW, Store


def new_user(store: Store, *may: str) -> dict[str, str]:
    """Options of somebody new in versitygw, who may do so much with the bucket, and nothing else.

    Args:
        store: Of versitygw.
        may: Actions of S3, as ``s3:GetObject``.
    """
    name, endpoint = f"user-{uuid.uuid4().hex}", store.options["storage.s3.endpoint"]
    login = ("--access", USER, "--secret", SECRET, "--endpoint-url", endpoint)
    command = [from_go(VERSITYGW), "admin", *login, "--region", "us-east-1", "create-user"]
    user = ("--access", name, "--secret", SECRET, "--role", "user")
    subprocess.run([*command, *user], check=True, capture_output=True)
    where = ["arn:aws:s3:::box", "arn:aws:s3:::box/*"]
    allowed = {"Effect": "Allow", "Principal": {"AWS": [name]}, "Action": may, "Resource": where}
    keys = {"aws_access_key_id": USER, "aws_secret_access_key": SECRET}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    policy = {"Version": "2012-10-17", "Statement": [allowed]}
    client.put_bucket_policy(Bucket="box", Policy=json.dumps(policy))
    return {**store.options, "storage.s3.accessKeyId": name}


def new_token(may: str) -> dict[str, str]:
    """Options by which Azurite lets somebody do so much with the container: no key."""
    until = dt.datetime(2099, 1, 1, tzinfo=dt.timezone.utc)
    sas = generate_container_sas(ACCOUNT, "box", KEY, permission=may, expiry=until)
    return {"storage.azure.accountKey": "", "storage.azure.sasToken": sas}
