"""Places in stores, as users, Spark and Hadoop write them."""

import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.azure import AzureSettings, AzureStore

ODD = "a b+c%20ä=1"


def parsed(text: str) -> tuple[str, str, str]:
    url = StoreUrl.parse(text)
    return url.kind, url.authority, url.path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s3://box/x", ("s3", "box", "x")),
        ("S3A://my.box/x/y/", ("s3", "my.box", "x/y")),
        ("s3n://box", ("s3", "box", "")),
        ("gs://box/x", ("gcs", "box", "x")),
        ("abfss://c@acc.dfs.core.windows.net/x", ("azure", "c@acc.dfs.core.windows.net", "x")),
        ("wasbs://c@acc.blob.core.windows.net/x", ("azure", "c@acc.blob.core.windows.net", "x")),
        ("az://c/x", ("azure", "c", "x")),
        ("hdfs://nn:8020/x/", ("hdfs", "nn:8020", "/x")),
        ("hdfs:///x", ("hdfs", "", "/x")),
        ("hdfs:/x", ("hdfs", "", "/x")),
        ("hdfs://nn:8020", ("hdfs", "nn:8020", "/")),
        ("viewfs://cluster/x", ("hdfs", "cluster", "/x")),
        ("webhdfs://nn:9870/x", ("hdfs", "nn:9870", "/x")),
        ("/x/y/", ("disk", "", "/x/y")),
        ("file:/x", ("disk", "", "/x")),
        ("file:///x/", ("disk", "", "/x")),
        ("file://localhost/x", ("disk", "", "/x")),
        ("dbfs:/Volumes/a/b/c", ("disk", "", "/Volumes/a/b/c")),
        ("dbfs:///Volumes/a/b/c/", ("disk", "", "/Volumes/a/b/c")),
        ("dbfs:/mnt/x", ("disk", "", "/dbfs/mnt/x")),
    ],
)
def test_every_spelling_is_understood(text, found):
    assert parsed(text) == found


@pytest.mark.parametrize("base", ["s3a://box", "hdfs://nn:1", "abfs://c@a.dfs.core.windows.net"])
def test_nothing_in_a_path_is_escaped(base):
    assert StoreUrl.parse(f"{base}/{ODD}/").path.lstrip("/") == ODD


@pytest.mark.parametrize("base", ["s3a://box", "hdfs://nn:1", "gs://box"])
def test_a_path_is_the_one_that_hadoop_makes_of_it(base):
    assert StoreUrl.parse(f"{base}//a//b/./c/../d//") == StoreUrl.parse(f"{base}/a/b/d")


@pytest.mark.parametrize(
    "text", ["s3://box/x y", "hdfs://nn:1/x", "hdfs://nn:1", "gs://box", "az://c/x", "/x/y"]
)
def test_a_place_is_shown_as_it_can_be_written(text):
    assert str(StoreUrl.parse(text)) == text
    assert StoreUrl.parse(f"{text}/") == StoreUrl.parse(text)


@pytest.mark.parametrize("base", ["s3://box", "hdfs://nn:1/", "hdfs:///", "/"])
def test_names_are_below_a_root_too(base):
    url = StoreUrl.parse(base) / "x" / "y"
    assert url.path.lstrip("/") == "x/y"
    assert "//" not in url.path


@pytest.mark.parametrize("text", ["s3://", "s3:/box/x", "gs:///x", "abfss://@a.b.c/x", "s3a:box"])
def test_a_missing_bucket_is_told(text):
    with pytest.raises(OptionError, match=r"names no bucket: write .*://<bucket>/<path>"):
        StoreUrl.parse(text)


@pytest.mark.parametrize("text", ["s4://box/x", "oss://box/x", "ftp://host/x"])
def test_an_unknown_scheme_is_told_with_those_that_are_known(text):
    with pytest.raises(OptionError, match=r"not known; known: a path, s3:, s3a:.*hdfs:.*dbfs:"):
        StoreUrl.parse(text)


def test_a_folder_of_another_machine_is_refused():
    with pytest.raises(OptionError, match="names the machine 'elsewhere'"):
        StoreUrl.parse("file://elsewhere/x")


@pytest.mark.parametrize(
    ("host", "account", "endpoint"),
    [
        ("acc.dfs.core.windows.net", "acc", None),
        ("acc.dfs.core.chinacloudapi.cn", "acc", "https://acc.blob.core.chinacloudapi.cn"),
        (
            "onelake.dfs.fabric.microsoft.com",
            "onelake",
            "https://onelake.blob.fabric.microsoft.com",
        ),
    ],
)
def test_an_azure_url_names_account_and_cloud(host, account, endpoint):
    url = StoreUrl.parse(f"abfss://c@{host}/x")
    store = AzureStore(url, AzureSettings())
    assert (url.bucket, url.account, store.url_endpoint) == ("c", account, endpoint)
