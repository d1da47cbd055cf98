"""The asynchronous face against a scripted peer: all modes, loss, reconnecting, moving, errors."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead import errors
from fairlead.client.aio.serving import Request
from fairlead.wire import kinds

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_broadcast(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url, name="pricing-ui") as connection:
            assert connection.uid == 101
            assert connection.server == "fake"
            assert connection.type == "pricing-ui"
            async with connection.subscribe("prices.>") as prices:
                await connection.publish("prices.eur.usd", b"1.0843", headers={"k": "v"}, reply_to="answers")
                async for message in prices:
                    assert (message.topic, message.body, message.sender) == ("prices.eur.usd", b"1.0843", 101)
                    assert (message.headers, message.reply_to, message.mode) == ({"k": b"v"}, "answers", "broadcast")
                    break
                await connection.publish(["a.b", "prices.x"], "text")
                message = await prices.next(timeout=15)
                assert (message.topics, message.body) == (["a.b", "prices.x"], b"text")
        assert connection.closed

    run(story)


def test_publish_many_arrives_in_order_and_a_break_loses_nothing(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as connection, connection.subscribe("n") as numbers:
            await connection.publish_many("n", [b"%d" % i for i in range(20_000)])
            seen = []
            async for message in numbers:
                seen.append(int(message.body))
                if len(seen) == 10:
                    break
            async for batch in numbers.batches():
                seen += [int(message.body) for message in batch]
                if len(seen) >= 20_000:
                    break
            assert seen == list(range(20_000))

    run(story)


def test_one_message_reaches_all_matching_subscriptions_and_no_local_ones_only_from_others(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as one, fairlead.connect(server.url) as other:
            subscriptions = one.subscribe("a.*"), one.subscribe("a.b"), one.subscribe(">", no_local=True)
            async with subscriptions[0] as stars, subscriptions[1] as plain, subscriptions[2] as foreign:
                await one.publish("a.b", b"own")
                await one.flush()
                await other.publish("a.b", b"other")
                assert [(await stars.next(1)).body, (await stars.next(1)).body] == [b"own", b"other"]
                assert [(await plain.next(1)).body, (await plain.next(1)).body] == [b"own", b"other"]
                assert (await foreign.next(1)).body == b"other"
                with pytest.raises(errors.RequestTimeout):
                    await foreign.next(timeout=0.01)

    run(story)


def test_credit_is_given_back_only_for_what_was_read(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url, credit=100) as connection, connection.subscribe("t") as messages:
            peer = server.peers[connection.uid]

            def granted() -> int:
                return sum(m.number for m in peer.seen if m.kind == kinds.KIND_CREDIT)

            for _ in range(100):
                await connection.publish("t", b"")
            await connection.flush()
            assert len(messages.queue) == 100
            assert granted() == 0
            for _ in range(60):
                await messages.next(1)
            await connection.flush()
            assert 25 <= granted() <= 60
            async for _ in messages:
                if not messages.queue:
                    break
            await messages.close()
            await connection.flush()
            assert granted() >= 75

    run(story)


def test_a_question_inside_the_reading_loop_does_not_wait_for_itself(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url, credit=10) as connection, connection.subscribe("t") as messages:
            await connection.publish_many("t", [b""] * 10)
            await connection.flush()
            assert len(messages.queue) == 10
            peer = server.peers[connection.uid]
            assert not any(m.kind == kinds.KIND_CREDIT for m in peer.seen)
            with pytest.raises(errors.NoReceiver):
                await connection.request("nobody")
            assert [m.number for m in peer.seen if m.kind == kinds.KIND_CREDIT] == [10]

    run(story)


def test_requests(run: Run) -> None:
    async def story(server: Any) -> None:
        def plain(request: Request) -> bytes:
            return b"plain " + request.body

        async def coroutine(request: Request) -> str:
            await asyncio.sleep(0)
            return f"coroutine {request.sender}"

        def parts(request: Request) -> Iterator[bytes]:
            yield from (b"1", b"2", b"3")

        async def async_parts(request: Request) -> AsyncIterator[str]:
            for part in "abc":
                await asyncio.sleep(0)
                yield part

        def failing(request: Request) -> bytes:
            raise ValueError("no such thing")

        async def refusing(request: Request) -> None:
            raise errors.NotAllowed("not you")

        def nothing(request: Request) -> None:
            return None

        def wrong(request: Request) -> int:
            return 7

        async with fairlead.connect(server.url) as asker, fairlead.connect(server.url) as worker:
            handlers = {"plain": plain, "coroutine": coroutine, "parts": parts, "async": async_parts,
                        "failing": failing, "refusing": refusing, "nothing": nothing, "wrong": wrong}  # fmt: skip
            registrations = [await worker.respond(topic, handler) for topic, handler in handlers.items()]
            assert (await asker.request("plain", b"x")).body == b"plain x"
            assert (
                await asker.request("coroutine", "x", headers={"a": b"b"})
            ).body == f"coroutine {asker.uid}".encode()
            assert (await asker.request("nothing")).body == b""
            assert [m.body async for m in asker.request_stream("parts")] == [b"1", b"2", b"3"]
            assert [m.body async for m in asker.request_stream("async")] == [b"a", b"b", b"c"]
            assert (await asker.request("parts")).body == b"1"
            for topic, code in [
                ("failing", "handler-failed"),
                ("refusing", "not-allowed"),
                ("wrong", "handler-failed"),
            ]:
                with pytest.raises(errors.FairleadError) as caught:
                    await asker.request(topic)
                assert caught.value.code == code
            with pytest.raises(errors.NoReceiver):
                await asker.request("nobody")
            with pytest.raises(errors.NoReceiver):
                async for _ in asker.request_stream("nobody"):
                    pass
            replies = await asyncio.gather(*(asker.request("plain", b"%d" % i) for i in range(500)))
            assert [r.body for r in replies] == [b"plain %d" % i for i in range(500)]
            for registration in registrations:
                await registration.close()
            with pytest.raises(errors.NoReceiver):
                await asker.request("plain")

    run(story)


def test_a_timeout_and_a_cancelled_task_send_cancel(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as asker, fairlead.connect(server.url) as worker:
            stopped = asyncio.Event()

            async def slow(request: Request) -> None:
                try:
                    await asyncio.sleep(100)
                finally:
                    stopped.set()

            await worker.respond("slow", slow)
            with pytest.raises(errors.RequestTimeout) as caught:
                await asker.request("slow", timeout=0.02)
            assert isinstance(caught.value, TimeoutError)
            with pytest.raises(errors.RequestTimeout):
                async for _ in asker.request_stream("slow", timeout=0.02):
                    pass
            task = asyncio.create_task(asker.request("slow", timeout=None))
            await asker.flush()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asker.flush()
            seen = server.peers[asker.uid].seen
            assert sum(m.kind == kinds.KIND_CANCEL for m in seen) == 3
            # The server passes it on as CANCELLED, and the handler's task ends.
            at_worker = server.peers[worker.uid]
            for correlation in list(server.routes):
                at_worker.say(kinds.KIND_CANCELLED, correlation=correlation)
            await stopped.wait()
            # Given up before the handler's task began to run.
            at_worker.say(kinds.KIND_REQUEST, topic=b"slow", correlation=1 << 63)
            at_worker.say(kinds.KIND_CANCELLED, correlation=1 << 63)
            await worker.flush()

    run(story)


def test_serve_from_a_loop(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as asker, fairlead.connect(server.url) as worker:

            async def work() -> None:
                async with worker.serve("jobs") as requests:
                    async for request in requests:
                        if request.body == b"stop":
                            break
                        await request.reply(b"first", last=False)
                        await request.reply(request.body, headers={"h": "1"})
                        with pytest.raises(errors.ProtocolError):
                            await request.reply(b"again")

            task = asyncio.create_task(work())
            await until(lambda: server.peers[worker.uid].registrations)
            assert [m.body async for m in asker.request_stream("jobs", b"x")] == [b"first", b"x"]
            waiting = [asyncio.create_task(asker.request("jobs", b"stop", timeout=0.1)) for _ in range(3)]
            results = await asyncio.gather(*waiting, return_exceptions=True)
            await task
            assert sum(isinstance(result, errors.ReceiverLost) for result in results) == 2

    run(story)


def test_fan_out(run: Run) -> None:
    async def story(server: Any) -> None:
        async with (
            fairlead.connect(server.url) as asker,
            fairlead.connect(server.url, type="x", name="a") as a,
            fairlead.connect(server.url, type="x", name="b") as b,
        ):
            await a.respond("who", lambda request: b"a")
            await b.respond("who", lambda request: b"b")
            replies = asker.request_all("who", timeout=5)
            assert sorted([m.body async for m in replies]) == [b"a", b"b"]
            assert (replies.asked, replies.answered, replies.lost) == (2, 2, 0)
            assert replies.is_complete
            await a.respond_direct(lambda request: b"direct a")
            direct = [m async for m in asker.request_all(type="x")]
            assert sorted(m.body for m in direct)[1] == b"direct a"
            assert sorted(m.headers.get("error", b"") for m in direct) == [b"", b"no-receiver"]
            # One that never answers: the time passes; one that is lost is counted.
            server.deaf = {kinds.KIND_RESPONSE}
            replies = asker.request_all("who", timeout=0.05)
            assert [m async for m in replies] == []
            replies = asker.request_all("who", timeout=5)
            task = asyncio.create_task(anext(aiter(replies), None))
            await until(lambda: replies.asked)
            for _ in range(2):
                server.peers[asker.uid].say(kinds.KIND_LOST, correlation=replies._correlation)
            assert await task is None
            assert replies.lost == 2
            with pytest.raises(errors.BadTopic):
                asker.request_all()

    run(story)


def test_conversations(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as asker, fairlead.connect(server.url, type="w", name="1") as worker:

            async def work() -> None:
                async with worker.accept("desk") as talks:
                    async for talk in talks:
                        async for message in talk:
                            await talk.send(b"echo " + message.body)
                        break

            task = asyncio.create_task(work())
            await until(lambda: server.peers[worker.uid].registrations)
            async with asker.converse("desk") as talk:
                for i in range(50):
                    await talk.send(b"%d" % i)
                    assert (await talk.receive(timeout=15)).body == b"echo %d" % i
            await task
            with pytest.raises(errors.ConversationLost):
                await talk.receive()
            with pytest.raises(errors.ConversationLost):
                await talk.send(b"x")
            async with asker.converse("desk") as talk:
                await talk.send(b"anyone?")
                with pytest.raises(errors.NoReceiver):
                    await talk.receive(timeout=15)
            async with worker.accept() as talks, asker.converse("some.topic", to="w/1") as talk:
                await talk.send(b"hello")
                other = await talks.next(1)
                assert (await other.receive(1)).body == b"hello"
                await other.send(b"bye", last=True)
                assert (await talk.receive(1)).body == b"bye"
                with pytest.raises(errors.ConversationLost):
                    await talk.receive(1)

    run(story)


def test_between_two_applications(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url, type="t", name="a") as a, fairlead.connect(server.url) as b:
            await b.send_to("t/a", b"by name")
            await b.send_to(a.uid, "by uid")
            inbox = a.inbox()
            assert [(await inbox.next(1)).body, (await inbox.next(1)).body] == [b"by name", b"by uid"]
            await a.respond_direct(lambda request: request.body * 2)
            assert (await b.call(a.uid, b"x")).body == b"xx"
            assert (await b.call("t/a", b"y")).body == b"yy"
            await a.respond("calc", lambda request: b"calc")
            assert (await b.request("calc", to="t/a")).body == b"calc"
            assert (await b.request("calc", to=a.uid)).body == b"calc"
            heard = []
            b.on_event(heard.append)
            await b.send_to(1, b"nobody")
            await b.flush()
            assert [event.name for event in heard] == ["undelivered"]
            with pytest.raises(errors.NoReceiver):
                await b.call("t/none")
            with pytest.raises(errors.ProtocolError):
                await b.send_to("not-an-address", b"")

    run(story)


def test_over_a_unix_socket(run: Run, tmp_path: Path) -> None:
    async def story(server: Any) -> None:
        await server.stop()
        await server.start(path=str(tmp_path / "s"))
        async with fairlead.connect(f"fairlead+unix://{tmp_path}/s") as connection:
            await connection.flush()

    run(story)


def test_over_tls(run: Run, tmp_path: Path) -> None:
    there, here = certificate(tmp_path)

    async def story(server: Any) -> None:
        await server.stop()
        await server.start(tls=there)
        async with fairlead.connect(f"fairleads://localhost:{server.port}", tls=here) as connection:
            await connection.flush()
        with pytest.raises(errors.ConnectionLost, match="certificate"):
            await fairlead.connect(f"fairleads://localhost:{server.port}")

    run(story)


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context, and one of a client that trusts it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "server.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(pem)
    return there, ssl.create_default_context(cadata=made.public_bytes(serialization.Encoding.PEM).decode())


def test_a_big_body_goes_there_and_back(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as connection, connection.subscribe("big") as big:
            body = bytes(range(256)) * (12 << 10)
            await connection.publish("big", body)
            assert (await big.next(5)).body == body
            with pytest.raises(errors.BodyTooLarge):
                await connection.publish("big", bytes((64 << 20) + 1))

    run(story)


def test_a_lost_connection_is_made_again_and_said_anew(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as connection:
            heard = []
            connection.on_event(lambda event: heard.append(event.name))
            async with connection.subscribe("t.>") as messages:
                await connection.respond("echo", lambda request: request.body)
                server.deaf = {kinds.KIND_REQUEST}
                waiting = asyncio.create_task(connection.request("echo", timeout=None))
                await connection.flush()
                server.deaf = set()
                uid = connection.uid
                server.drop_next = 2
                server.peers[uid].transport.abort()
                with pytest.raises(errors.ConnectionLost):
                    await waiting
                await connection.publish("t.x", b"after")  # waits for the new connection
                assert (await messages.next(5)).body == b"after"
                assert connection.uid != uid
                assert messages.interruptions == 1
                assert (await connection.request("echo", b"x")).body == b"x"
                assert heard == ["lost", "reconnected"]
        assert heard == ["lost", "reconnected", "closed"]

    run(story)


def test_when_the_limit_passes_everybody_is_told(run: Run) -> None:
    async def story(server: Any) -> None:
        connection = await fairlead.connect(server.url, reconnect_limit_s=0.2)
        subscription = connection.subscribe("t")
        await subscription.start()
        requests = connection.serve("r")
        await requests.start()

        async def read(things: Any) -> None:
            async for _ in things:
                pass

        readers = [asyncio.create_task(read(things)) for things in (subscription, requests, connection.inbox())]
        await asyncio.sleep(0)
        await server.stop()
        await until(lambda: not connection.connected)
        with pytest.raises(errors.RequestTimeout):
            await connection.request("x", timeout=0.01)  # its time does not wait for the connection
        readers.append(asyncio.create_task(connection.publish("t", b"")))
        readers.append(asyncio.create_task(connection.flush()))
        readers.append(asyncio.create_task(connection.subscribe("x").start()))
        results = await asyncio.gather(*readers, return_exceptions=True)
        assert all(isinstance(result, errors.ConnectionLost) for result in results), results
        assert connection.closed
        with pytest.raises(errors.ConnectionLost):
            await connection.request("x")
        await connection.close()

    run(story)


def test_without_reconnect_a_loss_is_the_end(run: Run) -> None:
    async def story(server: Any) -> None:
        connection = await fairlead.connect(server.url, reconnect=False)
        server.peers[connection.uid].error("slow-client", "too slow")
        server.peers[connection.uid].transport.close()
        await until(lambda: connection.closed)
        with pytest.raises(errors.ConnectionLost) as caught:
            await connection.publish("t", b"")
        assert caught.value.code == "slow-client"

    run(story)


def test_an_attempt_that_closes_before_its_confirmation_is_retried(run: Run) -> None:
    async def story(server: Any) -> None:
        server.drop_next = 3
        async with fairlead.connect(server.url) as connection:
            assert connection.connected
        assert server.accepted == 4

    run(story)


@pytest.mark.parametrize(
    ("code", "kind"), [("bad-credentials", errors.BadCredentials), ("duplicate-instance", errors.DuplicateInstance)]
)
def test_a_refusal_is_raised_with_its_reason(run: Run, code: str, kind: type[Exception]) -> None:
    async def story(server: Any) -> None:
        server.refuse = (code, "because")
        with pytest.raises(kind, match="because"):
            await fairlead.connect(server.url, user="ann", password="wrong")

    run(story)


def test_nobody_there_and_nobody_answering(run: Run) -> None:
    async def story(server: Any) -> None:
        with pytest.raises(errors.ConnectionLost):
            await fairlead.connect("fairlead://127.0.0.1:1")
        server.silent = True
        with pytest.raises(errors.ConnectionLost, match="within"):
            await fairlead.connect(server.url, connect_timeout_s=0.1)
        server.silent = False
        async with fairlead.connect(f"fairlead://127.0.0.1:1,127.0.0.1:{server.port}") as connection:
            assert connection.connected

    run(story)


def test_a_silent_server_is_noticed(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url, keep_alive_s=0.05, reconnect=False) as connection:
            heard = []
            connection.on_event(heard.append)
            await asyncio.sleep(0.2)
            assert connection.connected  # PING is answered
            server.silent = True
            await until(lambda: connection.closed)
            assert [event.name for event in heard] == ["lost", "closed"]
            assert heard[0].error.code == "keep-alive-timeout"

    run(story)


def test_garbage_from_the_server_ends_the_line(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url, reconnect=False) as connection:
            server.peers[connection.uid].transport.write(b"\xff" * 100)
            await until(lambda: connection.closed)
            with pytest.raises(errors.FairleadError):
                await connection.publish("t", b"")

    run(story)


def test_what_is_not_sent(run: Run) -> None:
    async def story(server: Any) -> None:
        connection = fairlead.connect(server.url)
        with pytest.raises(errors.ProtocolError):
            connection.subscribe("x")
        async with connection:
            for topic in ("", "a.*", "a\nb", []):
                with pytest.raises(errors.BadTopic):
                    await connection.publish(topic, b"")
            with pytest.raises(errors.BadPattern):
                connection.subscribe("a..b")
            with pytest.raises(errors.ProtocolError):
                await connection.publish("t", b"", headers={":from": b"root"})
            with pytest.raises(TypeError):
                await connection.publish("t", 7)  # type: ignore[arg-type]
            with pytest.raises(errors.ProtocolError):
                await connection.respond("t", print)
                await connection.respond("t", print)
            server.deaf = {kinds.KIND_SUBSCRIBE}
            refused = connection.subscribe("secret")
            task = asyncio.create_task(refused.start())
            peer = server.peers[connection.uid]
            await until(lambda: peer.seen[-1].kind == kinds.KIND_SUBSCRIBE)
            peer.error("not-allowed", "no", number=peer.seen[-1].number)
            with pytest.raises(errors.NotAllowed):
                await task
        for bad in ("http://x", "fairlead://h:0", "fairlead+unix://", "fairlead://[::1", "fairlead://h:x"):
            with pytest.raises(errors.ConfigError):
                fairlead.connect(bad)
        with pytest.raises(errors.ConfigError):
            fairlead.connect(name="a/b")

    run(story)


@pytest.mark.parametrize("new_first", [True, False])
def test_moving_loses_doubles_and_reorders_nothing(run: Run, new_first: bool) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as connection, connection.subscribe("t") as messages:
            heard = []
            connection.on_event(lambda event: heard.append(event.name))
            uid = connection.uid
            old = server.peers[uid]
            await connection.publish("t", b"1")
            new: list[Any] = []
            original = server.on_connect

            def on_connect(peer: Any, hello: dict[str, Any]) -> None:
                new.append(peer)
                original(peer, hello)

            server.on_connect = on_connect
            old.say(kinds.KIND_GO_AWAY, body=json.dumps({"token": str(uid), "within_s": 5}).encode())
            await until(lambda: any(m.kind == kinds.KIND_MOVE for m in old.seen))
            assert old.seen[-1].kind == kinds.KIND_MOVE
            await connection.publish("t", b"held back")
            await asyncio.sleep(0.02)
            assert old.seen[-1].kind == kinds.KIND_MOVE
            (peer,) = new
            assert [m.kind for m in peer.seen] == [kinds.KIND_CONNECT]

            def turn_over_new() -> None:
                peer.say(kinds.KIND_MOVED)
                peer.say(kinds.KIND_PUBLISH, topic=b"t", body=b"3")

            def turn_over_old() -> None:
                old.say(kinds.KIND_PUBLISH, topic=b"t", body=b"2")
                old.say(kinds.KIND_MOVED)

            peer.uid, peer.subscriptions = uid, old.subscriptions
            server.peers[uid] = peer
            for turn in [turn_over_new, turn_over_old][:: 1 if new_first else -1]:
                turn()
                await asyncio.sleep(0.02)
            await connection.flush()
            bodies = [(await messages.next(1)).body for _ in range(4)]
            assert bodies == [b"1", b"2", b"3", b"held back"]
            assert connection.uid == uid
            assert heard == ["moved"]
            assert messages.interruptions == 0

    run(story)


def test_a_loss_in_the_middle_of_a_move_is_a_loss(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as connection, connection.subscribe("t") as messages:
            heard = []
            connection.on_event(lambda event: heard.append(event.name))
            old = server.peers[connection.uid]
            old.say(kinds.KIND_GO_AWAY, body=json.dumps({"token": str(old.uid), "within_s": 5}).encode())
            await until(lambda: any(m.kind == kinds.KIND_MOVE for m in old.seen))
            old.transport.abort()
            await until(lambda: heard)
            await connection.publish("t", b"x")
            assert (await messages.next(5)).body == b"x"
            assert heard == ["lost", "reconnected"]

    run(story)


def test_a_successor_that_fails_leaves_the_old_connection_working(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as connection, connection.subscribe("t") as messages:
            old = server.peers[connection.uid]
            server.refuse = ("server-full", "later")
            accepted = server.accepted
            old.say(kinds.KIND_GO_AWAY, body=json.dumps({"token": "1", "within_s": 0.2}).encode())
            await until(lambda: server.accepted >= accepted + 2)
            await connection.publish("t", b"x")
            assert (await messages.next(5)).body == b"x"

    run(story)
