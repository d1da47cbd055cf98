"""Opening a tunnel: the connect request, its retries, and every refusal with its own name."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from fairlead.errors import ConfigError, ConnectionLost
from fairlead.tunnel import refusals
from fairlead.tunnel.edge.dial import open_pump
from fairlead.tunnel.edge.http import open_tunnel
from fairlead.tunnel.end import State
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Kind, Packet, encode
from fairlead.tunnel.rules import Rules
from tests.tunnel.gateway_parts import certificate
from tests.tunnel.http.scripted import ID, TOKEN, Cut, Gateway, Reply, Request, Script
from tests.tunnel.http.sink import Notes, play

PLAIN = TunnelOptions(websocket="never")


def answering(*replies: Reply | Cut) -> Script:
    """These in turn, then as usual."""
    left = list(replies)

    async def script(request: Request) -> Reply | Cut | None:
        return left.pop(0) if left and request.kind == "connect" else None

    return script


async def attempt(gateway: Gateway, timeout_s: float = 5.0, options: TunnelOptions = PLAIN) -> int:
    opened = await open_tunnel(gateway.url, options, timeout_s=timeout_s)
    assert (opened.connection_id, opened.token, opened.version) == (ID, TOKEN, 2)
    assert TOKEN.hex() not in repr(opened)
    assert repr(TOKEN) not in repr(opened)
    opened.driver.close()
    return len(gateway.of("connect"))


@pytest.mark.requirement("TUN-60", state="half", note="the client asks anew; accept is shown with the broker")
@pytest.mark.parametrize(
    "lost",
    [
        Cut(),
        Reply(502, b"<html>", type="text/html"),
        Reply(503, headers=(("Retry-After", "0.02"),)),
        Reply(500),
        Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf", close=True),
        Reply(raw=b"garbage\r\n\r\n", close=True),
    ],
    ids=["reset", "502", "503", "500", "half", "garbage"],
)
def test_a_lost_answer_is_asked_for_again(lost: Reply | Cut) -> None:
    async def test() -> None:
        async with Gateway(answering(lost, lost)) as gateway:
            assert await attempt(gateway) == 3

    play(test)


@pytest.mark.requirement("TUN-60", state="half", note="an answer that never comes")
def test_an_answer_that_never_comes_is_asked_for_again() -> None:
    asked = 0

    async def script(request: Request) -> None:
        nonlocal asked
        if request.kind == "connect":
            asked += 1
            if asked == 1:
                await asyncio.sleep(60)

    async def test() -> None:
        async with Gateway(script) as gateway:
            assert await attempt(gateway, 1.5) == 2

    play(test)


@pytest.mark.requirement("TUN-62")
@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (Reply(404), refusals.UnknownServer, "'b1'"),
        (Reply(404, b"<html>", type="text/html"), refusals.NotAGateway, "login page"),
        (Reply(429), refusals.TooManyTunnels, "no more tunnels"),
        (Reply(401), refusals.TunnelDenied, "401"),
        (Reply(403, b"<html>", type="text/html"), refusals.TunnelDenied, "proxy"),
        (Reply(407, b"<html>", type="text/html"), refusals.ProxyAuthentication, "HTTPS_PROXY"),
        (Reply(400, headers=(("Fairlead-Reason", "version 2 is not"),)), refusals.VersionRefused, "version 2 is not"),
        (Reply(302, headers=(("Location", "https://portal/"),)), refusals.NotAGateway, "https://portal/"),
        (Reply(200, b"<html>", type="text/html"), refusals.NotAGateway, "login page"),
        (Reply(200, b"\0" * 99), refusals.NotAGateway, "no tunnel"),
        (Reply(200, encode(Kind.CONN_INIT, 0, payload=TOKEN)), refusals.NotAGateway, "no tunnel"),
        (Reply(200, encode(Kind.CONN_INIT, ID, payload=b"short")), refusals.NotAGateway, "token"),
        (Reply(200, encode(Kind.CONN_INIT, ID, version=1)), refusals.VersionRefused, "allow_v1"),
    ],
)
def test_every_refusal_has_its_name_and_says_what_to_do(
    reply: Reply, error: type[refusals.TunnelRefused], says: str
) -> None:
    async def test() -> None:
        async with Gateway(answering(reply)) as gateway:
            with pytest.raises(error) as refusal:
                await attempt(gateway)
            assert type(refusal.value) is error
            assert isinstance(refusal.value, ConnectionLost)
            assert says in str(refusal.value)
            assert len(gateway.of("connect")) == 1

    play(test)


@pytest.mark.requirement("TUN-62")
@pytest.mark.requirement("TUN-36", half="503 to a connect, of a scripted gateway")
def test_a_broker_that_is_not_linked_is_waited_for_until_the_timeout() -> None:
    async def script(request: Request) -> Reply:
        return Reply(503, headers=(("Retry-After", "0.05"), ("Fairlead-Reason", "not linked")))

    async def test() -> None:
        async with Gateway(script) as gateway:
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(refusals.NotLinked, match="is it running"):
                await attempt(gateway, 0.5)
            assert asyncio.get_running_loop().time() - began_s < 2
            assert len(gateway.of("connect")) > 3

    play(test)


@pytest.mark.requirement("TUN-62")
def test_nobody_there_is_said_at_once() -> None:
    async def test() -> None:
        async with Gateway() as gateway:
            pass
        with pytest.raises(refusals.NoAnswer, match="no way to the gateway"):
            await open_tunnel(gateway.url, PLAIN, timeout_s=30)
        with pytest.raises(ConfigError):
            await open_tunnel("ftp://127.0.0.1", PLAIN)
        with pytest.raises(ConfigError):
            await open_tunnel("http://u:p@127.0.0.1/tunnel", PLAIN)

    play(test)


def test_version_1_is_taken_only_when_allowed() -> None:
    async def test() -> None:
        async with Gateway(answering(Reply(200, encode(Kind.CONN_INIT, ID, version=1)))) as gateway:
            opened = await open_tunnel(gateway.url, PLAIN._replace(allow_v1=True))
            assert (opened.version, opened.token) == (1, b"")
            notes = Notes()
            opened.driver.start(notes)
            await gateway.until(lambda: gateway.of("pull"))
            assert "authorization" not in gateway.of("pull")[0].headers
            opened.driver.close()

    play(test)


@pytest.mark.requirement("TUN-56", "TUN-58", "TUN-59")
def test_the_four_steps_in_their_order() -> None:
    async def test() -> None:
        async with Gateway() as gateway:
            opening = asyncio.ensure_future(open_pump(gateway.url, PLAIN._replace(rules=Rules(capacity=5))))
            await gateway.until(lambda: gateway.of("pull"))
            assert not opening.done()
            assert not any(packet.kind == Kind.DATA for packet in gateway.pushed())
            gateway.say(encode(Kind.CONN_INIT_ACK, ID, 0, 2))
            pump = await opening
            assert pump.end.state is State.OPEN
            for _ in range(9):
                pump.write(b"x" * 32_768)
            await gateway.until(lambda: len(of(gateway, Kind.DATA)) == 2)
            confirmation = gateway.pushed()[0]
            assert (confirmation.kind, confirmation.sequence, confirmation.window) == (Kind.ACK, 0, 5), "TUN-60"
            assert gateway.of("connect")[0].packets[0].window == 5
            assert [request.kind for request in gateway.requests[:2]] == ["connect", "pull"]
            gateway.say(encode(Kind.ACK, ID, 2, 1))
            await gateway.until(lambda: len(of(gateway, Kind.DATA)) == 3)
            pump.stop()

    play(test)


def of(gateway: Gateway, kind: Kind) -> list[Packet]:
    return [packet for packet in gateway.pushed() if packet.kind == kind]


def test_a_broker_that_refuses_makes_opening_fail_with_its_reason() -> None:
    async def test() -> None:
        async with Gateway() as gateway:
            gateway.say(encode(Kind.CONN_ABORT, ID, payload=b"\x00\x07no more today"))
            with pytest.raises(ConnectionLost, match="no more today"):
                await open_pump(gateway.url, PLAIN)

    play(test)


@pytest.mark.requirement("TUN-64")
def test_plain_http_is_refused_unless_allowed_and_then_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        url = "http://gateway.invalid:1/tunnel/b1"
        with pytest.raises(ConfigError, match="allow_plain"):
            await open_tunnel(url, PLAIN)
        with caplog.at_level(logging.WARNING), pytest.raises(refusals.NoAnswer):
            await open_tunnel(url, PLAIN._replace(allow_plain=True, proxy=""), timeout_s=1)
        assert "plain HTTP" in caplog.text

    play(test)


@pytest.mark.requirement("TUN-64")
@pytest.mark.parametrize("http2", [False, True])
def test_a_certificate_is_checked(tmp_path: Path, http2: bool) -> None:
    async def test() -> None:
        pem, trusting = certificate(tmp_path)
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(pem)
        serving.set_alpn_protocols(["http/1.1"])
        options = PLAIN._replace(http2=http2)
        async with Gateway(tls=serving) as gateway:
            assert gateway.url.startswith("https://")
            with pytest.raises(refusals.BadCertificate, match="ca="):
                await open_tunnel(gateway.url, options)
            assert not gateway.requests
            assert await attempt(gateway, options=options._replace(ca=str(pem))) == 1
            opened = await open_tunnel(gateway.url, options, tls=trusting)
            opened.driver.close()
            with pytest.raises(ConfigError, match="cannot be read"):
                await open_tunnel(gateway.url, options._replace(ca=str(tmp_path / "none")))

    play(test)


def test_the_gateway_is_told_that_http_is_meant(tmp_path: Path) -> None:
    """One port serves several protocols: ALPN tells them apart."""
    seen: list[str | None] = []

    async def test() -> None:
        pem, _ = certificate(tmp_path)
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(pem)
        serving.set_alpn_protocols(["http/1.1"])

        async def script(request: Request) -> None:
            transport = gateway.lines[request.line].transport
            seen.append(transport.get_extra_info("ssl_object").selected_alpn_protocol())

        gateway = Gateway(script, serving)
        async with gateway:
            await attempt(gateway, options=PLAIN._replace(ca=str(pem)))
        assert seen == ["http/1.1"]

    play(test)
