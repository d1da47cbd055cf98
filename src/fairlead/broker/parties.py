"""Who is attached, and who waits for whom: the records the router's decisions are about.

Plain twins of the classes in `_turn.pyx`; the compiled loop reads their fields without a Python call.
"""

from __future__ import annotations

from typing import Any


class Attachment:
    """A live (or opening) client of the server, wherever its connection is at the moment."""

    __slots__ = (
        "asked", "chosen", "conn", "from_pair", "index", "instance", "live", "manager", "may_publish", "org",
        "outstanding", "peer", "prefix", "recipient", "registrations", "resuming", "serving", "subscriptions",
        "tenant", "type", "uid", "user", "who",
    )  # fmt: skip

    def __init__(self, uid: int, conn: int, manager: int, index: int, peer: str) -> None:
        self.uid = uid  # by which others address it; stays when it moves
        self.peer = peer
        self.type = self.instance = self.org = self.user = ""
        self.who = ""  # as rules are asked about it: see `security.rules.principal`
        self.tenant = ""
        self.prefix = b""  # what stands before its names inside, when it belongs to a tenant
        self.from_pair = b""  # the `:from` header pair, when its user is authenticated
        self.live = False
        self.resuming = 0  # the uid whose place this connection is to take
        self.outstanding = 0  # requests it has not answered to the end
        self.chosen = 0  # the newest request given to it: the balance rule's memory
        self.asked: dict[int, int] = {}  # its own correlation -> request
        self.serving: dict[int, None] = {}  # requests it has to answer
        self.subscriptions: dict[int, tuple[str, bool]] = {}
        self.registrations: dict[int, str] = {}
        self.may_publish: dict[bytes, bool] | None = None  # None: everything; else a cache of the rules' answers
        self.connect(conn, manager, index)

    def connect(self, conn: int, manager: int, index: int) -> None:
        self.conn = conn
        self.manager = manager
        self.index = index
        self.recipient = index << 32 | conn & 0xFFFFFFFF


class Ask:
    """A request, conversation or fan-out request that is not over."""

    __slots__ = ("awaiting", "correlation", "kind", "requester", "rid")

    def __init__(self, rid: int, requester: int, correlation: int, kind: int) -> None:
        self.rid = rid
        self.requester = requester
        self.correlation = correlation
        self.kind = kind
        self.awaiting: dict[int, None] = {}  # uids of the receivers that have not sent their last answer


class Route:
    """Where a topic's broadcasts go: recipients by manager, ready to be written."""

    __slots__ = ("error", "is_own", "no_local", "strip", "targets")

    def __init__(
        self,
        targets: list[tuple[int, bytes]],
        no_local: frozenset[int],
        error: Any = None,
        is_own: bool = False,
        strip: int = 0,
    ) -> None:
        self.targets = targets
        self.no_local = no_local  # uids that do not want what they publish themselves
        self.error = error  # (code, sentence) when the topic is no topic
        self.is_own = is_own  # one of the server's names is among the topics: rules are asked, whoever sends
        self.strip = strip  # bytes in front of a tenant's topic that its clients do not see
