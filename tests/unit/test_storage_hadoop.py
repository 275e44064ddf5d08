"""The HTTP addresses of HDFS by options, URLs and Hadoop's files."""

import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.hdfs import web_addresses

HA = {
    "fs.defaultFS": "hdfs://cluster",
    "dfs.nameservices": "cluster",
    "dfs.ha.namenodes.cluster": "nn1, nn2",
    "dfs.namenode.rpc-address.cluster.nn1": "one:8020",
    "dfs.namenode.rpc-address.cluster.nn2": "two:8020",
}


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """Write what Hadoop is told, as its administrators do."""

    def write(**values: str) -> None:
        pairs = (f"<name>{k}</name><value> {v} </value>" for k, v in values.items())
        rows = "".join(f"<property>{pair}</property>" for pair in pairs)
        (tmp_path / "core-site.xml").write_text("<configuration/>")
        (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{rows}</configuration>")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    return write


def asked(url: str, endpoint: str | None = None) -> list[str]:
    return web_addresses(StoreUrl.parse(url), endpoint)


def test_the_option_goes_before_everything(conf):
    conf(**HA)
    found = asked("hdfs://cluster/x", "one:9870, https://two:9871/")
    assert found == ["http://one:9870", "https://two:9871"]


@pytest.mark.parametrize("url", ["webhdfs://nn:9870/x", "swebhdfs://nn:9871/x", "hdfs://nn:8020/x"])
def test_a_url_that_names_a_namenode_is_enough(conf, url):
    del conf
    scheme, port = ("https", 9871) if url.startswith("sw") else ("http", 9870)
    assert asked(url) == [f"{scheme}://nn:{port}"]


@pytest.mark.parametrize("url", ["hdfs://cluster/x", "hdfs:///x", "hdfs:/x"])
def test_all_namenodes_of_a_service_are_asked(conf, url):
    conf(**HA, **{"dfs.namenode.http-address.cluster.nn2": "two:50070"})
    assert asked(url) == ["http://one:9870", "http://two:50070"]


def test_a_cluster_that_speaks_https_only_is_asked_so(conf):
    secure = {"dfs.namenode.https-address.cluster.nn1": "one:1"}
    conf(**HA, **secure, **{"dfs.http.policy": "HTTPS_ONLY"})
    assert asked("hdfs://cluster/x") == ["https://one:1", "https://two:9871"]


@pytest.mark.parametrize(("said", "found"), [("nn:7", "nn:7"), ("0.0.0.0:7", "nn:7")])
def test_one_namenode_listens_where_its_files_say(conf, said, found):
    conf(**{"fs.defaultFS": "hdfs://nn:8020", "dfs.namenode.http-address": said})
    assert asked("hdfs:///x") == asked("hdfs://nn:8020/x") == [f"http://{found}"]
    assert asked("hdfs://other:8020/x") == ["http://other:9870"]


@pytest.mark.parametrize("url", ["hdfs:///x", "viewfs://cluster/x"])
def test_a_url_without_a_host_needs_to_be_told(conf, url):
    conf(**({"fs.defaultFS": "s3a://box"} if url.startswith("hdfs") else HA))
    with pytest.raises(OptionError, match=r"'storage.hdfs.endpoint'.*HADOOP_CONF_DIR"):
        asked(url)
