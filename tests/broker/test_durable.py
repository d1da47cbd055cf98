"""A manager's end of the durable road: a real manager between clients on socketpairs and a stand-in message manager."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.broker.answers import frame
from fairlead.security import users as security
from fairlead.security.passwords import hash_password
from fairlead.wire.durable import ENVELOPE, KIND_ANSWER, KIND_COMMAND, KIND_NOTICE, KIND_STORE
from tests.broker.rig import ERROR, PUBLISH, Client, Frame
from tests.broker.test_manager import World, make  # noqa: F401 - a fixture

Make = Callable[..., World]
NAMES = [["orders", "queue", "01"], ["events", "topic", "02"], ["_ADMIN", "topic", "03"], ["_LOG", "topic", "04"]]


class MessageManager:
    """The other end of the link."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self._gate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = directory / "mm-0.sock"
        self._path.unlink(missing_ok=True)
        self._gate.bind(str(self._path))
        self._gate.listen(4)
        self._gate.settimeout(10)
        self._inward = bytearray()

    def accept(self, names: list[list[str]] | None = None) -> dict[str, Any]:
        """Take the link and answer its hello, which is returned."""
        self.sock, _ = self._gate.accept()
        self.sock.setblocking(False)
        _, uid, hello = self.next()
        assert (uid, hello.kind) == (0, KIND_COMMAND)
        self.tell(0, 0, frame(KIND_ANSWER, number=hello.number, body=json.dumps({"names": names or NAMES}).encode()))
        found: dict[str, Any] = json.loads(hello.body)
        return found

    def next(self) -> tuple[int, int, Frame]:
        """The next frame that comes: connection index, uid, frame."""

        def look() -> tuple[int, int, Frame] | None:
            with contextlib.suppress(BlockingIOError):
                self._inward += self.sock.recv(1 << 20)
            if len(self._inward) < 16:
                return None
            total, index, uid = ENVELOPE.unpack_from(self._inward)
            if len(self._inward) < total:
                return None
            found = index, uid, Frame(bytes(self._inward[16:total]))
            del self._inward[:total]
            return found

        found: tuple[int, int, Frame] = self.world.wait(look)
        return found

    def tell(self, index: int, uid: int, data: bytes) -> None:
        self.sock.send(ENVELOPE.pack(16 + len(data), index, uid) + data)

    def command(self, **facts: Any) -> None:
        self.tell(0, 0, frame(KIND_COMMAND, body=json.dumps(facts).encode()))

    def lose(self) -> None:
        self.sock.close()
        self._inward.clear()

    def close(self) -> None:
        self._gate.close()
        if hasattr(self, "sock"):
            self.sock.close()


@pytest.fixture
def begin(make: Make, tmp_path: Path) -> Iterator[Callable[..., tuple[World, MessageManager]]]:  # noqa: F811
    made: list[MessageManager] = []

    def build(entries: dict[str, security.User] | None = None) -> tuple[World, MessageManager]:
        if entries is not None:
            write_users(tmp_path, entries)
        world = make()
        made.append(MessageManager(world, tmp_path))
        return world, made[-1]

    yield build
    for one in made:
        one.close()
        for client in one.world.clients:
            client.sock.close()  # nobody waits for their farewell


Begin = Callable[..., tuple[World, MessageManager]]
HASH = hash_password("pass")


def write_users(directory: Path, entries: dict[str, security.User]) -> None:
    security.write(directory / "users.toml", security.Users(entries))


def user(**rights: list[str]) -> security.User:
    return security.User(hash=HASH, **rights)


def command(number: int = 7, **facts: Any) -> bytes:
    return frame(KIND_COMMAND, number=number, body=json.dumps(facts).encode())


def taken(world: World, client: Client, kind: int) -> Frame:
    """The next frame of this kind."""
    kept: list[Frame] = getattr(client, "kept", [])
    client.kept = kept  # type: ignore[attr-defined]

    def look() -> Frame | None:
        kept.extend(client.frames())
        for place, one in enumerate(kept):
            if one.kind == kind:
                return kept.pop(place)
        return None

    found: Frame = world.wait(look)
    return found


def ready(world: World, manager: MessageManager, names: list[list[str]] | None = None) -> None:
    manager.accept(names)
    world.wait(lambda: world.manager._road.up)


@pytest.mark.requirement("CLU-2")
def test_without_a_message_manager_clients_are_served_and_commands_get_an_error_that_says_try_again(make: Make) -> None:  # noqa: F811
    world = make()
    client = world.live()
    client.send(command(do="session") + frame(0x02))
    error = taken(world, client, ERROR)
    assert (error.code, error.number) == ("no-message-manager", 7)
    assert taken(world, client, 0x03)
    client.sock.close()


def test_the_link_is_made_when_the_message_manager_comes_and_hello_says_who_we_are(begin: Begin) -> None:
    _, manager = begin()
    hello = manager.accept()
    assert (hello["do"], hello["manager"], hello["generation"]) == ("hello", 0, 1)
    assert hello["pid"] > 0


NOBODYS = {"tenant": "", "quota": {}, "but": []}  # what is passed on about somebody without a tenant


@pytest.mark.requirement("CLU-205")
def test_a_command_is_passed_on_with_who_asks_and_what_they_may(begin: Begin) -> None:
    world, manager = begin({"ann": user(send=["orders", "_ADMIN"], consume=["orders.>"], create=[])})
    ready(world, manager)
    client = world.live(user="ann", password="pass")
    said = {"do": "produce", "session": 1, "destination": "orders", "user": "root", "may": ["admin"], "client": "x/y"}
    client.send(command(**said))
    index, uid, found = manager.next()
    assert (index, uid, found.kind, found.number) == (client.index, client.uid, KIND_COMMAND, 7)
    passed = json.loads(found.body)
    assert passed == said | {"user": "ann", "client": "ui/ui-1", "may": ["send"], **NOBODYS}
    client.send(command(do="session", ack="auto"))
    assert json.loads(manager.next()[2].body)["may"] == []


MATRIX: list[tuple[dict[str, list[str]], dict[str, Any], bool]] = [
    ({}, {"do": "produce", "destination": "orders"}, True),
    ({"publish": ["a.>"]}, {"do": "produce", "destination": "orders"}, False),
    ({"publish": ["a.>"], "send": ["orders"]}, {"do": "produce", "destination": "orders"}, True),
    ({"subscribe": []}, {"do": "consume", "destination": "orders"}, False),
    ({"consume": []}, {"do": "consume", "destination": "orders", "browse": True}, False),
    ({"consume": [], "browse": [">"]}, {"do": "consume", "destination": "orders", "browse": True}, True),
    ({"consume": ["events.eu"]}, {"do": "consume", "destination": "events.*"}, False),
    ({"consume": ["events.>"]}, {"do": "consume", "destination": "events.*"}, True),
    ({}, {"do": "consume", "destination": "_DMQ"}, False),
    ({"consume": [">"]}, {"do": "consume", "destination": "_DMQ"}, False),
    ({"consume": ["_DMQ"]}, {"do": "consume", "destination": "_DMQ"}, True),
    ({"send": ["_DMQ", "_LOG"]}, {"do": "produce", "destination": "_DMQ"}, False),
    ({"browse": []}, {"do": "schedules", "destination": "orders"}, False),
    ({"publish": [], "subscribe": []}, {"do": "consume", "destination": "temporary:12:1"}, True),
    ({"publish": [], "subscribe": []}, {"do": "session"}, True),
]


@pytest.mark.requirement("CLU-205")
def test_rights_by_user_operation_and_destination(begin: Begin) -> None:
    world, manager = begin({f"user{n}": user(**rights) for n, (rights, _, _) in enumerate(MATRIX)})
    ready(world, manager)
    for n, (rights, asked, allowed) in enumerate(MATRIX):
        client = world.live(user=f"user{n}", password="pass", instance=f"ui-{n}")
        client.send(command(**asked))
        if allowed:
            assert json.loads(manager.next()[2].body)["do"] == asked["do"], rights
        else:
            error = taken(world, client, ERROR)
            assert (error.code, error.number) == ("not-allowed", 7), rights
    assert any(level == "warning" and "denied" in str(text) for level, text in world.supervisor.said)


@pytest.mark.requirement("CLU-59")
def test_what_is_no_command_of_a_client_is_answered_and_goes_no_further(begin: Begin) -> None:
    world, manager = begin()
    ready(world, manager)
    client = world.live()
    noise = [b"", b"[]", b"{", b'{"do":5}', b'{"do":"gone"}', b'{"do":"hello"}', b'{"do":"produce"}', b"\xff" * 40]
    for body in [*noise, b"[" * 9000, b'{"do":"produce","destination":[1]}']:
        client.send(frame(KIND_COMMAND, number=9, body=body))
        error = taken(world, client, ERROR)
        assert (error.code, error.number) == ("bad-request", 9), body[:40]
    client.send(command(do="session"))
    assert json.loads(manager.next()[2].body)["do"] == "session"


@pytest.mark.requirement("CLU-173", state="half", note="the manager's part")
def test_announced_names_are_diverted_before_they_are_acknowledged_and_removed_ones_no_longer(begin: Begin) -> None:
    world, manager = begin()
    ready(world, manager)
    client = world.live()
    client.send(frame(PUBLISH, topic=b"events", body=b"1") + frame(PUBLISH, topic=b"new", body=b"2"))
    assert manager.next()[2].body == b"1"
    assert world.entry(1).frame.topic == b"new"
    manager.command(do="announce", add=[["new", "topic", "09"]], remove=["events"], number=4)
    _, uid, answer = manager.next()
    assert (uid, json.loads(answer.body)) == (0, {"do": "announced", "number": 4})
    client.send(frame(PUBLISH, topic=b"new", body=b"3") + frame(PUBLISH, topic=b"events", body=b"4"))
    assert manager.next()[2].body == b"3"
    assert world.entry(1).frame.topic == b"events"


@pytest.mark.requirement("CLU-3", state="half", note="one manager")
def test_a_lost_link_is_told_to_those_who_used_it_and_so_is_its_return_with_the_names_there_are_then(
    begin: Begin, tmp_path: Path
) -> None:
    world, manager = begin()
    ready(world, manager)
    client, other = world.live(), world.live()
    client.send(frame(KIND_STORE, body=b"x"))
    manager.next()
    manager.lose()
    assert json.loads(taken(world, client, KIND_NOTICE).body) == {"event": "interrupted"}
    client.send(command(do="session"))
    assert taken(world, client, ERROR).code == "no-message-manager"
    ready(world, manager, [["other", "topic", "05"]])
    assert json.loads(taken(world, client, KIND_NOTICE).body) == {"event": "back"}
    client.send(frame(PUBLISH, topic=b"events", body=b"4") + frame(PUBLISH, topic=b"other", body=b"5"))
    assert manager.next()[2].body == b"5"
    assert world.entry(1).frame.topic == b"events"
    assert KIND_NOTICE not in other.kinds()
    assert not client.ended


@pytest.mark.requirement("CLU-205")
def test_publishes_of_restricted_users_and_to_reserved_names_are_judged(begin: Begin) -> None:
    world, manager = begin({"ann": user(publish=["events"], admin=["_ADMIN"]), "bob": user(publish=["x"])})
    ready(world, manager)
    ann = world.live(user="ann", password="pass")
    bob = world.live(user="bob", password="pass", instance="ui-2")
    ann.send(b"".join(frame(PUBLISH, topic=t, body=t, correlation=5) for t in (b"events", b"_ADMIN", b"_LOG")))
    assert [manager.next()[2].body for _ in range(2)] == [b"events", b"_ADMIN"]
    assert taken(world, ann, ERROR).code == "not-allowed"
    for topic in (b"events", b"_ADMIN"):
        bob.send(frame(PUBLISH, topic=topic, correlation=6))
        error = taken(world, bob, ERROR)
        assert (error.code, error.correlation) == ("not-allowed", 6)


def test_where_there_are_no_users_the_log_can_be_read_and_the_server_administered(begin: Begin) -> None:
    world, manager = begin()
    ready(world, manager)
    client = world.live()
    client.send(frame(PUBLISH, topic=b"_ADMIN", body=b"status") + frame(PUBLISH, topic=b"_LOG", body=b"forged"))
    assert manager.next()[2].body == b"status"
    assert taken(world, client, ERROR).code == "not-allowed"
    client.send(command(do="consume", destination="_LOG"))
    assert json.loads(manager.next()[2].body)["may"] == ["consume", "browse"]
    client.send(command(do="produce", destination="_LOG"))
    assert taken(world, client, ERROR).code == "not-allowed"


@pytest.mark.requirement("CLU-206")
def test_a_withdrawn_right_ends_what_was_open_and_leaves_others_alone(begin: Begin, tmp_path: Path) -> None:
    world, manager = begin({"ann": user(), "bob": user()})
    ready(world, manager)
    ann = world.live(user="ann", password="pass")
    bob = world.live(user="bob", password="pass", instance="ui-2")
    for client in (ann, bob):
        client.send(command(do="consume", destination="orders"))
        manager.next()
    write_users(tmp_path, {"ann": user(consume=["other"]), "bob": user(consume=["orders"])})
    world.supervisor.tell("reload")
    assert taken(world, ann, ERROR).code == "not-allowed"
    world.wait(lambda: ann.read() is not None and ann.ended)
    ann.sock.close()
    _, uid, gone = manager.next()
    assert (uid, json.loads(gone.body)) == (ann.uid, {"do": "gone"})
    bob.send(command(do="consume", destination="orders"))
    assert manager.next()[1] == bob.uid
    bob.send(command(do="consume", destination="other"))
    assert taken(world, bob, ERROR).code == "not-allowed"
