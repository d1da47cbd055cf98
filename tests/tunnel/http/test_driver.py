"""The client driver against a scripted gateway, on real sockets: what it sends, and what it makes of every answer."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from fairlead.tunnel.packets import Kind, Packet, encode
from fairlead.tunnel.policy import Backoff
from fairlead.tunnel.rules import BODY_MAX
from tests.tunnel.http.scripted import ID, OCTETS, TOKEN, Cut, Gateway, Reply, Request
from tests.tunnel.http.sink import driving, play

PAGE = b"<html>Please log in to the hotel network</html>"


def data(number: int, size: int = 10) -> bytes:
    return encode(Kind.DATA, ID, number, payload=number.to_bytes(4) * (size // 4 + 1))


def numbers(gateway: Gateway) -> list[int]:
    return [packet.sequence for packet in gateway.pushed()]


@pytest.mark.requirement("TUN-25", "TUN-27")
@pytest.mark.requirement("TUN-63", half="the client, with a scripted gateway")
@pytest.mark.requirement("TUN-26", half="the client, with a scripted gateway")
def test_requests_look_as_they_should() -> None:
    async def test() -> None:
        async with Gateway() as gateway, driving(gateway) as (driver, notes):
            driver.send([data(1), data(2)])
            gateway.say(encode(Kind.ACK, ID, 2, 10))
            await gateway.until(lambda: gateway.pushed())
            await notes.until(lambda: notes.packets)
        connect, push, pull = (gateway.of(kind)[0] for kind in ("connect", "push", "pull"))
        assert connect.query == {"ServerName": "b1", "Type": "connect"}
        assert push.query == {"ServerName": "b1", "Type": "push", "ConnId": str(ID)}
        assert pull.query == {"ServerName": "b1", "Type": "pull", "ConnId": str(ID), "Hold": "25"}
        for request in (connect, push, pull):
            assert request.method == "POST"
            assert request.target.startswith("/tunnel?")
            assert request.headers["cache-control"] == "no-store"
            assert request.headers["content-type"] == OCTETS
        assert "authorization" not in connect.headers
        for request in (push, pull):
            assert request.headers["authorization"] == f"Bearer {TOKEN.hex()}"
            assert request.headers["fairlead-instance"] == "g-1", "TUN-42"
        assert [packet.kind for packet in connect.packets] == [Kind.CONN_INIT]
        assert connect.packets[0].connection_id == 0
        assert connect.packets[0].window == 256
        assert push.body == data(1) + data(2)
        assert [(packet.kind, packet.sequence, packet.window) for packet in notes.packets] == [(Kind.ACK, 2, 10)]

    play(test)


@pytest.mark.requirement("TUN-28", half="the client, with a scripted gateway")
def test_blocked_pushes_delay_no_pull() -> None:
    blocked = asyncio.Event()

    async def script(request: Request) -> None:
        if request.kind == "push":
            await blocked.wait()

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            while driver.room():
                driver.send([data(1)])
            await gateway.until(lambda: len(gateway.of("push")) == 2)
            for number in range(1, 21):
                gateway.say(data(number))
                await notes.until(lambda number=number: len(notes.packets) == number)
            assert driver.room() == 0
            blocked.set()
            await notes.until(lambda: driver.room())

    play(test)


@pytest.mark.requirement("TUN-37", half="the client, with a scripted gateway")
@pytest.mark.requirement("TUN-33", half="the client, with a scripted gateway")
def test_two_pushes_are_under_way_and_what_is_ready_then_is_left_with_the_end() -> None:
    go = asyncio.Semaphore(0)

    async def script(request: Request) -> None:
        if request.kind == "push":
            await go.acquire()

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            assert driver.room() == BODY_MAX
            driver.send([data(1)])
            assert driver.room() == BODY_MAX
            driver.send([data(2)])
            assert driver.room() == 0
            await gateway.until(lambda: len(gateway.of("push")) == 2)
            assert len({request.line for request in gateway.of("push")}) == 2
            go.release()
            await notes.until(lambda: driver.room())
            driver.send([data(number, 30_000) for number in range(3, 33)])
            go.release()
            go.release()
            await gateway.until(lambda: len(gateway.of("push")) == 3)
            assert [packet.sequence for packet in gateway.of("push")[2].packets] == list(range(3, 33))

    play(test)


@pytest.mark.requirement("TUN-38")
@pytest.mark.requirement("TUN-42", half="the client, with a scripted gateway")
def test_one_connection_for_pushes_one_for_pulls_and_cookies_are_returned() -> None:
    async def test() -> None:
        gateway = Gateway()
        gateway.cookies = (("Set-Cookie", "lb=node7; Path=/; HttpOnly"), ("Set-Cookie", "old=1; Max-Age=0"))
        async with gateway, driving(gateway) as (driver, notes):
            for number in range(1, 101):
                driver.send([data(number)])
                await notes.until(lambda: not driver._pushes.under_way)
                gateway.say(encode(Kind.ACK, ID, number))
                await notes.until(lambda number=number: len(notes.packets) == number)
            assert len({request.line for request in gateway.of("push")}) == 1
            assert len({request.line for request in gateway.of("pull")}) == 1
            assert gateway.count == 2
            later = gateway.of("push") + gateway.of("pull")
            assert {request.headers.get("cookie") for request in later} == {"lb=node7"}

    play(test)


@pytest.mark.requirement("TUN-38")
def test_a_stale_connection_is_replaced_unnoticed() -> None:
    async def test() -> None:
        async with Gateway() as gateway, driving(gateway) as (driver, notes):
            for number in range(1, 11):
                driver.send([data(number)])
                await notes.until(lambda: not driver._pushes.under_way)
                for line in {request.line for request in gateway.of("push")}:
                    if line in gateway.lines:
                        gateway.lines[line].transport.abort()
            assert numbers(gateway) == list(range(1, 11))

    play(test)


@pytest.mark.requirement("TUN-35", half="the client, with a scripted gateway")
@pytest.mark.parametrize(
    "answer",
    [
        Reply(502, PAGE, type="text/html"),
        Reply(200, PAGE, type="text/html"),
        Reply(200, PAGE, type=None),
        Reply(403, PAGE, type="text/html"),
        Reply(410, PAGE, type="text/html"),
        Reply(302, b"", (("Location", "http://portal/"),)),
        Reply(raw=b"\x15\x03\x01 what is this\r\n\r\n", close=True),
        Reply(
            raw=b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 99\r\n\r\n", close=True
        ),
        Cut(),
    ],
    ids=["502", "portal", "untyped", "403-page", "410-page", "redirect", "no-http", "half", "reset"],
)
def test_whatever_goes_wrong_is_loss_and_passes(answer: Reply | Cut) -> None:
    wrong = True

    async def script(request: Request) -> Reply | Cut | None:
        return answer if wrong and request.kind != "connect" else None

    async def test() -> None:
        nonlocal wrong
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            driver.send([data(1)])
            await gateway.until(lambda: len(gateway.of("pull")) >= 3 and gateway.of("push"))
            await notes.until(lambda: driver.room())
            wrong = False
            driver.send([data(2)])
            gateway.say(data(7))
            await gateway.until(lambda: 2 in numbers(gateway))
            await notes.until(lambda: notes.packets)
            assert [packet.sequence for packet in notes.packets] == [7]
            assert not notes.gone
            # Lost is lost, the end sends it again (TUN-2); but a reset may mean that the connection was a stale one.
            assert numbers(gateway).count(1) == (2 if isinstance(answer, Cut) else 1)

    play(test)


def test_failures_are_followed_by_growing_pauses_and_nothing_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "FIRST_S", 0.02)

    async def script(request: Request) -> Reply | None:
        return Reply(500) if request.kind != "connect" else None

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (driver, _notes):
            await gateway.until(lambda: len(gateway.of("pull")) >= 6)
            times = [request.at_s for request in gateway.of("pull")]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert gaps[4] > 0.1
            assert gaps[4] > gaps[0]
            driver.send([data(1)])
            assert driver.room() > 0, "another push may be under way"
            await gateway.until(lambda: gateway.of("push"))
            while driver.room():
                await asyncio.sleep(0.001)

    play(test)


@pytest.mark.requirement("TUN-50", half="the client, with a scripted gateway")
@pytest.mark.requirement("TUN-36", half="the client, with a scripted gateway")
def test_503_is_temporary_and_what_was_refused_so_is_sent_when_it_passes() -> None:
    linked = False

    async def script(request: Request) -> Reply | None:
        return Reply(503, headers=(("Retry-After", "0.05"),)) if not linked and request.kind != "connect" else None

    async def test() -> None:
        nonlocal linked
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            driver.send([data(1), data(2)])
            await gateway.until(lambda: len(gateway.of("push")) >= 3 and len(gateway.of("pull")) >= 3)
            linked = True
            gateway.say(data(9))
            await notes.until(lambda: notes.packets and not driver._pushes.under_way)
            assert gateway.of("push")[-1].body == data(1) + data(2)
            assert not notes.gone

    play(test)


@pytest.mark.requirement("TUN-94", half="the client, with a scripted gateway")
@pytest.mark.requirement("TUN-36", half="the client, with a scripted gateway")
def test_410_is_final_with_the_gateways_reason() -> None:
    async def script(request: Request) -> Reply | None:
        abort = encode(Kind.CONN_ABORT, ID, payload=b"\x00\x04the broker is gone")
        return Reply(410, abort) if request.kind == "pull" else None

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            await notes.until(lambda: notes.gone)
            assert notes.gone == [(4, "the broker is gone")]
            assert driver.room() == 0
            driver.send([data(1)])
            await asyncio.sleep(0.2)
            assert len(gateway.of("pull")) == 1, "there is nothing more to ask"
            assert not gateway.of("push")

    play(test)


@pytest.mark.requirement("TUN-63", half="the client, with a scripted gateway")
@pytest.mark.requirement("TUN-36", half="the client, with a scripted gateway")
@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_not_taken_is_final(status: int) -> None:
    async def script(request: Request) -> Reply | None:
        return Reply(status) if request.kind == "push" else None

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            driver.send([data(1)])
            await notes.until(lambda: notes.gone)
            ((code, text),) = notes.gone
            assert code == 7
            assert str(status) in text
            assert len(gateway.of("push")) == 1

    play(test)


@pytest.mark.requirement("TUN-41", state="half", note="a login that stops being taken; the rest is in test_proxies")
def test_a_proxy_that_wants_another_login_is_its_own_error() -> None:
    async def script(request: Request) -> Reply | None:
        return Reply(407, PAGE, type="text/html") if request.kind != "connect" else None

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (_, notes):
            await notes.until(lambda: notes.gone)
            assert "proxy authentication" in notes.gone[0][1]
            assert len(gateway.of("pull")) == 3, "it may have been an accident"

    play(test)


@pytest.mark.requirement("TUN-23")
def test_413_halves_the_body_and_nothing_is_lost() -> None:
    limit = 100 << 10

    async def script(request: Request) -> Reply | None:
        return Reply(413, PAGE, type="text/html") if len(request.body) > limit else None

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            driver.send([data(number, 32_000) for number in range(1, 32)])
            await notes.until(lambda: not driver._pushes.under_way)
            taken = [request for request in gateway.of("push") if len(request.body) <= limit]
            assert [packet.sequence for request in taken for packet in request.packets] == list(range(1, 32))
            assert driver.room() <= 64 << 10
            before = len(gateway.of("push"))
            driver.send([data(99, 32_000)])
            await notes.until(lambda: not driver._pushes.under_way)
            assert len(gateway.of("push")) == before + 1, "it has learnt"

    play(test)


def test_a_way_that_lets_not_even_one_packet_through_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "FIRST_S", 0.001)
    monkeypatch.setattr(Backoff, "LONGEST_S", 0.01)

    async def script(request: Request) -> Reply | None:
        return Reply(413, PAGE, type="text/html") if request.kind == "push" else None

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            driver.send([data(1, 32_000), data(2, 32_000)])
            await notes.until(lambda: notes.gone)
            assert "lets no body" in notes.gone[0][1]

    play(test)


@pytest.mark.requirement("TUN-30", state="scaled", note="a period of 0.3 s instead of 5 s")
def test_the_pull_period_is_slept_only_after_empty_answers() -> None:
    async def test() -> None:
        async with Gateway() as gateway, driving(gateway) as (driver, _notes):
            driver.set_period(0.3, 25)
            gateway.say(data(1))
            await gateway.until(lambda: len(gateway.of("pull")) >= 5)
            idle = gateway.of("pull")[2:]
            assert all(request.query["Hold"] == "0" for request in idle)
            gaps = [after.at_s - before.at_s for before, after in itertools.pairwise(idle)]
            assert all(gap >= 0.29 for gap in gaps)

    play(test)


@pytest.mark.requirement("TUN-30", half="the client, with a scripted gateway")
def test_pulls_follow_each_other_without_pause_while_there_is_something() -> None:
    left = 30

    async def script(request: Request) -> Reply | None:
        nonlocal left
        if request.kind != "pull" or not left:
            return None
        left -= 1
        return Reply(200, data(left + 1))

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            driver.set_period(30, 25)
            await notes.until(lambda: len(notes.packets) == 30)  # in far less than 30 s each
            await gateway.until(lambda: len(gateway.of("pull")) == 31)
            driver.set_period(0.01, 25)  # wakes the sleeper
            await gateway.until(lambda: len(gateway.of("pull")) == 33)

    play(test)


@pytest.mark.requirement("TUN-31", state="scaled", note="held for 0.2 s; a proxy that cuts at 0.5 s of 4 s")
def test_pulls_are_held_and_a_proxy_that_cuts_them_is_found_out() -> None:
    async def script(request: Request) -> Cut | None:
        if request.kind == "pull" and float(request.query["Hold"]) > 1.5:
            await asyncio.sleep(1.1)
            return Cut()
        return None

    async def test() -> None:
        async with Gateway(script) as gateway, driving(gateway) as (driver, notes):
            driver.set_period(0, 4)
            await gateway.until(lambda: any(float(pull.query["Hold"]) <= 1.5 for pull in gateway.of("pull")))
            gateway.say(data(1))
            began_s = asyncio.get_running_loop().time()
            await notes.until(lambda: notes.packets)
            assert asyncio.get_running_loop().time() - began_s < 1.0, "a held pull answers at once"
            assert not notes.gone

    play(test)


@pytest.mark.requirement("TUN-33", half="the client, with a scripted gateway")
def test_damage_is_counted_and_spoils_nothing_else() -> None:
    async def test() -> None:
        async with Gateway() as gateway, driving(gateway) as (_, notes):
            bad = bytearray(data(2))
            bad[-1] ^= 1
            gateway.say(data(1), bytes(bad), data(3), encode(Kind.DATA, ID + 1, 4, payload=b"x"))
            await notes.until(lambda: len(notes.packets) == 2)
            assert [packet.sequence for packet in notes.packets] == [1, 3], "and none of another tunnel"
            assert notes.damaged == 1
            gateway.say(data(5), b"\x00\x02\x00\x03\xff\xff\xff\xff" + bytes(40))
            await notes.until(lambda: len(notes.packets) == 3)
            assert notes.damaged == 2
            gateway.say(encode(Kind.DATA, ID, 6, payload=b"v1", version=1))
            await notes.until(lambda: len(notes.packets) == 4)

    play(test)


@pytest.mark.requirement("TUN-2")
def test_a_driver_neither_sorts_nor_removes() -> None:
    async def test() -> None:
        async with Gateway() as gateway, driving(gateway) as (driver, notes):
            order = [5, 4, 4, 1, 5]
            gateway.say(*map(data, order))
            driver.send(list(map(data, order)))
            await notes.until(lambda: len(notes.packets) == 5)
            await gateway.until(lambda: len(gateway.pushed()) == 5)
            assert [packet.sequence for packet in notes.packets] == numbers(gateway) == order

    play(test)


def test_a_fault_of_our_own_ends_the_tunnel_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with Gateway() as gateway, driving(gateway) as (_, notes):

            def broken(packets: list[Packet]) -> None:
                raise RuntimeError("a bug")

            notes.on_packets = broken  # type: ignore[method-assign]
            gateway.say(data(1))
            await notes.until(lambda: notes.gone)
            assert "a bug" in notes.gone[0][1]

    play(test)
    assert "a bug" in caplog.text


def test_a_last_word_is_still_said_after_close() -> None:
    async def script(request: Request) -> None:
        if request.kind == "push":
            await asyncio.sleep(0.1)

    async def test() -> None:
        async with Gateway(script) as gateway:
            async with driving(gateway) as (driver, _):
                driver.send([encode(Kind.CONN_ABORT, ID, payload=b"\x00\x01bye")])
                driver.close()
                assert driver.room() == 0
                driver.send([data(1)])  # into nothing
                await gateway.until(lambda: gateway.pushed())
            assert [packet.kind for packet in gateway.pushed()] == [Kind.CONN_ABORT]

    play(test)


def test_a_gateway_that_goes_and_comes_back_is_found_again() -> None:
    async def test() -> None:
        gateway = Gateway()
        async with gateway, driving(gateway) as (driver, notes):
            driver.send([data(1)])
            await gateway.until(lambda: gateway.pushed())
            gateway._server.close()
            gateway.cut_all()
            await notes.until(lambda: driver.room())
            driver.send([data(2)])
            await asyncio.sleep(0.3)
            async with Gateway() as again:
                pass
            again.port = gateway.port
            async with again:
                again.say(data(9))
                await again.until(lambda: again.pushed())
                await notes.until(lambda: any(packet.sequence == 9 for packet in notes.packets))
                assert numbers(again) == [2], "what never left this machine is not lost"
                again.cut_all()

    play(test)
