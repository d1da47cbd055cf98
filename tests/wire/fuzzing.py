"""One engine of a connection manager fed with any bytes: what came of it, and whether it is still sound.

`tests/wire/test_fuzz_server.py` lets hypothesis choose the bytes, `scripts/fuzz_frames.py` a coverage-guided fuzzer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fairlead.broker.answers import frame
from fairlead.broker.edge import traffic
from fairlead.runtime import extensions
from fairlead.store import arena, layout, ring
from tests.broker.rig import CONFIRM, PING, PONG, PUBLISH, Client, Entry, Rig

ENGINES: dict[str, tuple[Any, Any]] = {
    "plain": (
        traffic.Traffic,
        SimpleNamespace(Arena=arena.Arena, Consumer=ring.Consumer, Producer=ring.Producer),
    )
}
if not extensions.is_pure():
    from fairlead.broker.edge import _traffic
    from fairlead.store import _store

    ENGINES["compiled"] = (_traffic.Traffic, _store)

BOUNDS = {"connections": 4, "limit": 6, "resume_below": 3, "body_max": 300_000, "header_max": 2000, "frame_max": 70_000}
TURNS_MAX = 400
TICK_MS = 100


@dataclass
class Outcome:
    """What the router and the client saw."""

    taken: list[tuple[int, bytes, bytes]] = field(default_factory=list)  # kind, content, body
    answers: bytes = b""
    closed: str = ""
    facts: dict[str, int] = field(default_factory=dict)


class Play:
    """A live client that sends these pieces, a bystander, and a router that takes everything and deletes it."""

    def __init__(self, engine: type[Any], store: Any, *, live: bool) -> None:
        self.rig = Rig(engine, store, ring=1 << 16, blocks=16, records=64, arenas=1, **BOUNDS)
        self.bystander = self.rig.live()
        self.client = self.rig.live() if live else self.rig.adopt()
        self.live = live
        self.greeted = False
        self.outcome = Outcome()

    def run(self, pieces: list[bytes]) -> Outcome:
        try:
            for number, piece in enumerate(pieces):
                self._send(piece, lazy=number % 3 == 1)
            self._finish()
        finally:
            self.rig.close()
        return self.outcome

    def _send(self, piece: bytes, *, lazy: bool) -> None:
        at = turns = 0
        while at < len(piece):
            try:
                at += self.client.send(piece[at : at + 8192])
            except BlockingIOError:
                pass
            except OSError:
                return  # it was closed
            self._step()
            if not lazy or turns > 3:
                self._route()
            turns += 1
            if not self.live and turns > 20:
                return  # it reads on only when the router has confirmed the connection, which ours does late
            assert turns < TURNS_MAX, "it neither reads on nor closes"

    def _step(self) -> None:
        for index, what, data in self.rig.turn(2):
            if index != self.client.index:
                continue
            if what == "closed":
                self.outcome.closed = data.decode()
            elif what == "preface":
                self.greeted = True
            elif what == "connect":  # nobody is let in here
                self.rig.traffic.close(index, self.client.uid, "bad-credentials", b"")
        self.client.read()

    def _route(self) -> None:
        """As a router without subscribers: every message has its lone delete."""
        for entry in self.rig.pop():
            if entry.kind in (layout.UP_MESSAGE, layout.UP_CONTROL):
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        body = b""
        if entry.handle:
            found = self.rig.arenas[0].read(entry.handle)
            assert found is not None, "a handle that names nothing"
            body = bytes(found[: entry.body_length])
            self.rig.instruct(layout.DOWN_DELETE, handle=entry.handle, touch=0, limit=1)
        self.outcome.taken.append((entry.kind, entry.content, body))

    def _finish(self) -> None:
        """The client goes; nothing of it is left, and the bystander has not noticed."""
        if self.greeted:
            self.rig.plain(frame(CONFIRM), self.client)
        for _ in range(4):
            self._step()
            self._route()
        self.outcome.answers = self.client.read()
        self.client.sock.close()
        for _ in range(TURNS_MAX):
            self._step()
            self._route()
            self.rig.now += TICK_MS  # ends that take too long are cut short
            if self.rig.statistics()["connections"] == 1:
                break
        self._check(self.bystander)
        facts = self.rig.statistics()
        self.outcome.facts = {name: facts[name] for name in ("messages_in", "refused", "lost", "slow_clients")}
        assert facts["connections"] == 1, "the connection is still there"
        assert facts["accounting_faults"] == 0
        assert facts["open_instructions"] == facts["outstanding"] == facts["queue_private"] == facts["blocked"] == 0
        assert self.rig.stored() == 0, "a slot was leaked"

    def _check(self, bystander: Client) -> None:
        bystander.frames()
        before = len(self.outcome.taken)
        bystander.send(frame(PING, correlation=5) + frame(PUBLISH, topic=b"b", body=b"well"))
        for _ in range(3):
            self._step()
            self._route()
        assert PONG in bystander.kinds()
        assert [body for *_, body in self.outcome.taken[before:]] == [b"well"]
        del self.outcome.taken[before:]
        self._step()


def play(name: str, pieces: list[bytes], *, live: bool = True) -> Outcome:
    return Play(*ENGINES[name], live=live).run(pieces)


def play_both(pieces: list[bytes], *, live: bool = True) -> Outcome:
    """The same bytes to both twins; they have to agree on everything anybody can see."""
    plain = play("plain", pieces, live=live)
    if "compiled" in ENGINES:
        compiled = play("compiled", pieces, live=live)
        assert compiled.taken == plain.taken
        assert compiled.closed == plain.closed
        assert compiled.answers == plain.answers
        assert compiled.facts["refused"] == plain.facts["refused"]
    return plain
