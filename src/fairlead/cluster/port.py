"""What a destination may ask of the message manager it lives in. Everything it does to the world goes through here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Consumer, Producer, Session

Bytes = bytes | bytearray | memoryview


class Port(Protocol):
    """Handed to every destination. `now_ms` is the calendar clock of this turn."""

    now_ms: int

    def append(self, kind: int, head: bytes, payload: Bytes = b"") -> tuple[int, int]:
        """Write a record with the next flush: its index, and its place (that of the first byte of `head`).

        The payload is copied before the call returns.
        """

    def read(self, place: int, size: int) -> memoryview | None:
        """What was written there, checked; None: it is being fetched from disk, and `on_loaded` will be called."""

    def after(self, index: int, action: Callable[[], None], *, patient: bool = False) -> None:
        """Call when everything up to the index is safe. Actions run in the order of their indexes.

        `patient`: no write is begun for its sake alone, for a few milliseconds.
        """

    def deliver(self, consumer: Consumer, pieces: Sequence[Bytes]) -> None:
        """Send a DELIVER frame whose body is the pieces, one behind the other."""

    def stored(self, producer: Producer, first: int, count: int, status: int, order: int, arrival_ms: int) -> None:
        """Tell the producer what became of its sends; gathered into one STORED frame per producer and turn."""

    def settled(self, consumer: Consumer, tag: int, stale: Sequence[tuple[int, int]]) -> None:
        """Answer a SETTLE that wanted one."""

    def notice(self, session: Session, **facts: Any) -> None:
        """A NOTICE to the session's client; nothing if nobody holds it."""

    def broadcast(self, destination: Destination, entries: Bytes, link: int) -> None:
        """Hand messages of a topic to the transient subscribers, by way of the manager they came through."""

    def large(self, session: Session, entries: Bytes) -> Bytes:
        """Entries with LARGE ones among them, for storing: checked, and naming side files as the store numbers them.

        Raises TransferFailed.
        """

    def large_kept(self, transfer: int) -> None:
        """A LARGE entry that names this side file is stored: when written, and when read again by `apply`."""

    def large_gone(self, transfer: int) -> None:
        """… and is gone for good: when written, and when read again. The file goes with the last of them."""

    def find(self, name: str) -> Destination | None:
        """Another destination of this message manager."""

    def ready(self, destination: Destination) -> None:
        """Run this destination's `turn` again before this turn ends."""

    def wake_at(self, destination: Destination, ms: int) -> None:
        """Call its `on_tick` at that time; an earlier call stands."""

    def event(self, level: str, code: str, text: str, **ids: Any) -> None:
        """A line for the event log."""
