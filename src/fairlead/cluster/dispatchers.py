"""One dispatcher per kind of command: puts it into the queue of the task it is for, and nothing more (CLU-64).

What is malformed, of unknown kind or for an unknown handle is counted and answered with an ERROR to the connection it
came from; it changes nothing else (CLU-59).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster.demux import Frame
from fairlead.cluster.outgoing import Link
from fairlead.cluster.parties import Consumer, Line, Producer
from fairlead.wire import durable
from fairlead.wire.durable import COMMAND_BYTES_MAX
from fairlead.wire.kinds import FLAG_LAST, KIND_PUBLISH

if TYPE_CHECKING:
    from fairlead.cluster.core import Core

KIND_NAMES: Final = {
    durable.KIND_COMMAND: "command",
    durable.KIND_STORE: "store",
    durable.KIND_SETTLE: "settle",
    durable.KIND_WANT: "want",
    durable.KIND_PIECE: "piece",
    durable.KIND_PULL: "pull",
    durable.KIND_MORE: "more",
    KIND_PUBLISH: "publish",
}


class Dispatchers:
    """All of them, by kind, with what each has dispatched and dropped."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.dispatched: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self._by_kind = {
            durable.KIND_STORE: self._store,
            durable.KIND_SETTLE: self._settle,
            durable.KIND_WANT: self._want,
            durable.KIND_PIECE: self._piece,
            durable.KIND_PULL: self._pull,
            durable.KIND_MORE: self._more,
            durable.KIND_COMMAND: self._command,
            KIND_PUBLISH: self._publish,
        }

    def take(self, link: Link, view: memoryview, frames: list[Frame]) -> None:
        """All frames of one read, in the order they came (CLU-65)."""
        by_kind, lines, dispatched = self._by_kind, link.lines, self.dispatched
        for frame in frames:
            uid = frame[0]
            kind = frame[2]
            if uid == 0:
                self._link_command(link, view, frame)
                continue
            dispatcher = by_kind.get(kind)
            if dispatcher is None:
                what = "malformed" if kind < 0 else f"0x{kind:02x}"
                self._drop(link, frame, what, "bad-request", f"A frame of kind {what} is not known here.")
                continue
            line = lines.get(uid)
            if line is None:
                if kind not in (durable.KIND_COMMAND, KIND_PUBLISH):
                    self._drop(link, frame, KIND_NAMES[kind], "unknown-number", "This connection has no such handle.")
                    continue
                line = lines[uid] = Line(link.number, frame[1], uid, next_handle=self._core.handles + 1)
            dispatcher(link, line, view, frame)
            dispatched[KIND_NAMES[kind]] += 1

    def _drop(self, link: Link, frame: Frame, what: str, code: str, text: str) -> None:
        self.dropped[what] += 1
        link.error(frame[0], frame[1], frame[4], code, text)

    # --- The frequent ones ------------------------------------------------------------------------------------------
    def _store(self, link: Link, line: Line, view: memoryview, frame: Frame) -> None:
        _, _, _, _, number, first, transaction, topic, _, body, end = frame
        if end - body < durable.STORE_HEAD.size:
            self._drop(link, frame, "store", "bad-request", "A STORE frame is shorter than its head.")
            return
        _, _, sent_ms, id_first = durable.STORE_HEAD.unpack_from(view, body)
        core = self._core
        producer = line.handles.get(number)
        if type(producer) is not Producer:
            entries = view[body + durable.STORE_HEAD.size : end]
            if not core.bulk.on_store(line, number, first, sent_ms, entries, link.number, end - topic):
                self._drop(link, frame, "store", "unknown-number", f"This connection has no producer {number}.")
            return
        place = core.names.by_number.get(producer.destination.number)
        if place is None:
            self._drop(link, frame, "store", "destination-deleted", "The queue or topic was deleted.")
            return
        task, cost = place.task, end - topic
        core.tally.stored_bytes += end - body
        entries = view[body + durable.STORE_HEAD.size : end]
        if producer.uploads:  # nothing overtakes a very large message (CLU-99)
            later = (producer, first, transaction, sent_ms, id_first, memoryview(bytes(entries)), link.number)
            core.transfers.defer(producer, lambda: core.tasks.put(task, cost, line, core.store, *later, holdable=True))
            return
        args = (producer, first, transaction, sent_ms, id_first, entries, link.number)
        core.tasks.put(task, cost, line, core.store, *args, holdable=True)

    def _settle(self, link: Link, line: Line, view: memoryview, frame: Frame) -> None:
        _, _, _, flags, number, transaction, tag, topic, _, body, end = frame
        consumer = line.handles.get(number)
        if not isinstance(consumer, Consumer):
            self._drop(link, frame, "settle", "unknown-number", f"This connection has no consumer {number}.")
            return
        if (end - body) % durable.SETTLE_ITEM.size:
            self._drop(link, frame, "settle", "bad-request", "A SETTLE frame ends inside an item.")
            return
        items = list(durable.SETTLE_ITEM.iter_unpack(view[body:end]))
        core = self._core
        destination = consumer.destination
        count, following = 0, destination.next
        for first, beyond, action, _ in items:
            if first >= beyond or beyond > following or action not in durable.ACTIONS:
                text = "A SETTLE item has an empty range, messages there never were, or an unknown action."
                self._drop(link, frame, "settle", "bad-request", text)
                return
            count += beyond - first
        core.tally.settled += count
        place = core.names.by_number.get(destination.number)
        if place is None:
            self._drop(link, frame, "settle", "destination-deleted", "The queue or topic was deleted.")
            return
        task, cost = place.task, end - topic
        if transaction:
            core.tasks.put(task, cost, line, core.settle, consumer, items, transaction, tag)
        else:
            patient = flags & durable.FLAG_PATIENT != 0
            core.tasks.put(task, cost, line, destination.on_settle, consumer, items, 0, tag, patient)

    def _want(self, link: Link, line: Line, view: memoryview, frame: Frame) -> None:
        number = frame[4]
        consumer = line.handles.get(number)
        if not isinstance(consumer, Consumer):
            self._drop(link, frame, "want", "unknown-number", f"This connection has no consumer {number}.")
            return
        core = self._core
        destination = consumer.destination
        place = core.names.by_number.get(destination.number)
        if place is None:
            self._drop(link, frame, "want", "destination-deleted", "The queue or topic was deleted.")
            return
        core.tasks.put(place.task, 32, line, destination.on_want, consumer, frame[5], frame[6])

    def _piece(self, link: Link, line: Line, view: memoryview, frame: Frame) -> None:
        _, _, _, flags, number, transfer, offset, _, _, body, end = frame
        producer = line.handles.get(number)
        if not isinstance(producer, Producer):
            self._drop(link, frame, "piece", "unknown-number", f"This connection has no producer {number}.")
            return
        self._core.transfers.on_piece(producer, transfer, offset, bytes(view[body:end]), bool(flags & FLAG_LAST))

    def _pull(self, link: Link, line: Line, view: memoryview, frame: Frame) -> None:
        _, _, _, flags, number, order, until, _, _, _, _ = frame
        consumer = line.handles.get(number)
        if not isinstance(consumer, Consumer):
            self._drop(link, frame, "pull", "unknown-number", f"This connection has no consumer {number}.")
            return
        self._core.transfers.on_pull(consumer, order, until, bool(flags & FLAG_LAST))

    def _more(self, link: Link, line: Line, view: memoryview, frame: Frame) -> None:
        _, _, _, flags, number, batches, _, _, _, _, _ = frame
        if not self._core.bulk.scans.on_more(line, number, batches, stop=bool(flags & FLAG_LAST)):
            self.dropped["more"] += 1  # a scan that has ended: its client finds out by what it was sent before

    # --- The rare ones ----------------------------------------------------------------------------------------------
    def _command(self, link: Link, line: Line, view: memoryview, frame: Frame) -> None:
        request = self._decoded(link, view, frame)
        if request is None:
            return
        core = self._core
        do = request.get("do")
        if do == "gone":
            core.tasks.put(core.reliability_task, 64, None, core.line_gone, link, line)
        elif do in ("full", "room"):
            core.bulk.scans.on_full(line, is_full=do == "full")
        else:
            command = core.directory.on_command if do == "directory" else core.command
            core.tasks.put(core.session_task, frame[10] - frame[7], line, command, line, frame[4], request)

    def _publish(self, link: Link, line: Line, view: memoryview, frame: Frame) -> None:
        _, _, _, _, _, _, _, topic, headers, body, end = frame
        name = bytes(view[topic:headers]).decode(errors="replace")
        self._core.own.published(link, line, name, bytes(view[headers:body]), view[body:end])

    def _link_command(self, link: Link, view: memoryview, frame: Frame) -> None:
        if frame[2] != durable.KIND_COMMAND:
            self._drop(link, frame, "link", "bad-request", "Only commands are about the link itself.")
            return
        request = self._decoded(link, view, frame)
        if request is None:
            return
        core = self._core
        self.dispatched["link"] += 1
        core.tasks.put(core.reliability_task, 64, None, core.link_command, link, frame[4], request)

    def _decoded(self, link: Link, view: memoryview, frame: Frame) -> dict[str, Any] | None:
        body, end = frame[9], frame[10]
        if end - body > COMMAND_BYTES_MAX:
            text = f"A command of {end - body} bytes is longer than {COMMAND_BYTES_MAX}."
            self._drop(link, frame, "command", "bad-request", text)
            return None
        try:
            request = msgspec.json.decode(view[body:end])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            request = None
        if not isinstance(request, dict):
            self._drop(link, frame, "command", "bad-request", "A command is not a JSON object.")
            return None
        return request

    def facts(self) -> dict[str, dict[str, int]]:
        """For `counters`."""
        return {"dispatched": dict(self.dispatched), "dropped": dict(self.dropped)}
