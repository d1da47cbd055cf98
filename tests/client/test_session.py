"""The client's machine, without a socket: frames in, frames out, effects, and who is told."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.client.effects import Drop, Live, Lost, OpenSuccessor, Switched, Undelivered
from fairlead.client.link import TRANSITIONS, Link, Phase
from fairlead.client.session import Session
from fairlead.wire import kinds
from fairlead.wire.codec import Message, Parser, encode_frame, encode_message
from fairlead.wire.handshake import Connect
from fairlead.wire.headers import encode_headers

MADE = 1 << 63
HANDSHAKE = (kinds.KIND_CONFIRM, kinds.KIND_WELCOME, kinds.KIND_MOVED)


class Sink:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.errors: list[Exception] = []

    def deliver(self, run: list[Message]) -> None:
        self.messages += run

    def fail(self, error: Exception) -> None:
        self.errors.append(error)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


class Pending(Sink):
    deadline_s = inf
    asked = 0
    lost = 0
    timeouts = 0

    def on_message(self, message: Message) -> bool:
        self.messages.append(message)
        return bool(message.flags & kinds.FLAG_LAST)

    def on_asked(self, count: int) -> bool:
        self.asked = count
        return False

    def on_receiver_lost(self) -> bool:
        self.lost += 1
        return True

    def on_timeout(self) -> None:
        self.timeouts += 1


class Answer:
    """One OK or the reason why not."""

    def __init__(self) -> None:
        self.told: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.told.append(error)


def frame(kind: int, **fields: Any) -> bytes:
    said = {"flags": 0, "number": 0, "correlation": 0, "peer": 0, "topic": b"", "headers": b"", "body": b""} | fields
    return encode_message(kind, *said.values())


def spoken(*text: Any) -> bytes:
    return json.dumps(dict(text)).encode()


CONFIRM = frame(kinds.KIND_CONFIRM, body=spoken(("uid", 5), ("server", "s")))
WELCOME = frame(kinds.KIND_WELCOME, body=spoken(("uid", 5), ("keep_alive_s", 10)))
RESUMED = frame(kinds.KIND_WELCOME, body=spoken(("uid", 5), ("keep_alive_s", 10), ("resumed", True)))
MOVED = frame(kinds.KIND_MOVED)
GO_AWAY = frame(kinds.KIND_GO_AWAY, body=spoken(("token", "t"), ("within_s", 3)))


def error_frame(code: str, **fields: Any) -> bytes:
    return frame(kinds.KIND_ERROR, headers=encode_headers([("code", code)]), body=b"because", **fields)


class Client:
    """A session and its edge, as short as possible."""

    def __init__(self, **hello: Any) -> None:
        self.session = Session(Connect(type="t", instance="i", **hello))
        self.link = self.open()

    def open(self, resume: str | None = None) -> Link:
        return self.session.open_link(0.0, resume)

    def hear(self, *frames: bytes, link: Link | None = None, now_s: float = 0.0) -> list[Any]:
        return self.session.on_bytes(link or self.link, b"".join(frames), now_s)

    def live(self) -> Client:
        assert self.hear(CONFIRM, WELCOME) == [Live(self.link, False)]
        self.said()
        return self

    def said(self, link: Link | None = None) -> list[Message]:
        """What would be written on the current link, or on `link` beside the application's frames."""
        link = link or self.link
        out, link.out = link.out, []
        if link is self.session.link:
            out += self.session.take_out()
        return Parser().feed(b"".join(out).removeprefix(kinds.PREFACE))

    def kinds(self, link: Link | None = None) -> list[int]:
        return [message.kind for message in self.said(link)]


def test_the_handshake() -> None:
    client = Client(user="ann", credit=7)
    assert client.link.out[0] == kinds.PREFACE
    (hello,) = client.said()
    assert json.loads(hello.body)["user"] == "ann"
    assert not client.session.is_live
    assert client.hear(CONFIRM) == []
    assert client.hear(WELCOME) == [Live(client.link, False)]
    assert client.session.is_live
    assert client.session.uid == 5


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("kind", HANDSHAKE)
def test_every_frame_of_the_handshake_in_every_phase(phase: Phase, kind: int) -> None:
    link = Client().link
    link.phase = phase
    message = Message(kind, 0, 0, 0, 0, "", b"", b'{"uid": 1}')
    if (phase, kind) in TRANSITIONS:
        link.on_handshake(message)
        assert link.phase is TRANSITIONS[phase, kind]
    else:
        with pytest.raises(errors.RemoteProtocolError):
            link.on_handshake(message)
        assert link.phase is phase


def test_a_message_before_the_welcome_breaks_the_rules() -> None:
    client = Client()
    (effect,) = client.hear(CONFIRM, frame(kinds.KIND_PUBLISH, topic=b"t"))
    assert isinstance(effect, Drop)
    assert isinstance(effect.error, errors.RemoteProtocolError)


def test_a_refusal_is_remembered_as_the_reason() -> None:
    client = Client()
    assert client.hear(CONFIRM, error_frame("bad-credentials")) == []
    assert isinstance(client.link.reason, errors.BadCredentials)
    assert client.session.on_lost(client.link) == []  # it was never the session's


def test_unknown_kinds_of_a_newer_server_are_let_pass() -> None:
    assert Client().live().hear(frame(0x7F), frame(0x4F)) == []


def test_a_ping_is_answered_with_its_correlation() -> None:
    client = Client().live()
    client.hear(frame(kinds.KIND_PING, correlation=9))
    (pong,) = client.said()
    assert (pong.kind, pong.correlation) == (kinds.KIND_PONG, 9)


def test_subscriptions_hear_what_matches_once_each() -> None:
    client = Client().live()
    first, second, answer = Sink(), Sink(), Answer()
    client.session.subscribe("a.*", first, answer)
    number = client.session.subscribe("a.b", second, answer, no_local=True)
    one, two = client.said()
    assert (one.topic, two.topic, two.flags) == ("a.*", "a.b", kinds.FLAG_NO_LOCAL)
    client.hear(frame(kinds.KIND_OK, number=one.number), frame(kinds.KIND_OK, number=two.number))
    assert answer.told == [None, None]
    client.hear(frame(kinds.KIND_PUBLISH, topic=b"a.b\x1fa.c", peer=5, body=b"own"))
    client.hear(frame(kinds.KIND_PUBLISH, topic=b"a.b", peer=6, body=b"other"))
    assert first.bodies == [b"own", b"other"]
    assert second.bodies == [b"other"]
    client.session.unsubscribe(number, answer)
    assert client.kinds() == [kinds.KIND_UNSUBSCRIBE]
    client.hear(frame(kinds.KIND_PUBLISH, topic=b"a.b", peer=6), frame(kinds.KIND_OK, number=number))
    assert len(second.messages) == 1
    assert answer.told == [None, None, None]


def test_a_refused_subscription_is_gone_and_its_reader_told() -> None:
    client = Client().live()
    sink, answer = Sink(), Answer()
    number = client.session.subscribe("secret", sink, answer)
    client.hear(error_frame("not-allowed", number=number))
    assert isinstance(answer.told[0], errors.NotAllowed)
    assert isinstance(sink.errors[0], errors.NotAllowed)
    assert not client.session.dispatch.entries


def test_a_bad_pattern_is_never_said() -> None:
    client = Client().live()
    with pytest.raises(errors.BadPattern):
        client.session.subscribe("a..b", Sink(), Answer())
    assert client.said() == []


def test_requests_are_answered_by_correlation() -> None:
    client = Client().live()
    one, two, lost = Pending(), Pending(), Pending()
    numbers = [client.session.request(p, kinds.KIND_REQUEST, 0, 0, b"t", b"", b"?") for p in (one, two, lost)]
    assert [m.correlation for m in client.said()] == numbers
    client.hear(frame(kinds.KIND_RESPONSE, correlation=numbers[1], flags=kinds.FLAG_LAST, body=b"2"))
    client.hear(frame(kinds.KIND_RESPONSE, correlation=numbers[0], body=b"1a"))
    client.hear(frame(kinds.KIND_RESPONSE, correlation=numbers[0], flags=kinds.FLAG_LAST, body=b"1b"))
    client.hear(frame(kinds.KIND_RESPONSE, correlation=numbers[0], flags=kinds.FLAG_LAST, body=b"late"))
    client.hear(error_frame("receiver-lost", correlation=numbers[2]))
    assert (one.bodies, two.bodies) == ([b"1a", b"1b"], [b"2"])
    assert isinstance(lost.errors[0], errors.ReceiverLost)
    assert not client.session.requests.open


def test_a_fan_out_hears_how_many_and_who_was_lost() -> None:
    client = Client().live()
    pending = Pending()
    number = client.session.request(pending, kinds.KIND_FANOUT, 0, 0, b"t", b"", b"?")
    client.hear(frame(kinds.KIND_ASKED, correlation=number, number=4), frame(kinds.KIND_LOST, correlation=number))
    assert (pending.asked, pending.lost) == (4, 1)
    assert not client.session.requests.open


def test_a_deadline_cancels_and_tells() -> None:
    client = Client().live()
    pending = Pending()
    pending.deadline_s = 3.0
    number = client.session.request(pending, kinds.KIND_REQUEST, 0, 0, b"t", b"", b"?")
    client.said()
    client.session.on_deadline(2.9)
    assert client.said() == []
    client.session.on_deadline(3.0)
    (cancel,) = client.said()
    assert (cancel.kind, cancel.correlation, pending.timeouts) == (kinds.KIND_CANCEL, number, 1)
    client.session.give_up(number)
    assert client.said() == []


def test_what_nobody_here_serves_is_answered_so() -> None:
    client = Client().live()
    client.hear(frame(kinds.KIND_REQUEST, topic=b"t", correlation=3), frame(kinds.KIND_CONVERSE, correlation=MADE | 4))
    response, end = client.said()
    assert (response.kind, response.correlation, response.flags) == (kinds.KIND_RESPONSE, 3, kinds.FLAG_LAST)
    assert (end.kind, end.correlation, end.flags) == (kinds.KIND_CONVERSE, MADE | 4, kinds.FLAG_LAST)
    assert response.headers == end.headers == {"error": b"no-receiver"}


def test_one_registration_serves_requests_and_conversations() -> None:
    client = Client().live()
    requests, talks, direct, answer = Sink(), Sink(), Sink(), Answer()
    number = client.session.register("t", answer, requests=requests)
    assert client.session.register("t", answer, talks=talks) == number
    client.session.register("", answer, requests=direct)
    assert client.kinds() == [kinds.KIND_REGISTER]
    client.hear(frame(kinds.KIND_OK, number=number))
    assert answer.told == [None, None, None]
    with pytest.raises(errors.LocalProtocolError):
        client.session.register("t", answer, requests=Sink())
    named = encode_headers([("topic", b"t")])
    client.hear(
        frame(kinds.KIND_REQUEST, topic=b"t", body=b"1"),
        frame(kinds.KIND_FANOUT, topic=b"t", body=b"2"),
        frame(kinds.KIND_REQUEST, topic=b"ty/in", flags=kinds.FLAG_NAMED, headers=named, body=b"3"),
        frame(kinds.KIND_REQUEST, topic=b"ty/in", flags=kinds.FLAG_NAMED, body=b"direct"),
        frame(kinds.KIND_CONVERSE, topic=b"t", correlation=MADE | 8, body=b"talk"),
    )
    assert (requests.bodies, direct.bodies, talks.bodies) == ([b"1", b"2", b"3"], [b"direct"], [b"talk"])
    client.session.unregister(number, talks, answer)
    assert client.said() == []  # requests are still served
    client.session.unregister(number, requests, answer)
    assert client.kinds() == [kinds.KIND_UNREGISTER]
    client.hear(frame(kinds.KIND_REQUEST, topic=b"t", body=b"late"), frame(kinds.KIND_OK, number=number))
    assert requests.bodies[-1] == b"late"
    assert "t" not in client.session.registrations.by_topic
    client.session.unregister(number, requests, answer)
    assert answer.told == [None] * 6


def test_conversations_of_both_roles_do_not_meet() -> None:
    client = Client().live()
    own, foreign = Sink(), Sink()
    correlation = client.session.open_talk(own)
    client.session.talks[MADE | 1] = foreign  # what an acceptor would do
    client.hear(frame(kinds.KIND_CONVERSE, correlation=correlation, body=b"own"))
    client.hear(frame(kinds.KIND_CONVERSE, correlation=MADE | 1, body=b"foreign", flags=kinds.FLAG_LAST))
    assert (own.bodies, foreign.bodies) == ([b"own"], [b"foreign"])
    assert list(client.session.talks) == [correlation]
    client.session.cancel_talk(correlation)
    client.hear(frame(kinds.KIND_CONVERSE, correlation=correlation, body=b"late"))
    assert client.kinds() == [kinds.KIND_CANCEL]
    client.session.talks[MADE | 2] = foreign
    stopped: list[int] = []
    client.session.serving[3] = lambda: stopped.append(3)
    client.hear(frame(kinds.KIND_CANCELLED, correlation=MADE | 2), frame(kinds.KIND_CANCELLED, correlation=3))
    assert isinstance(foreign.errors[0], errors.ConversationLost)
    assert stopped == [3]


def test_a_one_way_message_to_nobody_is_reported() -> None:
    client = Client().live()
    client.session.send_to(0, 99, b"", b"", b"hi")
    (said,) = client.said()
    (effect,) = client.hear(error_frame("no-receiver", correlation=said.correlation))
    assert isinstance(effect, Undelivered)


def test_a_publish_that_is_refused_is_told() -> None:
    """It has no number; what ends the connection has none either, and is its reason."""
    client = Client().live()
    (effect,) = client.hear(error_frame("wrong-kind"))
    assert isinstance(effect, Undelivered)
    assert isinstance(effect.error, errors.WrongKind)
    assert client.hear(error_frame("shutting-down")) == []


def test_a_loss_tells_who_waits_and_the_next_link_says_everything_anew() -> None:
    client = Client().live()
    sink, pending, talk, answer, ping, ending = Sink(), Pending(), Sink(), Answer(), Answer(), Answer()
    stays = client.session.subscribe("a", sink, answer, no_local=True)
    goes = client.session.subscribe("b", sink, answer)
    serves = client.session.register("r", answer, requests=sink)
    client.session.register("", answer, requests=sink)
    client.session.request(pending, kinds.KIND_REQUEST, 0, 0, b"t", b"", b"?")
    client.session.open_talk(talk)
    client.session.ping(ping)
    client.session.unsubscribe(goes, ending)
    (effect,) = client.session.on_lost(client.link)
    assert isinstance(effect, Lost)
    for told in (pending.errors[0], talk.errors[0], ping.told[0]):
        assert isinstance(told, errors.ConnectionLost)
    assert ending.told == [None]
    assert sink.errors == []
    client.session.publish(b"t", b"", b"said in between")
    client.link = client.open()
    assert client.hear(CONFIRM, WELCOME) == [Live(client.link, True)]
    said = client.said()
    assert [(m.kind, m.number, m.topic) for m in said[1:]] == [
        (kinds.KIND_SUBSCRIBE, stays, "a"),
        (kinds.KIND_REGISTER, serves, "r"),
    ]
    client.hear(error_frame("not-allowed", number=stays))
    assert isinstance(sink.errors[0], errors.NotAllowed)


def test_the_end_tells_everybody() -> None:
    client = Client().live()
    sinks = [Sink(), Sink(), Sink(), Sink()]
    answer = Answer()
    client.session.subscribe("a", sinks[0], answer)
    client.session.register("r", Answer(), requests=sinks[1])
    client.session.register("r", Answer(), talks=sinks[2])
    client.session.inbox = sinks[3]
    why = errors.ConnectionLost("over")
    client.session.end(why)
    assert [sink.errors for sink in sinks] == [[why]] * 4
    assert answer.told == [why]


def test_silence_is_asked_about_and_then_is_a_loss() -> None:
    client = Client(keep_alive_s=10).live()
    assert client.session.on_tick(9.9) == []
    assert client.said() == []
    assert client.session.on_tick(10.0) == client.session.on_tick(12.0) == []
    assert client.kinds() == [kinds.KIND_PING]
    client.hear(frame(kinds.KIND_PONG), now_s=12.5)
    assert client.session.on_tick(22.0) == []
    client.session.on_tick(23.0)
    (effect,) = client.session.on_tick(33.0)
    assert isinstance(effect, Drop)
    assert effect.error.code == "keep-alive-timeout"  # type: ignore[attr-defined]


def test_credit_counts_messages_and_not_control_frames() -> None:
    client = Client(credit=8).live()
    client.hear(*[frame(kinds.KIND_PUBLISH, topic=b"t")] * 3, frame(kinds.KIND_OK, number=1), frame(kinds.KIND_PING))
    assert client.link.credit.open == 5
    client.said()
    client.link.give_back(0, waiting=False)
    (credit,) = client.said()
    assert (credit.kind, credit.number) == (kinds.KIND_CREDIT, 3)


def test_a_body_too_large_is_not_sent() -> None:
    client = Client()
    confirm = frame(kinds.KIND_CONFIRM, body=spoken(("uid", 1), ("body_max", 100_000), ("frame_max", 80_000)))
    client.hear(confirm, WELCOME)
    client.said()
    with pytest.raises(errors.BodyTooLarge):
        client.session.publish(b"t", b"", bytes(100_001))
    client.session.publish(b"t", b"", bytes(100_000))
    client.session.publish_many(b"t", b"", [bytes(70_000)])
    assert max(len(piece) for piece in client.session.out) > 80_000  # in fragments of what the server takes
    assert [len(m.body) for m in client.said()] == [100_000, 70_000]


# Moving.


def moving() -> tuple[Client, Link, Sink]:
    client = Client().live()
    sink = Sink()
    client.session.subscribe("t", sink, Answer())
    client.said()
    assert client.hear(GO_AWAY) == [OpenSuccessor("t", 3.0)]
    new = client.open("t")
    assert json.loads(client.said(new)[0].body)["resume"] == "t"
    client.session.publish(b"t", b"", b"before")
    assert client.hear(CONFIRM, RESUMED, link=new) == []
    assert [m.kind for m in client.said()] == [kinds.KIND_PUBLISH, kinds.KIND_MOVE]
    client.session.publish(b"t", b"", b"held")
    assert client.said() == []
    return client, new, sink


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 3), st.integers(0, 3))
def test_however_the_two_links_interleave_the_order_holds(order: list[bool], before: int, after: int) -> None:
    client, new, sink = moving()
    old = client.link
    queues = {
        False: [frame(kinds.KIND_PUBLISH, topic=b"t", body=b"%d" % i) for i in range(before)] + [MOVED],
        True: [MOVED] + [frame(kinds.KIND_PUBLISH, topic=b"t", body=b"%d" % (before + i)) for i in range(after)],
    }
    effects = []
    for which in [*order, *[False] * 5, *[True] * 5]:
        if queues[which]:
            effects += client.hear(queues[which].pop(0), link=new if which else old)
    assert effects == [Switched(old, new)]
    assert sink.bodies == [b"%d" % i for i in range(before + after)]
    client.link = new
    assert [m.body for m in client.said()] == [b"held"]
    assert client.session.on_lost(old) == []
    assert client.session.is_live


def test_the_old_link_may_close_after_its_moved() -> None:
    client, new, _ = moving()
    client.hear(MOVED)
    assert client.session.on_lost(client.link) == []
    assert client.hear(MOVED, link=new) == [Switched(client.link, new)]


@pytest.mark.parametrize("dies", ["old", "new"])
def test_a_loss_between_move_and_moved_loses_the_session(dies: str) -> None:
    client, new, _ = moving()
    gone, other = (client.link, new) if dies == "old" else (new, client.link)
    dropped, lost = client.session.on_lost(gone)
    assert isinstance(dropped, Drop)
    assert dropped.link is other
    assert isinstance(lost, Lost)
    assert not client.session.is_live
    assert not client.session.holding


def test_a_successor_lost_early_or_not_resumed_changes_nothing() -> None:
    client = Client().live()
    client.hear(GO_AWAY)
    early, stranger = client.open("t"), client.open("t")
    assert client.session.on_lost(early) == []
    (effect,) = client.hear(CONFIRM, WELCOME, link=stranger)
    assert isinstance(effect, Drop)
    assert client.session.link is client.link


def test_a_token_of_a_connection_that_was_lost_meanwhile_resumes_nothing() -> None:
    client = Client().live()
    client.hear(GO_AWAY)
    late = client.open("t")
    client.session.on_lost(client.link)
    client.link = client.open()
    anew = [
        frame(kind, body=spoken(("uid", 6), ("keep_alive_s", 10))) for kind in (kinds.KIND_CONFIRM, kinds.KIND_WELCOME)
    ]
    assert client.hear(*anew) == [Live(client.link, True)]
    client.said()
    (effect,) = client.hear(CONFIRM, RESUMED, link=late)
    assert isinstance(effect, Drop)
    assert client.session.link is client.link
    client.session.publish(b"t", b"", b"not held back")
    assert client.kinds() == [kinds.KIND_PUBLISH]


@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_any_bytes_are_taken_or_end_the_link(pieces: list[bytes], live: bool) -> None:
    client = Client()
    if live:
        client.live()
    for piece in pieces:
        effects = client.hear(piece)
        assert all(isinstance(effect, (Drop, Undelivered, OpenSuccessor)) for effect in effects)
        if effects:
            break


@given(st.lists(st.tuples(st.integers(0, 0x50), st.integers(0, 31), st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_any_frames_are_taken_or_end_the_link(said: list[tuple[int, int, int, int]]) -> None:
    client = Client().live()
    client.session.subscribe("t", Sink(), Answer())
    client.session.register("r", Answer(), requests=Sink(), talks=Sink())
    client.session.request(Pending(), kinds.KIND_REQUEST, 0, 0, b"t", b"", b"?")
    for kind, flags, number, correlation in said:
        data = encode_frame(kind, flags & ~kinds.FLAG_FRAGMENTED, number, correlation, 0, b"t", b"", b"{}")
        if any(isinstance(effect, Drop) for effect in client.hear(data)):
            client.session.on_lost(client.link)
            break
