"""The five messaging modes, asynchronous and synchronous (section 4.6 of docs/spec/server.md)."""

from __future__ import annotations

import asyncio
import select
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import fairlead
import fairlead.sync
from fairlead import errors
from fairlead.testing import Server
from tests.processes.tools import Dial, at_rest, placed, reported, until
from tests.protocol.second_client import CONVERSE, FANOUT, REQUEST

pytestmark = pytest.mark.processes


def count_up(request: fairlead.Request) -> Iterator[str]:
    for number in range(int(request.body)):
        yield str(number)


@pytest.mark.requirement("SRV-44")
async def test_all_five_modes_interleaved_on_one_connection(shared: Server) -> None:
    async with (
        placed(shared, 0, 1, 2) as (client, one, other),
        client.subscribe("mix.news") as news,
        one.accept("mix.talk") as talks,
    ):
        for peer in (one, other):
            await peer.respond("mix.ask", lambda request: request.body + b"!")
            await peer.respond("mix.parts", count_up)
            await peer.respond_direct(lambda request: request.body * 2)
        inbox = client.inbox()

        async def talk_back() -> None:
            async for talk in talks:
                async for message in talk:
                    await talk.send(b"re " + message.body)

        talking = asyncio.create_task(talk_back())

        async def broadcast(i: int) -> None:
            await client.publish("mix.news", str(i))

        async def ask(i: int) -> None:
            assert (await client.request("mix.ask", str(i), timeout=10)).body == f"{i}!".encode()

        async def parts(i: int) -> None:
            got = [int(m.body) async for m in client.request_stream("mix.parts", str(i % 5 + 1), timeout=10)]
            assert got == list(range(i % 5 + 1))

        async def converse(i: int) -> None:
            async with client.converse("mix.talk") as talk:
                for turn in range(3):
                    await talk.send(f"{i}.{turn}")
                    assert (await talk.receive(timeout=10)).body == f"re {i}.{turn}".encode()

        async def fan_out(i: int) -> None:
            replies = client.request_all("mix.ask", str(i), timeout=10)
            assert [reply.body async for reply in replies] == [f"{i}!".encode()] * 2
            assert (replies.asked, replies.answered, replies.lost) == (2, 2, 0)

        async def ipc(i: int) -> None:
            assert (await client.call(other.address, str(i), timeout=10)).body == f"{i}{i}".encode()
            await one.send_to(client.uid, str(i))

        await asyncio.gather(*(mode(i) for i in range(40) for mode in (broadcast, ask, parts, converse, fan_out, ipc)))
        assert [int((await news.next(timeout=5)).body) for _ in range(40)] == list(range(40))
        assert sorted([int((await inbox.next(timeout=5)).body) for _ in range(40)]) == list(range(40))
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)


@pytest.mark.requirement("SRV-44")
def test_all_five_modes_without_an_event_loop(shared: Server) -> None:
    with (
        fairlead.sync.connect(shared.url, name="left") as left,
        fairlead.sync.connect(shared.url, name="right") as right,
        left.subscribe("plain.*") as news,
        right.respond("plain.ask", lambda request: request.body.upper()),
        right.respond("plain.parts", lambda request: iter(["1", "2", "3"])),
        right.respond_direct(lambda request: b"direct " + request.body),
        right.accept("plain.talk") as talks,
    ):
        for number in range(10):
            right.publish("plain.x", str(number))
            assert news.next(timeout=5).body == str(number).encode()
            assert left.request("plain.ask", b"abc", timeout=5).body == b"ABC"
            assert [m.body for m in left.request_stream("plain.parts", timeout=5)] == [b"1", b"2", b"3"]
            replies = left.request_all("plain.ask", b"x", timeout=5)
            assert [reply.body for reply in replies] == [b"X"]
            assert left.call(right.address, b"call", timeout=5).body == b"direct call"
            with left.converse("plain.talk") as talk:
                talk.send(b"hello")
                other = talks.next(timeout=5)
                assert other.receive(timeout=5).body == b"hello"
                other.send(b"good bye")
                assert talk.receive(timeout=5).body == b"good bye"
        right.inbox()
        left.send_to(right.uid, b"one way")
        assert right.inbox().next(timeout=5).body == b"one way"


# --- Broadcast


@pytest.mark.requirement("SRV-45")
async def test_every_subscriber_gets_every_message_of_every_publisher_once(shared: Server) -> None:
    async with placed(shared, 0, 1, 1, 2, 3) as (one, other, *subscribers), AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(client.subscribe("all")) for client in (*subscribers, one)]
        own = await stack.enter_async_context(other.subscribe("all", no_local=True))
        for number in range(50):
            await one.publish("all", f"one {number}")
            await other.publish("all", f"other {number}")
        both = Counter(f"{who} {number}".encode() for who in ("one", "other") for number in range(50))
        for subscription in subscriptions:
            assert Counter([(await subscription.next(timeout=5)).body for _ in range(100)]) == both
        assert [(await own.next(timeout=5)).body for _ in range(50)] == [f"one {i}".encode() for i in range(50)]
        await one.flush()
        await asyncio.sleep(0.1)
        assert not any(subscription.queue for subscription in (*subscriptions, own))


@pytest.mark.requirement("SRV-46")
async def test_a_broadcast_to_nobody_is_not_kept(shared: Server) -> None:
    async with placed(shared, 0, 1) as (sender, receiver):
        await sender.publish("unheard", b"too early")
        await sender.flush()
        await reported(shared, lambda report: report["stored"] == 0)
        async with receiver.subscribe("unheard") as unheard:
            await sender.publish("unheard", b"in time")
            assert (await unheard.next(timeout=5)).body == b"in time"


@pytest.mark.requirement("SRV-47")
async def test_an_answer_to_a_broadcast_goes_to_its_reply_topic(shared: Server) -> None:
    async with (
        placed(shared, 0, 1) as (publisher, subscriber),
        publisher.subscribe("answers.mine") as answers,
        subscriber.subscribe("question") as question,
    ):
        await publisher.publish("question", b"who?", reply_to="answers.mine")
        message = await question.next(timeout=5)
        assert message.reply_to == "answers.mine"
        await subscriber.publish(message.reply_to, b"me")
        assert (await answers.next(timeout=5)).body == b"me"
        await publisher.publish("question", b"no answer wanted")
        assert (await question.next(timeout=5)).reply_to is None


# --- Requests


@pytest.mark.requirement("SRV-48")
async def test_requests_are_served_once_each_and_evenly(shared: Server) -> None:
    served: Counter[int] = Counter()
    async with placed(shared, 0, 1, 1, 2, 3) as (asker, bystander, *receivers):
        seen: list[bytes] = []
        all_asked = asyncio.Event()  # nobody answers before: who answers sooner would be asked more

        def serve(uid: int) -> Any:
            async def handler(request: fairlead.Request) -> bytes:
                served[uid] += 1
                seen.append(request.body)
                if len(seen) == 300:
                    all_asked.set()
                await all_asked.wait()
                return request.body

            return handler

        for receiver in receivers:
            await receiver.respond("work", serve(receiver.uid))
        bodies = [str(number).encode() for number in range(300)]
        replies = await asyncio.gather(*(asker.request("work", body, timeout=10) for body in bodies))
        assert [reply.body for reply in replies] == bodies
        assert sorted(seen) == sorted(bodies)
        assert all(count == 100 for count in served.values()), served
        assert len(served) == 3
        assert {reply.sender for reply in replies} == {receiver.uid for receiver in receivers}
        assert (await bystander.request("work", b"mine", timeout=5)).body == b"mine"


@pytest.mark.requirement("SRV-49", "SRV-52", "SRV-57")
async def test_shares_conversations_and_subscriptions_go_on_with_the_next_router() -> None:
    with Server(managers=2, **{"requests.balance": "round-robin"}) as server:
        served: Counter[int] = Counter()
        async with placed(server, 0, 0, 1, 1) as (asker, *receivers), asker.subscribe("news") as news:
            for number, receiver in enumerate(receivers):
                await receiver.respond("work", lambda request, number=number: served.update([number]) or b"done")
            acceptors = [receiver.accept("talk") for receiver in receivers]
            for acceptor in acceptors:
                await acceptor.start()
            async with asker.converse("talk") as talk:
                for half in range(2):
                    for number in range(25):
                        await talk.send(str(25 * half + number))
                    for _ in range(50):
                        await asker.request("work", timeout=5)
                    if half == 0:
                        assert server.update("router")["ok"]
                assert sorted(served.values()) == [33, 33, 34]
                await until(lambda: any(acceptor.queue for acceptor in acceptors))
                assert sum(len(acceptor.queue) for acceptor in acceptors) == 1
                other = next(acceptor for acceptor in acceptors if acceptor.queue).queue.popleft()
                assert [int((await other.receive(timeout=5)).body) for _ in range(50)] == list(range(50))
                async with asker.converse("talk") as second:
                    await second.send(b"another")
                    await until(lambda: any(acceptor.queue for acceptor in acceptors))
            await asker.publish("news", b"still subscribed")
            assert (await news.next(timeout=5)).body == b"still subscribed"
        await reported(server, at_rest)


@pytest.mark.requirement("SRV-50")
async def test_an_answer_in_five_parts_and_its_end(shared: Server) -> None:
    async with placed(shared, 0, 1) as (asker, receiver):
        await receiver.respond("parts", count_up)
        streams = [asker.request_stream("parts", str(count), timeout=5) for count in (5, 1, 3)]

        async def read(stream: Any) -> list[int]:
            return [int(message.body) async for message in stream]

        assert await asyncio.gather(*map(read, streams)) == [[0, 1, 2, 3, 4], [0], [0, 1, 2]]


@pytest.mark.requirement("SRV-51")
async def test_a_request_nobody_serves_is_answered_at_once(shared: Server) -> None:
    async with fairlead.connect(shared.url) as asker:
        for _ in range(20):
            with pytest.raises(errors.NoReceiver):
                await asker.request("unused", b"anybody?", timeout=5)
        replies = asker.request_all("unused", timeout=5)
        try:
            assert [reply async for reply in replies] == []
            assert replies.asked == 0
        except errors.NoReceiver:
            pass
        undelivered: list[str] = []
        asker.on_event(lambda event: undelivered.append(event.name))
        await asker.send_to("nobody/here", b"lost")
        await until(lambda: undelivered == ["undelivered"])
        await reported(shared, lambda report: report["stored"] == 0)


@pytest.mark.requirement("SRV-51")
async def test_a_request_may_wait_for_its_receiver() -> None:
    with Server(managers=2, **{"requests.hold_s": 5}) as server:
        async with placed(server, 0, 1) as (asker, receiver):
            asking = asyncio.create_task(asker.request("later", b"?", timeout=10))
            await reported(server, lambda report: report["requests_open"] == 1)
            report = server.status()
            handle = next(handle for one in report["managers"] for handle in one["handles"])
            message = server.status(handle=handle)["message"]
            assert (message["relinquish_count"], message["relinquish_limit"]) == (0, -1)
            await receiver.respond("later", lambda request: b"!")
            assert (await asking).body == b"!"
        await reported(server, at_rest)


@pytest.mark.requirement("SRV-113")
@pytest.mark.parametrize("kind", [REQUEST, CONVERSE, FANOUT])
async def test_who_asks_itself_and_is_gone_harms_nobody(shared: Server, dial: Dial, kind: int) -> None:
    async with fairlead.connect(shared.url) as other, other.serve("self") as queue:
        for everybody in (True, False):
            if not everybody:
                await queue.close()
            lonely = dial(shared)
            lonely.register("self")
            for correlation in range(1, 7):
                lonely.send(kind, topic="self", correlation=correlation)
            lonely.next_message()
            routers = shared.pids("router")
            lonely._socket.close()
            await reported(shared, lambda report: len(report["attachments"]) == 1 and not report["requests_open"])
            assert shared.pids("router") == routers


# --- Conversations


@pytest.mark.requirement("SRV-53")
async def test_the_loss_of_a_conversations_receiver_is_told_and_nobody_steps_in(shared: Server, dial: Dial) -> None:
    receivers = [dial(shared), dial(shared)]
    for receiver in receivers:
        receiver.register("risky")
    async with fairlead.connect(shared.url) as asker:
        talk = asker.converse("risky")
        await talk.send(b"first")
        (chosen,), _, _ = select.select([receiver._socket for receiver in receivers], [], [], 5)
        chosen.close()  # as when its process is killed: no good-bye
        with pytest.raises(errors.ConversationLost):
            await talk.receive(timeout=5)
        with pytest.raises(errors.ConversationLost):
            await talk.send(b"second")
        other = next(receiver for receiver in receivers if receiver._socket is not chosen)
        other.ping()
        assert not other.waiting


# --- Fan-out


@pytest.mark.requirement("SRV-54")
async def test_fan_out_by_topic_type_and_organisation(shared: Server) -> None:
    async with AsyncExitStack() as stack:
        for number in range(4):
            org = "O" if number < 2 else "P"
            one = await stack.enter_async_context(fairlead.connect(shared.url, type="X", name=f"x-{number}", org=org))
            await one.respond("poll", lambda request, number=number: str(number))
            await one.respond_direct(lambda request, number=number: str(number))
        other = await stack.enter_async_context(fairlead.connect(shared.url, type="Y", name="y", org="O"))
        await other.respond("poll", lambda request: b"y")
        await other.respond_direct(lambda request: b"y")
        asker = await stack.enter_async_context(fairlead.connect(shared.url, name="asker"))

        async def answers(topic: str = "", **to: str) -> str:
            replies = asker.request_all(topic, timeout=5, **to)  # type: ignore[arg-type]
            found = sorted([reply.body.decode() async for reply in replies])
            assert replies.asked == len(found)
            return "".join(found)

        assert await answers("poll") == "0123y"
        assert await answers("poll", type="X") == "0123"
        assert await answers("poll", type="X", org="O") == "01"
        assert await answers("poll", org="O") == "01y"
        assert await answers(type="X") == "0123"
        assert await answers(type="X", org="O") == "01"


@pytest.mark.requirement("SRV-55")
async def test_who_is_lost_before_answering_is_counted(shared: Server, dial: Dial) -> None:
    receivers = [dial(shared) for _ in range(4)]
    for receiver in receivers:
        receiver.register("poll")
    async with fairlead.connect(shared.url) as asker:
        replies = asker.request_all("poll", timeout=10)
        await replies.start()
        await asker.flush()
        requests = [await asyncio.to_thread(receiver.next_message) for receiver in receivers]
        receivers[3]._socket.close()  # as when its process is killed: no good-bye
        for number in range(3):
            receivers[number].respond(requests[number], str(number).encode())
        assert sorted([reply.body async for reply in replies]) == [b"0", b"1", b"2"]
        assert (replies.asked, replies.answered, replies.lost) == (4, 3, 1)


# --- IPC


@pytest.mark.requirement("SRV-56")
async def test_two_clients_call_each_other_a_thousand_times_and_a_third_sees_nothing(shared: Server) -> None:
    async with placed(shared, 0, 1, 2) as (one, other, third), third.subscribe(">") as everything:
        await one.respond_direct(lambda request: b"one " + request.body)
        await other.respond_direct(lambda request: b"other " + request.body)
        await third.respond_direct(lambda request: b"third")

        async def call(caller: fairlead.Connection, address: int | str, name: str) -> None:
            for start in range(0, 1000, 50):
                replies = await asyncio.gather(
                    *(caller.call(address, str(number), timeout=10) for number in range(start, start + 50))
                )
                assert [reply.body.decode() for reply in replies] == [f"{name} {n}" for n in range(start, start + 50)]

        await asyncio.gather(call(one, other.uid, "other"), call(other, one.address, "one"))
        assert not everything.queue
