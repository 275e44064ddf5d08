"""The login of Azure's own client: as obstore's, by options and by the environment."""

import sys

import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.runtime.contact import TimeoutPolicy
from krishiv_spark.storage import Storage, StoreUrl
from krishiv_spark.storage.azure import AzureClient, AzureSettings, AzureStore, _credential

PRINCIPAL = {"tenantId": "00000000-0000-0000-0000-000000000000", "clientId": "c"}
SECRET = {**PRINCIPAL, "clientSecret": "hunter2"}
TIMEOUTS = TimeoutPolicy(1, 1, is_first_contact=True)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in ("ACCOUNT_KEY", "ACCESS_KEY", "SAS_TOKEN", "SAS_KEY"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    for name in ("TENANT_ID", "CLIENT_ID", "CLIENT_SECRET", "FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(f"AZURE_{name}", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ENDPOINT", raising=False)


def login(**options):
    found = _credential("account", AzureSettings.parse(options, "storage.azure"))
    return type(found).__name__


def test_a_key_goes_before_all_others():
    assert login(**SECRET, accountKey="a2V5", sasToken="sig=1") == "dict"


def test_a_service_principal_goes_before_a_signature():
    assert login(**SECRET, sasToken="sig=1") == "ClientSecretCredential"


def test_a_signature_is_enough():
    assert login(sasToken="?sig=1") == "AzureSasCredential"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "ManagedIdentityCredential"),
        ({"AZURE_USE_AZURE_CLI": "true"}, "AzureCliCredential"),
        ({"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}, "dict"),
        (
            {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_FEDERATED_TOKEN_FILE": "f"},
            "WorkloadIdentityCredential",
        ),
    ],
)
def test_what_no_option_says_the_environment_does(monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert login() == expected


def url_of_client(url):
    settings = AzureSettings.parse({"accountKey": "a2V5"}, "storage.azure")
    return AzureClient(AzureStore(StoreUrl.parse(url), settings)).open(TIMEOUTS).url


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("box@acc.dfs.core.windows.net", "acc.blob.core.windows.net"),
        ("box@acc.dfs.core.chinacloudapi.cn", "acc.blob.core.chinacloudapi.cn"),
    ],
)
def test_a_container_is_asked_by_its_endpoint_for_blobs(authority, host):
    assert url_of_client(f"abfss://{authority}") == f"https://{host}/box"


def test_the_environment_names_the_account_and_its_endpoint_where_the_url_does_not(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://acc.example.com")
    assert url_of_client("az://box") == "https://acc.example.com/box"


@pytest.mark.parametrize("module", ["azure.storage.blob", "azure.identity"])
def test_a_client_that_is_missing_is_named_with_the_extra_that_has_it(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionError, match=r"pip install \"krishiv-spark\[azure\]\""):
        Storage().uploads("abfss://box@acc.dfs.core.windows.net/table")
