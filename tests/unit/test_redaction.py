"""Texts without secrets: in each form, within a bounded time."""

import time
from base64 import b64encode
from urllib.parse import quote

import pytest

from krishiv_spark.messages.redaction import MOST_CHARACTERS, excerpt, first_line, redact

SECRET = "canary7f3a+b/c9d8e7=="


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        quote(SECRET, safe=""),
        quote(SECRET),
        b64encode(SECRET.encode()).decode(),
        b64encode(f"u:{SECRET}".encode()).decode(),
        b64encode(f"user:{SECRET}!".encode()).decode(),
        f"{SECRET[:-2]}=="[:-1] + "=",
    ],
)
def test_a_secret_is_found_in_each_form(text):
    shown = redact(f"before {text} after", [SECRET])
    assert "canary" not in shown
    assert quote(SECRET[6:12], safe="") not in shown
    assert "***" in shown
    assert shown.startswith("before ")


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("sp=rw&sig=canary7f3a", "the signature canary7f3a is bad"),
        ("http://user:canary7f3a@proxy:80", "407 for canary7f3a"),
        ('PlainLoginModule required username="u" password="canary7f3a";', "user u, canary7f3a"),
    ],
)
def test_a_part_of_a_secret_that_logs_in_alone_is_one(secret, shown):
    assert "canary" not in redact(shown, [secret])


@pytest.mark.parametrize(
    "text",
    [
        "https://h/c?sp=r&sig=canary7f3a%3D&x=1",
        "/webhdfs/v1/t?op=OPEN&delegation=canary7f3a",
        "%2Ft%3Fop%3DOPEN%26delegation%3Dcanary7f3a",
        "https://h/?X-Amz-Security-Token=canary7f3a&X-Amz-Signature=canary7f3b",
        "{'x-amz-security-token': 'canary7f3a'}",
        "Authorization: Bearer canary7f3a",
        "'Authorization': 'Basic canary7f3a=='",
        "AWS4-HMAC-SHA256 Credential=AK/x, SignedHeaders=h, Signature=canary7f3a",
        "Bearer canary7f3a.x-y",
        '{"access_token":"canary7f3a"}',
        r"{\"client_secret\":\"canary7f3a\"}",
        'required username="u" password="canary7f3a";',
        "http://user:canary7f3a@host/x",
        "https://canary7f3a@host/x",
    ],
)
def test_what_looks_like_a_login_is_hidden(text):
    assert "canary" not in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "abfss://container@account.dfs.core.windows.net/x is not there",
        "a bearer token is needed",
        "unexpected token: foo",
        "set 'storage.hdfs.user' or '.token'",
        "krishiv_spark.errors.StorageError: nobody listens at http://127.0.0.1:9",
    ],
)
def test_honest_texts_stay_as_they_are(text):
    assert redact(text, ["spark", "err"]) == text  # short ones are words of their own only


@pytest.mark.parametrize(
    "piece", ["/", "?", "//a:", "sig=", "password ", "authorization", "/?", "%3D"]
)
def test_a_long_text_takes_no_longer_than_a_short_one(piece):
    text = piece * (2_000_000 // len(piece))
    begun_s = time.process_time()
    assert len(first_line(text, [SECRET])) <= MOST_CHARACTERS + 100
    excerpt(text, [SECRET])
    assert time.process_time() - begun_s < 1


def test_a_secret_at_the_limit_is_not_cut_in_two():
    for before in range(MOST_CHARACTERS - 25, MOST_CHARACTERS + 2):
        assert "canary" not in excerpt("x" * before + " " + SECRET, [SECRET])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/token=eu1/day=2/part-0.parquet", "/data/token=***/day=2/part-0.parquet"),
        ("s3://b/sig=12/x.parquet: no footer", "s3://b/sig=***/x.parquet: no footer"),
        ("https://h/p?sig=canary/7f&x=1", "https://h/p?sig=***&x=1"),
        ("https://h/token = canary/p", "https://h/token = ***/p"),
    ],
)
def test_the_file_below_the_folder_of_a_partition_is_named(text, shown):
    assert redact(text) == shown
