"""Managers and message manager as processes: clients with bare sockets, and a message manager that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.broker.answers import frame
from fairlead.errors import Unavailable
from fairlead.runtime import admin
from fairlead.security import users as security
from fairlead.security.passwords import hash_password
from fairlead.testing import Server
from fairlead.wire.durable import (
    CHUNK,
    ENTRY,
    KIND_ANSWER,
    KIND_COMMAND,
    KIND_DELIVER,
    KIND_NOTICE,
    KIND_SETTLE,
    KIND_SETTLED,
    KIND_STORE,
    KIND_STORED,
    SETTLE_ITEM,
    STORE_HEAD,
    STORED_ITEM,
)
from tests.processes.raw import ERROR, OK, PUBLISH, Frame, Raw

MESSAGE_MANAGER = "message-manager"


class Talker(Raw):
    """A bare client that knows the durable road."""

    _number = 100

    def ask(self, do: str, **facts: Any) -> Frame:
        """The ANSWER or ERROR to a COMMAND."""
        self._number += 1
        self.send(frame(KIND_COMMAND, number=self._number, body=json.dumps({"do": do, **facts}).encode()))
        while True:
            found = self.frame()
            if found.kind in (KIND_ANSWER, ERROR) and found.number == self._number:
                return found

    def told(self, do: str, **facts: Any) -> dict[str, Any]:
        """The same, where it has to be an ANSWER; a message manager on its way is waited for."""
        until_s = time.monotonic() + 20
        while True:
            found = self.ask(do, **facts)
            if found.kind == KIND_ANSWER:
                answer: dict[str, Any] = json.loads(found.body)
                return answer
            assert found.code == "no-message-manager", found
            assert time.monotonic() < until_s
            time.sleep(0.02)

    def notice(self, event: str) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = json.loads(self.expect(KIND_NOTICE).body)
            if found["event"] == event:
                return found

    def store(self, producer: int, first: int, *bodies: bytes, ids: int) -> tuple[int, int]:
        """Send and wait for the confirm: count and status."""
        entries = b"".join(ENTRY.pack(ENTRY.size + len(body), 0, 4, 0, 0, 0) + body for body in bodies)
        head = STORE_HEAD.pack(len(bodies), 0, int(time.time() * 1000), ids)
        self.send(frame(KIND_STORE, number=producer, correlation=first, body=head + entries))
        stored = self.expect(KIND_STORED)
        _, count, status, _, _ = STORED_ITEM.unpack_from(stored.body)
        return count, status

    def delivered(self) -> list[tuple[int, bytes]]:
        """Order number and body of the messages in the next DELIVER."""
        data, at, found = self.expect(KIND_DELIVER).body, 0, []
        while at < len(data):
            order, count, *_ = CHUNK.unpack_from(data, at)
            at += CHUNK.size
            for n in range(count):
                length, _, _, key, headers, _ = ENTRY.unpack_from(data, at)
                found.append((order + n, data[at + ENTRY.size + key + headers : at + length]))
                at += length
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as one:
        one.wait_until(linked)
        yield one


def linked(report: dict[str, Any]) -> bool:
    return all(manager["counters"]["linked"] for manager in report["managers"])


def states(report: dict[str, Any]) -> list[str]:
    return [one["state"] for one in report["components"] if one["role"] == MESSAGE_MANAGER]


@contextlib.contextmanager
def talking(server: Server, **said: Any) -> Iterator[Talker]:
    client = Talker(server.port, attach=False)
    try:
        client.attach(**said)
        yield client
    finally:
        client.sock.close()


@pytest.mark.requirement("CLU-3")
@pytest.mark.requirement("CLU-60")
def test_a_message_goes_from_a_client_through_the_queue_to_a_client_of_another_manager(server: Server) -> None:
    with talking(server) as sender, talking(server) as receiver:
        mine, theirs = sender.told("session", ack="individual"), receiver.told("session", ack="individual")
        out = sender.told("produce", session=mine["session"], destination="orders", kind="queue", create=True)
        assert sender.store(out["producer"], 1, b"one", b"two", ids=mine["ids"][0]) == (2, 0)
        into = receiver.told(
            "consume", session=theirs["session"], destination="orders", kind="queue", messages=10, bytes=1 << 20
        )
        found = receiver.delivered()
        assert [body for _, body in found] == [b"one", b"two"]
        items = SETTLE_ITEM.pack(found[0][0], found[-1][0] + 1, 0, 0)
        receiver.send(frame(KIND_SETTLE, number=into["consumer"], peer=1, body=items))
        assert receiver.expect(KIND_SETTLED).body == b""
        report = server.wait_until(lambda report: report["messages"]["settled"] >= 2)  # figures are a moment behind
        assert report["messages"]["stored"] >= 2
        assert {manager["connections"] for manager in report["managers"]} == {1}
        server.wait_until(lambda report: report["messages"]["depth"] == 0)


@pytest.mark.requirement("CLU-3")
@pytest.mark.requirement("CLU-2")
def test_clients_stay_connected_while_the_message_manager_is_killed_and_what_was_confirmed_is_there_afterwards(
    server: Server,
) -> None:
    with talking(server) as client, talking(server) as bystander:
        assert bystander.subscribe("news").kind == OK
        session = client.told("session", ack="individual")
        out = client.told("produce", session=session["session"], destination="kept", kind="queue", create=True)
        assert client.store(out["producer"], 1, b"safe", ids=session["ids"][0]) == (1, 0)
        server.kill(MESSAGE_MANAGER)
        client.notice("interrupted")
        client.send(frame(PUBLISH, topic=b"news", body=b"transient goes on"))
        assert bystander.expect(PUBLISH).body == b"transient goes on"
        client.notice("back")
        again = client.told("session", ack="individual")
        client.told("consume", session=again["session"], destination="kept", kind="queue", messages=5, bytes=1 << 20)
        assert [body for _, body in client.delivered()] == [b"safe"]


@pytest.mark.requirement("CLU-2")
def test_a_server_without_a_message_manager_says_so_to_every_command_and_serves_the_rest() -> None:
    with Server(**{"messages.enabled": "false"}) as server, talking(server) as client:
        assert client.ask("session").code == "no-message-manager"
        assert client.ask("produce", destination="q").code == "no-message-manager"
        assert client.subscribe("t").kind == OK
        client.send(frame(PUBLISH, topic=b"t", body=b"x"))
        assert client.expect(PUBLISH).body == b"x"
        assert server.pids(MESSAGE_MANAGER) == []
        with pytest.raises(Unavailable, match="no message manager"):
            server.update(MESSAGE_MANAGER)


def test_an_update_restarts_it_in_order(server: Server) -> None:
    (before,) = server.pids(MESSAGE_MANAGER)
    with talking(server) as client:
        session = client.told("session")
        out = client.told("produce", session=session["session"], destination="q", kind="queue", create=True)
        client.store(out["producer"], 1, b"x", ids=session["ids"][0])
        (record,) = server.update(MESSAGE_MANAGER)["updates"]
        assert (record["component"], record["outcome"]) == (MESSAGE_MANAGER, "done")
        client.notice("interrupted")
        client.notice("back")
    assert server.pids(MESSAGE_MANAGER) != [before]
    assert "ended as told" in (server.data / "log" / "fairlead.log").read_text()
    server.wait_until(lambda report: report["messages"]["depth"] == 1)


def test_it_outlives_its_supervisor_and_is_adopted_by_the_next() -> None:
    with Server() as server:
        server.wait_until(linked)
        (before,) = server.pids(MESSAGE_MANAGER)
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        with talking(server) as client:
            assert client.told("session")["session"] > 0
        server.start()
        assert server.pids(MESSAGE_MANAGER) == [before]
        assert server.wait_until(linked)["messages"]["state"] == "active"


def test_a_frozen_message_manager_is_killed_and_replaced() -> None:
    with Server(**{"limits.frozen_s": 0.5}) as server:
        server.wait_until(linked)
        before = server.kill(MESSAGE_MANAGER, number=signal.SIGSTOP)
        server.wait_until(lambda report: server.pids(MESSAGE_MANAGER) not in ([], [before]), 20)
        server.wait_until(linked)
        with talking(server) as client:
            client.told("session")


def test_an_idle_one_is_not_taken_for_frozen() -> None:
    with Server(**{"limits.frozen_s": 0.5}) as server:
        before = server.pids(MESSAGE_MANAGER)
        time.sleep(2.5)
        assert server.pids(MESSAGE_MANAGER) == before


@pytest.mark.requirement("CLU-185", state="half", note="with one node")
def test_administration_works_over_the_local_socket_too(server: Server) -> None:
    answer = server.ask("admin", name="destinations", args={})
    assert {one["name"] for one in answer["result"]["destinations"]} >= {"_ADMIN", "_LOG", "_DMQ"}
    with pytest.raises(Unavailable, match="no command 'nonsense'"):
        server.ask("admin", name="nonsense", args={})
    server.ask("admin", name="create", args={"destination": "made.here", "kind": "queue"})
    shown = server.ask("admin", name="destination", args={"destination": "made.here"})["result"]
    assert json.dumps(shown).count("made.here")


def test_questions_to_a_stopped_message_manager_are_answered_in_the_end(server: Server) -> None:
    pid = server.kill(MESSAGE_MANAGER, number=signal.SIGSTOP)
    asking = admin.ask(server.data.resolve() / "run", "admin", name="status", args={}, timeout_s=20)
    os.kill(pid, signal.SIGKILL)
    assert "ended" in next(iter(asking))["error"]


@pytest.mark.requirement("CLU-204")
@pytest.mark.requirement("CLU-205")
@pytest.mark.requirement("CLU-206")
def test_rights_are_checked_by_every_manager_and_a_withdrawn_one_acts_at_once(tmp_path: Path) -> None:
    hashed = hash_password("pass")

    def write(**ann: Any) -> None:
        entries = {"ann": security.User(hash=hashed, **ann), "bob": security.User(hash=hashed, create=[])}
        security.write(tmp_path / "users.toml", security.Users(entries))

    write()
    with Server(data=tmp_path) as server:
        server.wait_until(linked)
        with contextlib.ExitStack() as stack:
            anns = [stack.enter_context(talking(server, user="ann", password="pass")) for _ in range(2)]
            bobs = [stack.enter_context(talking(server, user="bob", password="pass")) for _ in range(2)]
            for ann in anns:
                session = ann.told("session")["session"]
                ann.told(
                    "consume", session=session, destination="orders", kind="queue", create=True, messages=1, bytes=1
                )
                assert ann.ask("consume", session=session, destination="_DMQ").code == "not-allowed"
            for bob in bobs:
                session = bob.told("session")["session"]
                assert bob.told("produce", session=session, destination="orders")["producer"]
                refused = bob.ask("produce", session=session, destination="other", kind="queue", create=True)
                assert refused.code == "not-allowed"
            write(consume=["something.else"])
            began_s = time.monotonic()
            server.ask("reload")
            for ann in anns:
                assert ann.expect(ERROR).code == "not-allowed"
            assert time.monotonic() - began_s < 10
            with talking(server, user="ann", password="pass") as ann:
                session = ann.told("session")["session"]
                assert ann.ask("consume", session=session, destination="orders").code == "not-allowed"
            assert bobs[0].echo() < 2
        log = (tmp_path / "log" / "fairlead.log").read_text()
        assert re.search(r"denied to connection \d+ \(raw/.*, user ann\): consume _DMQ", log)


@pytest.mark.requirement("CLU-175")
def test_a_wildcard_does_not_bring_the_servers_own_topics(server: Server) -> None:
    with talking(server) as everything, talking(server) as log, talking(server) as sender:
        assert everything.subscribe(">").kind == OK
        assert log.subscribe("_own.>").kind == OK
        sender.send(frame(PUBLISH, topic=b"_own.secret", body=b"1") + frame(PUBLISH, topic=b"plain", body=b"2"))
        assert everything.expect(PUBLISH).body == b"2"
        assert log.expect(PUBLISH).body == b"1"


def test_one_name_space(server: Server) -> None:
    with talking(server) as client, talking(server) as listener:
        assert listener.subscribe("shared.>").kind == OK
        client.send(frame(PUBLISH, topic=b"shared.t", body=b"transient"))
        assert listener.expect(PUBLISH).body == b"transient"
        session = client.told("session")["session"]
        made = {"session": session, "create": True, "messages": 10, "bytes": 1 << 20}
        client.told("consume", destination="shared.t", kind="topic", **made)
        client.told("produce", session=session, destination="shared.q", kind="queue", create=True)
        client.send(frame(PUBLISH, topic=b"shared.q", body=b"one way"))
        assert client.expect(ERROR).code == "wrong-kind"
        client.send(frame(PUBLISH, topic=b"shared.t", body=b"both ways"))
        assert [body for _, body in client.delivered()] == [b"both ways"]
        assert listener.expect(PUBLISH).body == b"both ways"


def test_the_log_and_the_store_are_in_order_after_a_stop() -> None:
    server = Server().start()
    try:
        report = server.wait_until(linked)
        assert server.stop() == 0
        lines = (server.data / "log" / "fairlead.log").read_text().splitlines()
        told = "\n".join(lines)
        ends = [line.split()[2].rstrip(":") for line in lines if "ended as told" in line]
        assert ends.index(MESSAGE_MANAGER) > max(place for place, name in enumerate(ends) if name == "manager"), told
        assert ends[-1] == "router", told
        children = {one["pid"] for one in report["components"] if one["role"] != "supervisor"}
        ended = {int(line.rpartition("pid=")[2]) for line in lines if " ended " in line}
        assert children <= ended, told  # the log has the end of each, also of the last
    finally:
        server.__exit__(None, None, None)


@pytest.mark.requirement("CLU-2", state="half", note="one node")
def test_a_message_manager_that_cannot_work_is_given_up_and_the_rest_serves(tmp_path: Path) -> None:
    (tmp_path / "mm-0").write_text("not a directory")
    with Server(data=tmp_path) as server, talking(server) as client:
        assert client.ask("session").code == "no-message-manager"
        assert client.subscribe("t").kind == OK
        assert server.status()["messages"]["state"].startswith("none: ")
        (tmp_path / "mm-0").unlink()
        server.update(MESSAGE_MANAGER)
        server.wait_until(linked)
        assert client.told("session")["session"] > 0


def test_destinations_of_the_configuration_are_there(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text('[destinations."orders.eu"]\nmax_messages = 5\n[destinations.news]\nkind = "topic"\n')
    with Server(environment={"FAIRLEAD_CONFIG": str(file)}) as server:
        listed = server.ask("admin", name="destinations", args={})["result"]["destinations"]
        assert {("orders.eu", "queue"), ("news", "topic")} <= {(one["name"], one["kind"]) for one in listed}
