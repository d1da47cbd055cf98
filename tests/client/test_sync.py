"""The synchronous face: the same names, without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead.sync
from fairlead import errors


def test_all_modes(server_on_a_thread: Any) -> None:
    url = server_on_a_thread.url
    with fairlead.sync.connect(url, type="t", name="a") as a, fairlead.sync.connect(url, type="t", name="b") as b:
        assert a.address == "t/a"
        with a.subscribe("x.>") as messages:
            b.publish("x.1", "one", headers={"k": "v"})
            b.publish_many("x.2", [b"two", "three"])
            b.flush()
            assert messages.next(1).headers == {"k": b"v"}
            assert [m.body for _, m in zip(range(2), messages, strict=False)] == [b"two", b"three"]
            b.publish("x.3", b"four")
            assert [m.body for m in next(messages.batches())] == [b"four"]
            with pytest.raises(errors.RequestTimeout):
                messages.next(timeout=0.01)
            assert messages.interruptions == 0
            assert messages.pattern == "x.>"

        def parts(request: Any) -> Iterator[bytes]:
            yield b"1"
            yield b"2"

        with a.respond("upper", lambda request: request.body.upper()), a.respond("parts", parts):
            assert b.request("upper", "x").body == b"X"
            assert [m.body for m in b.request_stream("parts")] == [b"1", b"2"]
            # A handler may ask others: it runs on a thread of its own.
            with a.respond("ask", lambda request: b.request("upper", request.body).body):
                assert b.request("ask", b"y", timeout=5).body == b"Y"
            replies = b.request_all("upper", b"z", type="t")
            assert [m.body for m in replies] == [b"Z"]
            assert (replies.asked, replies.answered, replies.lost) == (1, 1, 0)
        with pytest.raises(errors.NoReceiver):
            b.request("upper")

        a.respond_direct(lambda request: b"direct")
        assert b.call("t/a").body == b"direct"
        b.send_to(a.uid, b"hi")
        assert a.inbox().next(1).body == b"hi"
    assert a.closed
    a.close()
    with pytest.raises(errors.ConnectionLost):
        a.publish("x", b"")


def test_loops_on_threads(server_on_a_thread: Any) -> None:
    url = server_on_a_thread.url
    with (
        fairlead.sync.connect(url) as worker,
        fairlead.sync.connect(url) as asker,
        worker.serve("jobs") as requests,
        worker.accept("desk") as talks,
    ):

        def work() -> None:
            for request in requests:
                request.reply(b"part", last=False)
                request.reply(request.body)
                break
            requests.next().fail("no")
            with talks.next(5) as talk:
                for message in talk:
                    talk.send(b"echo " + message.body)

        thread = threading.Thread(target=work)
        thread.start()
        assert [m.body for m in asker.request_stream("jobs", b"x")] == [b"part", b"x"]
        with pytest.raises(errors.FairleadError, match="no"):
            asker.request("jobs")
        with asker.converse("desk") as talk:
            talk.send(b"1")
            assert talk.receive(timeout=5).body == b"echo 1"
        thread.join()


def test_it_raises_when_nobody_is_there() -> None:
    with pytest.raises(errors.ConnectionLost):
        fairlead.sync.connect("fairlead://127.0.0.1:1")


def test_a_call_from_an_event_callback_does_not_wait_for_itself(server_on_a_thread: Any) -> None:
    with fairlead.sync.connect(server_on_a_thread.url) as connection:
        caught: list[Exception] = []

        def listen(event: Any) -> None:
            try:
                connection.flush()
            except errors.FairleadError as error:
                caught.append(error)

        connection.on_event(listen)
        connection.send_to(1, b"nobody")
        connection.flush()
        assert [error.code for error in caught] == ["bad-request"]
