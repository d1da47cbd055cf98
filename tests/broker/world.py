"""A router's world in one process: rings and routing segment in bytearrays, managers played by the test."""

from __future__ import annotations

import json
import os
import struct
from collections import defaultdict
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fairlead.broker import parties
from fairlead.broker import turn as plain_turn
from fairlead.broker.decisions import Decisions, Terms
from fairlead.broker.instructions import HEAD
from fairlead.broker.routing_log import Follower
from fairlead.broker.turn import Rule
from fairlead.store import layout
from fairlead.wire import kinds
from fairlead.wire.frames import encode_frame
from tests.store.twins import TWINS as STORE_TWINS
from tests.store.twins import new_ring

PLAIN = SimpleNamespace(name="plain", Turn=plain_turn.Turn, made_of=parties, store=STORE_TWINS[0])
TWINS = [PLAIN]
if len(STORE_TWINS) == 2:
    from fairlead.broker import _turn

    TWINS.append(SimpleNamespace(name="compiled", Turn=_turn.Turn, made_of=_turn, store=STORE_TWINS[1]))

both_twins = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
AREA_BYTES = 4 << 20
_UP = struct.Struct(layout.UP_FORMAT)
_DOWN = struct.Struct(layout.DOWN_FORMAT)


class Got(NamedTuple):
    """One instruction as a manager reads it."""

    kind: int
    handle: int
    touch: int
    limit: int
    recipients: tuple[tuple[int, int], ...]  # (index, low bits of the uid)
    content: bytes
    body_length: int

    @property
    def frame_kind(self) -> int:
        return self.content[4] if self.content else 0

    @property
    def correlation(self) -> int:
        return int(HEAD.unpack_from(self.content)[6])

    @property
    def peer(self) -> int:
        return int(HEAD.unpack_from(self.content)[7])

    @property
    def number(self) -> int:
        return int(HEAD.unpack_from(self.content)[5])

    @property
    def body(self) -> Any:
        _, _, _, topic, headers, *_ = HEAD.unpack_from(self.content)
        return self.content[HEAD.size + topic + headers :]

    @property
    def code(self) -> str:
        """The error code of an ERROR frame."""
        _, _, _, topic, headers, *_ = HEAD.unpack_from(self.content)
        pairs = self.content[HEAD.size + topic : HEAD.size + topic + headers]
        return pairs[pairs.index(b"code") + 6 :].decode()


class World:
    """`managers` managers, a store, and a router that can die and start again."""

    def __init__(
        self, twin: Any, managers: int = 2, capacity: int = 65536, terms: Terms | None = None, rules: Any = None,
        rule: Rule | None = None, entries_max: int = 0, turn_class: Any = None,
    ) -> None:  # fmt: skip
        self.twin = twin
        self.rule = rule or Rule()
        self.terms = terms or Terms()
        self.rules = rules
        self.turn_class = turn_class or twin.Turn
        self.up_buffers = [new_ring(capacity) for _ in range(managers)]
        self.down_buffers = [new_ring(capacity, entries_max) for _ in range(managers)]
        self.segment = bytearray(layout.routing_bytes(AREA_BYTES))
        struct.pack_into("<Q", self.segment, layout.ROUTING_AREA_BYTES, AREA_BYTES)
        self.wake_fds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(managers)]
        self.ups = [twin.store.Producer(b) for b in self.up_buffers]
        self.downs = [twin.store.Consumer(b) for b in self.down_buffers]
        self.next_handle = 1
        self.next_uid = 100
        self.clients: dict[int, tuple[int, int]] = {}  # uid -> manager, index
        self.inbox: dict[int, list[Got]] = defaultdict(list)  # uid's low bits -> what was delivered to it
        self.seen: list[list[Got]] = [[] for _ in range(managers)]
        self.turn: Any = None
        self.start_router()

    def close(self) -> None:
        for fd in self.wake_fds:
            os.close(fd)

    def start_router(self) -> None:
        follower = Follower(self.segment, self.twin.made_of, rules=self.rules)
        found = follower.catch_up()
        self.routing = follower.routing
        self.decisions = Decisions(self.routing, self.terms, self.rules)
        store = self.twin.store
        self.turn = self.turn_class(
            [store.Consumer(b) for b in self.up_buffers], [store.Producer(b) for b in self.down_buffers],
            self.segment, self.decisions, self.wake_fds, self.rule, memoryview(bytearray(256)).cast("Q"),
        )  # fmt: skip
        self.turn.log_limit = AREA_BYTES
        self.turn.start(found)

    # -- what managers tell the router

    def push(
        self, manager: int, kind: int, uid: int, content: bytes, handle: int = 0, body: int = 0, flags: int = 0
    ) -> None:
        index = self.clients.get(uid, (manager, 0))[1]
        payload = _UP.pack(uid, handle, index, body, len(content), 0) + content
        assert self.ups[manager].push(kind, flags, payload), "the test's ring is too small"
        self.ups[manager].publish()

    def attach(self, manager: int, **connect: Any) -> int:
        """A new client that answered its confirmation: its uid."""
        uid, self.next_uid = self.next_uid, self.next_uid + 1
        self.clients[uid] = manager, uid % 1000
        self.push(manager, layout.UP_ATTACH, uid, json.dumps({"peer": f"test:{uid}"}).encode())
        facts = {"type": "app", "instance": f"app-{uid}", "org": "", "user": ""} | connect
        self.push(manager, layout.UP_RESPONSE, uid, json.dumps(facts).encode())
        return uid

    def control(
        self, uid: int, kind: int, topic: str = "", number: int = 0, correlation: int = 0, flags: int = 0
    ) -> None:
        frame = encode_frame(kind, flags, number, correlation, 0, topic.encode(), b"", b"")
        self.push(self.clients[uid][0], layout.UP_CONTROL, uid, frame, flags=layout.FLAG_COUNTED)

    def subscribe(self, uid: int, pattern: str, number: int = 1, no_local: bool = False) -> None:
        self.control(uid, kinds.KIND_SUBSCRIBE, pattern, number, flags=kinds.FLAG_NO_LOCAL if no_local else 0)

    def register(self, uid: int, topic: str, number: int = 1) -> None:
        self.control(uid, kinds.KIND_REGISTER, topic, number)

    def send(
        self, uid: int, kind: int, topic: str | bytes = "", *, correlation: int = 0, peer: int = 0, flags: int = 0,
        headers: bytes = b"", number: int = 0, body: int = 7, ring_flags: int = layout.FLAG_COUNTED,
    ) -> int:  # fmt: skip
        """A message of a client: its handle."""
        handle, self.next_handle = self.next_handle, self.next_handle + 1
        name = topic.encode() if isinstance(topic, str) else topic
        head = encode_frame(kind, flags, number, correlation, peer, name, headers, b"")
        self.push(self.clients[uid][0], layout.UP_MESSAGE, uid, head, handle, body, ring_flags)
        return handle

    def gone(self, uid: int) -> None:
        self.push(self.clients[uid][0], layout.UP_GONE, uid, b"")

    # -- what the router tells managers

    def run(self, budget: int = 10_000) -> None:
        while self.turn.run(budget, 0):
            self.read()
        self.read()

    def read(self) -> None:
        for manager, down in enumerate(self.downs):
            while (entry := down.next()) is not None:
                kind, _, payload = entry
                handle, touch, limit, _, count, content_length, body_length = _DOWN.unpack_from(payload)
                at = _DOWN.size + 8 * count
                packed = struct.unpack_from(f"<{count}Q", payload, _DOWN.size)
                recipients = tuple((r >> 32, r & 0xFFFFFFFF) for r in packed)
                got = Got(kind, handle, touch, limit, recipients, bytes(payload[at : at + content_length]), body_length)
                self.seen[manager].append(got)
                for index, low in recipients:
                    assert self.clients[low] == (manager, index), "a manager got an instruction for a stranger"
                    self.inbox[low].append(got)
                down.advance()
            down.publish(1 << 62)

    def delivered(self, uid: int, kind: int) -> list[Got]:
        return [got for got in self.inbox[uid] if got.frame_kind == kind]

    def errors(self, uid: int) -> list[tuple[str, int, int]]:
        return [(got.code, got.correlation, got.number) for got in self.delivered(uid, kinds.KIND_ERROR)]

    def check_accounting(self) -> dict[int, int]:
        """Every message: touches 0..n-1 once each, exactly one limit, which is n. Returns handle -> n."""
        touches: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for seen in self.seen:
            for got in seen:
                if got.handle:
                    touches[got.handle].append((got.touch, got.limit))
        for handle, found in touches.items():
            assert sorted(touch for touch, _ in found) == list(range(len(found))), (handle, found)
            assert [limit for _, limit in found if limit] == [len(found)], (handle, found)
        return {handle: len(found) for handle, found in touches.items()}
