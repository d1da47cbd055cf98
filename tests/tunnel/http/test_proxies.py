"""Forward proxies: which one is used, how it is asked, and that its login is for it alone."""

from __future__ import annotations

import ssl
from base64 import b64encode
from pathlib import Path
from typing import Literal

import pytest

from fairlead.errors import ConfigError
from fairlead.tunnel.edge.http.logins import Login
from fairlead.tunnel.edge.http.proxies import Proxy, proxy_for
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Kind, encode
from fairlead.tunnel.place import Place
from fairlead.tunnel.refusals import ProxyAuthentication, ProxyRefused
from tests.tunnel.gateway_parts import certificate
from tests.tunnel.http.forward import PASSWORD, USER, Forward
from tests.tunnel.http.scripted import ID, Gateway
from tests.tunnel.http.sink import driving, play
from tests.tunnel.http.test_driver import data, numbers

FAR = Place("https", "gate.example", 443)


@pytest.fixture(autouse=True)
def _no_proxies_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.requirement("TUN-41")
def test_the_environment_says_which_proxy_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for(FAR, None) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:a%20b@proxy:3128")
    assert proxy_for(FAR, None) == Proxy("proxy", 3128, "ann", "a b")
    assert proxy_for(FAR._replace(scheme="http"), None) is None
    monkeypatch.setenv("http_proxy", "plain:8080")
    assert proxy_for(FAR._replace(scheme="http"), None) == Proxy("plain", 8080)
    assert proxy_for(FAR, "http://[::1]:9") == Proxy("::1", 9)
    assert proxy_for(FAR, "") is None, "none, whatever the environment says"
    monkeypatch.setenv("NO_PROXY", "other.example,gate.example")
    assert proxy_for(FAR, None) is None
    assert proxy_for(FAR, "http://p:1") == Proxy("p", 1)
    monkeypatch.setenv("NO_PROXY", ".example")
    assert proxy_for(FAR, None) is None


def test_this_machine_is_reached_directly_unless_a_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1"):
        near = Place("http", host, 7400)
        assert proxy_for(near, None) is None
        assert proxy_for(near, "http://p:1") == Proxy("p", 1)


def test_proxies_of_other_kinds_are_told() -> None:
    for text in ("socks5://p:1", "https://p:1", "http://", "http://p:x", "http://p:99999999"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            proxy_for(FAR, text)


def test_a_proxy_is_shown_without_its_password() -> None:
    assert str(Proxy("p", 1, "ann", "secret")) == "http://p:1"


@pytest.mark.requirement("TUN-40", "TUN-41")
@pytest.mark.parametrize("login", ["none", "basic", "digest"])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_through_a_proxy(login: Literal["none", "basic", "digest"], tls: bool, tmp_path: Path) -> None:
    async def test() -> None:
        pem, _ = certificate(tmp_path)
        serving = None
        if tls:
            serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            serving.load_cert_chain(pem)
        async with Forward(login) as proxy, Gateway(tls=serving) as gateway:
            options = TunnelOptions(proxy=proxy.url(), websocket="never", ca=str(pem))
            async with driving(gateway, options) as (driver, notes):
                for number in range(1, 6):
                    driver.send([data(number)])
                    gateway.say(encode(Kind.ACK, ID, number))
                    await notes.until(
                        lambda number=number: len(notes.packets) == number and not driver._pushes.under_way
                    )
                assert numbers(gateway) == [1, 2, 3, 4, 5]
            for request in gateway.requests:
                assert "proxy-authorization" not in request.headers
                assert USER not in str(request)
                assert b64encode(f"{USER}:{PASSWORD}".encode()).decode() not in str(request)
            if tls:
                assert {line.split(" ")[0] for line in proxy.seen} == {"CONNECT"}
                assert len(proxy.seen) <= 6, "a few connections, not one per request"
            else:
                assert all(line.startswith(f"POST http://127.0.0.1:{gateway.port}/tunnel?") for line in proxy.seen)
            if login == "digest":
                assert not any(said.startswith("Basic") for said in proxy.logins)
            assert proxy.logins.count("") <= (1 if login != "none" else len(proxy.logins)), "the proxy asks once"

    play(test)


@pytest.mark.requirement("TUN-41")
@pytest.mark.parametrize("login", ["basic", "digest"])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_wrong_login_is_its_own_error(login: Literal["basic", "digest"], tls: bool, tmp_path: Path) -> None:
    async def test() -> None:
        pem, _ = certificate(tmp_path)
        serving = None
        if tls:
            serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            serving.load_cert_chain(pem)
        async with Forward(login) as proxy, Gateway(tls=serving) as gateway:
            for url in (proxy.url("wrong"), f"http://127.0.0.1:{proxy.port}"):
                options = TunnelOptions(proxy=url, websocket="never", ca=str(pem))
                with pytest.raises(ProxyAuthentication, match="Proxy authentication") as error:
                    async with driving(gateway, options):
                        pass
                assert "wrong" not in str(error.value)
                assert not error.value.retryable
            assert not gateway.requests

    play(test)


def test_a_proxy_that_does_not_allow_connect_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        pem, _ = certificate(tmp_path)
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(pem)
        async with Forward() as proxy, Gateway(tls=serving) as gateway:
            proxy.connects = False
            with pytest.raises(ProxyRefused, match=f"CONNECT to port {gateway.port}"):
                async with driving(gateway, TunnelOptions(proxy=proxy.url(), ca=str(pem))):
                    pass

    play(test)


@pytest.mark.requirement("TUN-39", "TUN-40")
def test_a_websocket_through_a_proxy() -> None:
    async def test() -> None:
        async with Forward("basic") as proxy, Gateway() as gateway:
            gateway.takes_streams = True
            async with driving(gateway, TunnelOptions(proxy=proxy.url())) as (driver, notes):
                gateway.say(encode(Kind.CONN_INIT_ACK, ID, 0, 5))
                await notes.until(lambda: driver.carrier == "websocket")
                driver.send([data(1)])
                await gateway.until(lambda: gateway.pushed())
            assert any(line.startswith("CONNECT") for line in proxy.seen)
            assert "proxy-authorization" not in gateway.of("stream")[0].headers

    play(test)


@pytest.mark.parametrize("algorithm", ["MD5", "MD5-sess", "SHA-256", "SHA-256-sess"])
def test_digests_of_every_kind(algorithm: str) -> None:
    async def test() -> None:
        async with (
            Forward("digest", algorithm) as proxy,
            Gateway() as gateway,
            driving(gateway, TunnelOptions(proxy=proxy.url(), websocket="never")) as (driver, _),
        ):
            driver.send([data(1)])
            await gateway.until(lambda: gateway.pushed())

    play(test)


def test_challenges_nobody_can_answer_are_left_unanswered() -> None:
    login = Login(Proxy("p", 1, "ann", "x"))
    assert login.header("POST", "/x") == "", "nothing is said before the proxy asks"
    for challenge in (
        "",
        "Negotiate",
        "Digest",
        'Digest nonce="n", algorithm=ROT13',
        'Digest nonce="n", qop="auth-int"',
        ",",
    ):
        assert not login.on_asked(challenge)
    assert login.on_asked('Basic realm="a, Digest b", Digest realm="r", nonce="n"')
    assert login.header("POST", "/x").startswith("Digest ")
    assert not login.on_asked('Digest realm="r", nonce="m"'), "it was asked and answered: the password is wrong"
    assert login.on_asked('Digest realm="r", nonce="m", stale=TRUE')
    basic = Login(Proxy("p", 1, "ann", "x"))
    assert basic.on_asked('Negotiate, Basic realm="r"')
    assert basic.header("POST", "/x") == "Basic YW5uOng="
    assert not basic.on_asked('Basic realm="r"')
    assert not basic.on_asked('Digest realm="r", nonce="n"')
    assert not Login(Proxy("p", 1)).on_asked('Digest nonce="n"')
    assert Login(Proxy("p", 1)).header("POST", "/x") == ""
