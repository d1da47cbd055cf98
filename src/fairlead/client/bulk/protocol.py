"""One line to the server: what comes in is matched with what was asked; what is to be said gathers in `out`.

There is no session here: commands are asked one at a time and can be asked again, a scan goes on where its last whole
batch ended, a stage knows what it has. So a line that is lost, asked to move or cut off from its message manager is
simply given up, and the next one goes on.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from fairlead.client.bulk.batches import Batches
from fairlead.client.bulk.incoming import Frame, Head, Incoming, Receiver
from fairlead.client.bulk.unconfirmed import Unconfirmed
from fairlead.client.durable.commands import Facts, facts_of
from fairlead.client.link import Link, Phase, control
from fairlead.errors import CODES, ConnectionLost, FairleadError, NoMessageManager, TooLarge, from_wire
from fairlead.message import Message
from fairlead.wire import durable, kinds
from fairlead.wire.codec import encode_frame
from fairlead.wire.handshake import Connect
from fairlead.wire.headers import decode_headers
from fairlead.wire.kinds import FLAG_LAST

__all__ = ["COMMAND_BYTES_MAX", "Protocol"]

COMMAND_BYTES_MAX = 65_536  # of a COMMAND frame
COMMAND_FIRST = 1 << 30
"""Commands are numbered far away from handles: an ERROR tells only a number."""
OUT_MAX = 1024
"""With so much unsaid no PING is answered: whoever asks does not read."""

Bytes = bytes | bytearray | memoryview


class Protocol:
    """`lost` is why there is no talking on with this line; `moving` asks to leave it when that is convenient."""

    def __init__(self, hello: Connect) -> None:
        self.link = Link(hello, 0.0)
        self.out: deque[Bytes] = deque(self.link.out)
        self.incoming = Incoming(self._receiver_of)
        self.lost: FairleadError | None = None
        self.moving = False
        self.answers: dict[int, Facts | FairleadError] = {}
        self.scans: dict[int, Batches] = {}
        self.stages: dict[int, Unconfirmed] = {}
        self._asked: set[int] = set()
        self._next = COMMAND_FIRST

    @property
    def is_live(self) -> bool:
        return self.link.phase is Phase.LIVE

    @property
    def is_busy(self) -> bool:
        """Is something under way that would have to be repeated on another line?"""
        return any(scan.granted or scan.ready for scan in self.scans.values()) or not all(
            stage.is_safe for stage in self.stages.values()
        )

    # What is said.

    def command(self, do: str, fields: dict[str, Any]) -> int:
        """Ask; what comes of it will be in `answers`, by the number returned."""
        number, self._next = self._next, self._next + 1
        frame = encode_frame(durable.KIND_COMMAND, 0, number, 0, 0, b"", b"", msgspec.json.encode({"do": do, **fields}))
        if len(frame) > COMMAND_BYTES_MAX:
            raise TooLarge(
                f"`{do}` takes {len(frame)} bytes; a command has at most {COMMAND_BYTES_MAX}.",
                size=len(frame),
                limit=COMMAND_BYTES_MAX,
            )
        self._asked.add(number)
        self.out.append(frame)
        return number

    def grant(self, scan: Batches, batches: int) -> None:
        scan.granted += batches
        self.out.append(control(durable.KIND_MORE, number=scan.handle, correlation=batches))

    def stop(self, scan: Batches) -> None:
        """What still comes of it is not looked at."""
        if self.scans.pop(scan.handle, None) is not None:
            self.out.append(control(durable.KIND_MORE, number=scan.handle, flags=FLAG_LAST))

    def store(self, stage: Unconfirmed) -> None:
        """Say what has not been said yet on this line."""
        for parts in stage.to_send():
            self.out.extend(parts)

    def goodbye(self) -> None:
        self.out.append(control(kinds.KIND_CLOSE))

    # What comes.

    def on_bytes(self, count: int) -> None:
        """So many bytes were put into `incoming.space`; RemoteProtocolError when the server breaks the rules."""
        frame = self.incoming.on_bytes(count)
        if frame is not None:
            self._on_frame(frame)

    def _receiver_of(self, head: Head) -> Receiver | None:
        if head.kind == durable.KIND_COLUMNS:
            return self.scans.get(head.number)
        return None

    def _on_frame(self, frame: Frame) -> None:
        head = frame.head
        match head.kind:
            case durable.KIND_COLUMNS:
                if (scan := self.scans.get(head.number)) is not None:
                    scan.on_piece(head)
            case durable.KIND_STORED:
                if (stage := self.stages.get(head.number)) is not None:
                    stage.on_stored(frame.body)
            case durable.KIND_ANSWER:
                self._answer(head.number, facts_of(frame.body))
            case durable.KIND_NOTICE:
                self._on_notice(facts_of(frame.body))
            case kinds.KIND_ERROR:
                self._on_error(frame)
            case kinds.KIND_PING if len(self.out) < OUT_MAX:
                self.out.append(control(kinds.KIND_PONG, correlation=head.correlation))
            case kinds.KIND_CONFIRM | kinds.KIND_WELCOME:
                said = Message(head.kind, head.flags, head.number, head.correlation, head.peer, "", b"", frame.body)
                self.link.on_handshake(said)
            case kinds.KIND_GO_AWAY:
                self.moving = True
            case kinds.KIND_CLOSE:
                self.lost = self.lost or ConnectionLost("The server said goodbye.")
            case _:
                pass  # from a newer server: not for us

    def _answer(self, number: int, answer: Facts | FairleadError) -> None:
        if number in self._asked:
            self._asked.discard(number)
            self.answers[number] = answer

    def _on_error(self, frame: Frame) -> None:
        codes = [value for key, value in decode_headers(frame.section) if key == "code"]
        code = codes[0].decode(errors="replace") if codes else "internal"
        error = from_wire(code, frame.body.decode(errors="replace"))
        number = frame.head.number
        if number in self._asked:
            self._answer(number, error)
        elif (scan := self.scans.pop(number, None)) is not None:
            scan.error = error
        elif (stage := self.stages.get(number)) is not None:
            stage.error = stage.error or error
        elif not number and (not self.is_live or code not in CODES or CODES[code].closes):
            self.lost = self.lost or error

    def _on_notice(self, facts: Facts) -> None:
        event = facts.get("event")
        if event == "interrupted":
            self.lost = self.lost or NoMessageManager("The message manager was lost.")
            return
        code, text = str(facts.get("code", "refused")), str(facts.get("text", ""))
        handle = next((facts[name] for name in ("stage", "scan", "handle", "producer") if name in facts), 0)
        if event == "refused" and handle in self.stages:
            self.stages[handle].on_refused(code, text)
        elif event == "ended" and handle in self.stages:
            self.stages[handle].error = from_wire(code, text)
        elif event == "ended" and handle in self.scans:
            self.scans.pop(handle).error = from_wire(code, text)
