"""What sessions, transactions, transfers and administration ask of the core, beyond what a destination asks.

`Core` (core.py) is it. Whatever these parts want done to a destination they `post` to its command queue, so that it
stays in order with what the client sent before: a commit behind its sends, the end of a consumer behind its
acknowledgements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.cluster.port import Bytes, Port

if TYPE_CHECKING:
    from fairlead.cluster.allowances import Allowances
    from fairlead.cluster.decisions import Decisions
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parameters import Kind, Parameters
    from fairlead.cluster.parties import Line
    from fairlead.cluster.prepared import Preparations
    from fairlead.cluster.sessions import Sessions
    from fairlead.cluster.transactions import Transactions
    from fairlead.cluster.transfers import Transfers


class Limits(Protocol):
    """The settings of `[messages]` these parts use."""

    @property
    def resend_retention_s(self) -> float: ...
    @property
    def window_messages(self) -> int: ...
    @property
    def window_bytes(self) -> int: ...
    @property
    def fragment_bytes(self) -> int: ...


class Host(Port, Protocol):
    """The core, as the parts beside the destinations see it."""

    @property
    def settings(self) -> Limits: ...

    allowances: Allowances
    group: str  # name of the group this message manager belongs to
    handles: int  # session numbers and handles given here are above it
    sessions: Sessions
    transactions: Transactions
    transfers: Transfers
    prepared: Preparations
    decisions: Decisions
    settle_send: Callable[[str, dict[str, Any]], None]
    """Say something to another group about a transaction. It may get lost, and where there is no cluster it does."""

    @property
    def safe(self) -> int:
        """Everything up to this index is safe."""

    @property
    def last_index(self) -> int:
        """Index of the newest record; `after(last_index, …)` waits for everything that was done so far."""

    @property
    def destinations(self) -> Mapping[int, Destination]:
        """All destinations by number."""

    def post(self, destination: Destination, action: Callable[[], None], *, holdable: bool = False) -> None:
        """Run this in the destination's task, behind what is in its command queue; always, also if it is deleted first.

        A holdable one stays behind sends that are held back, too (no room in the store): a commit.
        """

    def call_at(self, ms: int, action: Callable[[], None]) -> None:
        """Run this at that time or soon after."""

    def work(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `job` in a thread of the pool, then `then` in the loop with its result or the exception it raised."""

    def answer(self, line: Line, number: int, facts: Mapping[str, Any]) -> None:
        """The ANSWER to a COMMAND."""

    def error(self, line: Line, number: int, code: str, text: str) -> None:
        """The ERROR to a COMMAND, or with number 0 to the connection."""

    def send(
        self,
        line: Line,
        kind: int,
        *,
        number: int,
        correlation: int = 0,
        peer: int = 0,
        flags: int = 0,
        body: Bytes = b"",
    ) -> bool:
        """Any other frame to a client. False: its link has no room; nothing was sent, try again in another turn."""

    def publish(
        self, topic: str, body: Bytes, headers: Sequence[tuple[str, bytes | str]] = (), *, link: int = -1
    ) -> None:
        """Broadcast to the transient subscribers of this topic, through this link if it is there still."""

    def is_blocked(self, destination: Destination) -> bool:
        """Must its producers wait, for whatever reason?"""

    def token(self) -> bytes:
        """32 bytes nobody can guess."""

    def new_session_id(self) -> bytes:
        """An id of 20 bytes that was never used."""

    def id_block(self, count: int) -> int:
        """The first of so many message id numbers, never given before since this start."""

    def create(
        self, name: str, kind: Kind, parameters: Parameters, *, owner: bytes = b"", reserved: bool = False
    ) -> Destination:
        """Make and announce a destination (CREATE record). With an owner it is temporary and belongs to that session.

        Raises FairleadError: a bad or reserved name, or another destination has it.
        """

    def delete(self, destination: Destination, reason: str) -> int:
        """Delete and announce; whoever uses it is told the reason. The index of the DELETE record."""
