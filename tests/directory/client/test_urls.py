"""URLs of a directory: which servers, whose cluster, as whom, and how they are reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.client.target import DirectoryTarget, is_directory, parse, parse_directory
from fairlead.errors import ConfigError
from fairlead.tunnel.options import TunnelOptions


@pytest.mark.parametrize(
    ("url", "servers", "cluster"),
    [
        ("fairlead+directory://d1", ["fairlead://d1:7402"], ""),
        ("fairlead+directory://d1:1,d2/cluster-A", ["fairlead://d1:1", "fairlead://d2:7402"], "cluster-A"),
        ("fairlead+directory://[::1],[fe80::1]:9/a", ["fairlead://[::1]:7402", "fairlead://[fe80::1]:9"], "a"),
        ("fairlead+directory:///a", ["fairlead://localhost:7402"], "a"),
        ("fairlead+directory://d1/a%2Fb%20%C3%A4/", ["fairlead://d1:7402"], "a/b ä"),
        ("fairleads+directory://d1,d1,d2/a", ["fairleads://d1:7402", "fairleads://d2:7402"], "a"),
        ("http+directory://localhost/a", ["http://localhost:7402/tunnel/fairlead"], "a"),
        ("https+directory://g/gw/tunnel/n/a", ["https://g:7402/gw/tunnel/n"], "a"),
        ("https+directory://g:443/tunnel/n", ["https://g/tunnel/n"], ""),
        ("https+directory://g/tunnel", ["https://g:7402/tunnel/fairlead"], ""),
        ("fairlead://d1,d2:1", ["fairlead://d1:7400", "fairlead://d2:1"], ""),
        ("fairlead+unix:///run/a%20b.sock", ["fairlead+unix:///run/a%20b.sock"], ""),
        ("https://g/tunnel/n", ["https://g/tunnel/n"], ""),
    ],
)
def test_servers_and_cluster(url: str, servers: list[str], cluster: str) -> None:
    found = parse_directory(url)
    assert (list(found.targets), found.cluster) == (servers, cluster)
    assert is_directory(url) == ("+directory" in url)
    for server in servers:
        (address,) = parse(server, found.tunnel).addresses
        assert str(address) in server.replace("[", "").replace("]", "").replace("%20", " ")


def test_login_options_and_tunnel() -> None:
    found = parse_directory("fairlead+directory://ann:p%40ss@d1,d2/a?placement=auto&cache=/var/x&empty=#part")
    assert (found.user, found.password) == ("ann", "p@ss")
    assert found.options == {"placement": "auto", "cache": "/var/x", "empty": ""}
    assert found.tunnel is None
    assert "p@ss" not in repr(found)
    found = parse_directory("http+directory://127.0.0.1:80/a?websocket=never&placement=auto&hold_s=3")
    assert found.options == {"placement": "auto"}
    assert found.tunnel == TunnelOptions(websocket="never", hold_s=3.0)
    assert parse_directory("https+directory://g", TunnelOptions(hold_s=2)).tunnel == TunnelOptions(hold_s=2)
    assert parse_directory("fairlead+directory://d1?websocket=never").options == {"websocket": "never"}


def test_several_urls_are_one_directory() -> None:
    found = parse_directory(["fairlead+directory://a@d1/x", "fairlead+directory://a@d2,d1/x"])
    assert found == DirectoryTarget(("fairlead://d1:7402", "fairlead://d2:7402"), "x", "a")
    assert parse_directory(["fairlead://d1:1", "fairlead://d2:2"]).targets == ("fairlead://d1:1", "fairlead://d2:2")
    with pytest.raises(ConfigError, match="another login"):
        parse_directory(["fairlead+directory://a@d1/x", "fairlead+directory://b@d2/x"])
    with pytest.raises(ConfigError, match="no URL"):
        parse_directory([])


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("amqp+directory://d1", "does not begin with fairlead\\+directory"),
        ("d1:7402", "does not begin with"),
        ("fairlead+directory://d1:x", "host:port"),
        ("fairlead+directory://d1:0/a", "host:port"),
        ("fairlead+directory://d1/a/b", "one cluster"),
        ("fairlead+directory://u:s3?cret@d1", "write %3F"),
        ("fairlead+directory://d1/a?x=1&x=2", "twice"),
        ("http+directory://example.org/a", "plain HTTP"),
        ("http+directory://localhost/a?hold_s=soon", "hold_s"),
        ("https+directory://g/tunnel/n/a/b", "one cluster"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_directory(url)
    assert "s3?cret" not in str(caught.value)


@given(st.sampled_from(["fairlead", "fairleads", "http", "https", "x"]), st.text(max_size=80))
def test_any_text_is_a_directory_or_a_clear_error(scheme: str, rest: str) -> None:
    try:
        found = parse_directory(f"{scheme}+directory://{rest}")
    except ConfigError:
        return
    assert found.targets
    for server in found.targets:
        assert len(parse(server, found.tunnel).addresses) == 1
