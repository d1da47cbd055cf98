"""One server a bridge is attached to: what is known of it, what is asked for there, and what waits to be sent there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fairlead.broker.interest import LINK_TOPIC
from fairlead.sites.adverts import Wishes
from fairlead.sites.chart import NAMED, SERVED, SUBSCRIBED
from fairlead.sites.marks import Seen
from fairlead.sites.session import LinkSession
from fairlead.wire import kinds
from fairlead.wire.kinds import FLAG_NAMED, FLAG_NO_LOCAL

BEGIN = {
    SUBSCRIBED: (kinds.KIND_SUBSCRIBE, FLAG_NO_LOCAL),
    SERVED: (kinds.KIND_REGISTER, 0),
    NAMED: (kinds.KIND_REGISTER, FLAG_NAMED),
}
FINISH = {SUBSCRIBED: kinds.KIND_UNSUBSCRIBE, SERVED: kinds.KIND_UNREGISTER, NAMED: kinds.KIND_UNREGISTER}


class Waiting(NamedTuple):
    """A broadcast to be published at this server."""

    topic: bytes
    section: bytes
    body: bytes

    @property
    def size(self) -> int:
        return kinds.HEAD_BYTES + len(self.topic) + len(self.section) + len(self.body)


class End:
    """The bridge's place at one server."""

    def __init__(self, url: str, queue_bytes: int) -> None:
        self.url = url
        self.server = ""  # its id, from the first connection on
        self.session: LinkSession | None = None
        self.wishes = Wishes()
        self.lost_s: float | None = None  # when the connection was lost; None while it is there, or never was
        self.asked_s = 0.0  # when it was last asked to take us as a link
        self.held = False  # lost a moment ago, and there is no other way: broadcasts for it are kept
        self.claims: dict[tuple[str, str], int] = {}
        self.seen = Seen()
        self.wake: Callable[[], None] = lambda: None  # something is to be written
        self.outbox: deque[Waiting] = deque()
        self.outbox_bytes = 0
        self.dropped = self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = 0
        self.refused = ""  # why the server did not agree to something, last time
        self._queue_bytes = queue_bytes

    @property
    def is_live(self) -> bool:
        return self.session is not None and self.session.is_live

    @property
    def is_usable(self) -> bool:
        """Is it known what its clients want?"""
        return self.is_live and self.wishes.complete

    def begin(self, server: str) -> None:
        """A new connection: everything has to be said anew."""
        self.server, self.lost_s, self.held = server, None, False
        self.refused = ""
        self.wishes = Wishes()
        self.claims.clear()
        self.claim(SUBSCRIBED, LINK_TOPIC)

    # -- what is asked for there

    def claim(self, what: str, key: str) -> None:
        if self.session is not None and (what, key) not in self.claims:
            kind, flags = BEGIN[what]
            self.claims[what, key] = self.session.claim(kind, key, self._on_answer, flags)
            self.wake()

    def ask_for(self, what: str, keys: set[str]) -> None:
        """Exactly these."""
        if self.session is None or not self.is_usable:
            return
        for key in sorted(key for kind, key in self.claims if kind == what and key not in keys and key != LINK_TOPIC):
            self.session.disclaim(FINISH[what], self.claims.pop((what, key)), self._on_answer)
            self.wake()
        for key in sorted(keys):
            self.claim(what, key)

    def _on_answer(self, error: Exception | None) -> None:
        if error is not None:
            self.refused = str(error)

    def count(self, what: str) -> int:
        return sum(1 for kind, key in self.claims if kind == what and key != LINK_TOPIC)

    # -- what is sent there

    def put(self, waiting: Waiting) -> None:
        """To be published as soon as possible; when too much waits, the oldest is given up and counted."""
        self.outbox.append(waiting)
        self.outbox_bytes += waiting.size
        while self.outbox_bytes > self._queue_bytes and len(self.outbox) > 1:
            self.outbox_bytes -= self.outbox.popleft().size
            self.dropped += 1
        self.wake()

    def give_up(self) -> int:
        """Nothing waits any longer; how much did."""
        count, self.outbox_bytes = len(self.outbox), 0
        self.dropped += count
        self.outbox.clear()
        return count

    def publish_next(self) -> None:
        """Say the oldest that waits; the edge looks whether there is room first."""
        assert self.session is not None
        waiting = self.outbox.popleft()
        self.outbox_bytes -= waiting.size
        self.messages_out += 1
        self.bytes_out += waiting.size
        self.session.publish(waiting.topic, waiting.section, waiting.body)

    def report(self) -> dict[str, object]:
        """For the status report."""
        return {
            "server": self.server,
            "state": "up" if self.is_usable else "held" if self.held else "down",
            "subscribed": self.count(SUBSCRIBED),
            "served": self.count(SERVED),
            "named": self.count(NAMED),
            "messages_in": self.messages_in,
            "messages_out": self.messages_out,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "queued": len(self.outbox),
            "queued_bytes": self.outbox_bytes,
            "dropped": self.dropped,
            "refused": self.refused,
        }
