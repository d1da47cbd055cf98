"""URLs that lead through HTTP."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead
from fairlead.client.target import Address, parse
from fairlead.errors import ConfigError
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.place import Place
from fairlead.tunnel.place import parse as parse_place


@pytest.mark.parametrize(
    ("url", "place", "shown"),
    [
        ("http://localhost:7400", Place("http", "localhost", 7400), "http://localhost:7400/tunnel/fairlead"),
        ("http://localhost:7400/", Place("http", "localhost", 7400), "http://localhost:7400/tunnel/fairlead"),
        ("https://gate", Place("https", "gate", 443), "https://gate/tunnel/fairlead"),
        ("http://127.0.0.1", Place("http", "127.0.0.1", 80), "http://127.0.0.1/tunnel/fairlead"),
        ("https://gate/tunnel", Place("https", "gate", 443), "https://gate/tunnel/fairlead"),
        ("https://gate/tunnel/b1", Place("https", "gate", 443, "/tunnel", "b1"), "https://gate/tunnel/b1"),
        ("https://g/a/b/tunnel/b%2F1", Place("https", "g", 443, "/a/b/tunnel", "b/1"), "https://g/a/b/tunnel/b%2F1"),
        ("https://[::1]:8/tunnel/x", Place("https", "::1", 8, "/tunnel", "x"), "https://[::1]:8/tunnel/x"),
        ("https://g/tunnel/tunnel", Place("https", "g", 443, "/tunnel/tunnel"), "https://g/tunnel/tunnel/fairlead"),
    ],
)
def test_a_place_by_its_url(url: str, place: Place, shown: str) -> None:
    target = parse(url)
    (address,) = target.addresses
    assert address == Address(place.host, place.port, "", place)
    assert str(address) == str(place) == shown
    assert target.tls == url.startswith("https")
    assert parse_place(url) == place
    assert parse(shown).addresses == [address] or url.endswith("tunnel/tunnel")


@pytest.mark.requirement("TUN-25", state="half", note="the parameters; the requests are shown with the driver")
def test_what_a_request_is_about() -> None:
    place = Place("https", "g", 443, "/tunnel", "bröker 1&2/+")
    assert place.query("connect") == "ServerName=br%C3%B6ker%201%262%2F%2B&Type=connect"
    assert place.query("push", 7).endswith("&Type=push&ConnId=7")
    assert place.query("pull", 7, 12.5).endswith("&Type=pull&ConnId=7&Hold=12.5")


def test_login_and_options_come_with_the_url() -> None:
    url = "https://ann:p%40ss@a:1,b/gw/tunnel/b1?websocket=never&hold_s=10&pull_period_s=5&http2=1&ca=/x.pem"
    target = parse(url)
    assert (target.user, target.password) == ("ann", "p@ss")
    assert [str(address) for address in target.addresses] == ["https://a:1/gw/tunnel/b1", "https://b/gw/tunnel/b1"]
    assert target.tunnel == TunnelOptions(websocket="never", hold_s=10.0, pull_period_s=5.0, http2=True, ca="/x.pem")
    given_ = TunnelOptions(hold_s=3, websocket="never")
    assert parse("https://a?hold_s=4", given_).tunnel == TunnelOptions(hold_s=4, websocket="never")
    assert parse("fairlead://a", given_).tunnel is None
    proxied = parse("https://h:1?proxy=http://u:p@proxy:8/")
    assert proxied.tunnel == TunnelOptions(proxy="http://u:p@proxy:8/")
    assert proxied.addresses[0].host == "h"


def test_several_urls_are_one_target() -> None:
    target = parse(["https://a/tunnel/b1", "https://b/tunnel/b1"])
    assert [address.host for address in target.addresses] == ["a", "b"]
    for urls in (
        ["https://a", "fairleads://a"],
        ["https://a", "https://b?hold_s=1"],
        ["http://localhost", "https://a"],
    ):
        with pytest.raises(ConfigError, match="another scheme"):
            parse(urls)


@pytest.mark.parametrize(
    "url",
    [
        *("https://", "https://:443", "https://h:0", "https://h:99999", "https://h:x", "https://[::1", "https://a,"),
        *("https://h/somewhere", "https://h/tunnel/a/b", "https://h/tünnel/x/tünnel"),
        *("https://h?proxi=1", "https://h?hold_s=-1", "https://h?hold_s=nan", "https://h?hold_s=x"),
        *("https://h?http2=maybe", "https://h?websocket=always", "https://h/tunnel/" + "x" * 256),
        *("https://u?x=1:secret@h", "https://h\r\nX: y", "https://h h", "https://bücher.example"),
    ],
)
def test_what_is_no_url_of_a_tunnel_is_told_so(url: str) -> None:
    with pytest.raises(ConfigError) as fault:
        parse(url)
    assert "secret" not in str(fault.value)


@pytest.mark.requirement("TUN-64")
def test_plain_http_to_another_machine_has_to_be_allowed() -> None:
    for url in (
        "http://gate.example/tunnel/b1",
        "http://10.0.0.1:80",
        "http://[2001:db8::1]",
        "http://localhost.evil.org",
    ):
        with pytest.raises(ConfigError, match="allow_plain"):
            fairlead.connect(url)
        assert parse(url, TunnelOptions(allow_plain=True)).tunnel is not None
        assert parse(url + "?allow_plain=1").tunnel is not None
    for url in ("http://localhost:7400", "http://127.8.8.8", "http://[::1]:80", "http://x.localhost"):
        assert parse(url).tunnel is not None


@given(
    st.text(max_size=60),
    st.sampled_from(["http://", "https://", "http://localhost", "https://h/tunnel/", "https://h?"]),
)
def test_any_text_is_a_target_or_an_error_of_ours(text: str, begin: str) -> None:
    try:
        target = parse(begin + text)
    except ConfigError:
        return
    assert target.addresses
    for address in target.addresses:
        assert address.tunnel is not None
        address.tunnel.query("connect").encode("ascii")
        address.tunnel.path.encode("ascii")
        address.tunnel.authority.encode("ascii")
        assert not set(" \r\n\t/") & set(address.tunnel.authority)
