"""One group that takes part in transactions with others, which are only played: what it says to them is kept."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from fairlead.cluster.demux import scan
from fairlead.cluster.prepared import id_of
from fairlead.wire import durable
from fairlead.wire.headers import decode_headers
from fairlead.wire.kinds import KIND_ERROR
from tests.cluster.manager_rig import Manager
from tests.cluster.test_transactions import Teller

ELSEWHERE = id_of(b"\x09" * 20, 7)
"""A transaction another group decides about."""


class Lone(Manager):
    """Group "a"; its agent speaks about the link."""

    def __init__(self, folder: Any, **options: Any) -> None:
        self.said: dict[int, dict[str, Any]] = {}  # command about the link -> its answer
        self.sent: list[tuple[str, dict[str, Any]]] = []  # to other groups
        self._commands = itertools.count(1)
        super().__init__(folder, **options)

    def _begin(self) -> None:
        super()._begin()
        self.core.settle_send = lambda group, message: self.sent.append((group, message))

    def _collect(self) -> None:
        whole = b"".join(bytes(piece) for piece in self.link.out)
        frames, _ = scan(memoryview(whole), 0, len(whole))
        super()._collect()
        for uid, _, kind, _, number, _, _, _, headers, body, beyond in frames:
            if uid == 0 and kind == durable.KIND_ANSWER:
                self.said[number] = msgspec.json.decode(whole[body:beyond])
            elif uid == 0 and kind == KIND_ERROR:
                self.said[number] = {"error": dict(decode_headers(whole[headers:body]))["code"].decode()}

    def tell(self, do: str, identity: str = ELSEWHERE, decider: str = "z", **more: Any) -> int:
        """A command of the agent; what was answered will be in `said`."""
        number = next(self._commands)
        body = msgspec.json.encode({"do": do, "id": identity, "decider": decider, **more})
        self.put(0, durable.KIND_COMMAND, number=number, body=body)
        self.turn()
        return number

    def ask(self, do: str, identity: str = ELSEWHERE, decider: str = "z") -> dict[str, Any]:
        return self.said[self.tell(do, identity, decider)]

    def word(self, outcome: str, identity: str = ELSEWHERE, sender: str = "z") -> None:
        """The decider's, or what poses as it."""
        self.core.decisions.on_settle(sender, {"do": "decide", "id": identity, "outcome": outcome})
        self.turn()


def prepare(teller: Teller, transaction: int = 1, sends: int = 1, **how: Any) -> int:
    """Ask it to prepare; the number of the command."""
    about = {"id": ELSEWHERE, "decider": "z", "groups": ["a", "z"], **how}
    named = {str(teller.b): sends} if sends else {}
    number = teller.client.ask("prepare", session=teller.session, transaction=transaction, sends=named, **about)
    teller.manager.turn()
    return number


def own_id(teller: Teller, transaction: int = 1) -> str:
    return id_of(bytes.fromhex(teller.facts["id"]), transaction)


def as_decider(teller: Teller, transaction: int = 1) -> dict[str, Any]:
    return {"id": own_id(teller, transaction), "decider": "a"}
