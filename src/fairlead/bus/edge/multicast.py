"""The bus with casts as IP multicast. Who is there, and what goes to one node only, is carried by streams."""

from __future__ import annotations

import itertools
import os
import time
from struct import Struct
from typing import Final

from fairlead.bus import frames, records
from fairlead.bus.config import BusConfig
from fairlead.bus.edge.medium import Medium, Stream
from fairlead.bus.edge.streams import StreamBus
from fairlead.bus.edge.wire import Wire
from fairlead.bus.faults import Lots
from fairlead.bus.frames import Malformed
from fairlead.bus.membership import End
from fairlead.bus.multicast.packets import STREAM_BYTES

REPORT: Final = Struct("<Q")
LEAVE_S: Final = 0.5  # how long a leaving node waits until its casts have arrived


class MulticastBus(StreamBus):
    """A cast is sent once, however many listen. A stream that cannot be repaired breaks the line it belongs to."""

    def __init__(self, config: BusConfig) -> None:
        super().__init__(config)
        lots = Lots(int.from_bytes(os.urandom(8), "little"))
        self._media: dict[str, Medium] = {}
        self._listeners = itertools.count(1)
        try:
            for bus in config.buses:
                medium = self._media[bus.name] = Medium(config, bus, lots.draw, self._lose)
                self.lines.watch(medium.fileno(), lambda one=medium: one.receive(self.lines.now_s))  # type: ignore[misc]
        except BaseException:
            self._close_media()
            self.lines.close()
            raise
        self.lines.on_discard = self._on_discard

    def backlog(self, to: str) -> int:
        fellow = self.members.fellows.get(to)
        if fellow is None or fellow.out is None:
            return 0
        return super().backlog(to) + self._media[fellow.out.bus].sender.behind(fellow.out.listener)

    def turn(self, now_s: float) -> None:
        super().turn(now_s)
        if self._is_over():
            return
        for medium in self._media.values():
            medium.tick(now_s)
            for stream in medium.ready():
                self._deliver_ready(stream)
        if self._is_over():
            return
        self._report(now_s)
        self._settle()
        self.flush()

    def flush(self) -> None:
        if self._is_over():
            return
        for medium in self._media.values():
            medium.flush(self.lines.now_s)
            self._exclude_slow(medium)
        super().flush()

    def patience_s(self, now_s: float) -> float:
        next_s = min(medium.next_s() for medium in self._media.values())
        return min(super().patience_s(now_s), max(0.0, next_s - now_s))

    def close(self) -> None:
        if not self._is_over():
            self.flush()
            self._finish_casts()
        super().close()

    def drop(self) -> None:
        super().drop()
        self._close_media()

    def figures(self) -> dict[str, int]:
        found = super().figures()
        for medium in self._media.values():
            for key, value in medium.figures.items():
                found[f"multicast_{key}"] = found.get(f"multicast_{key}", 0) + value
            found["repeats"] = found.get("repeats", 0) + medium.sender.repeats
        return found

    # Out

    def _cast_on(self, wires: list[Wire], packed: list[bytes], size: int) -> None:
        for wire in wires:
            self._say_switch(wire)
        for name in {wire.bus for wire in wires}:
            self.counters["sent"] += 1
            medium = self._media[name]
            if medium.put(packed, size) >= frames.BLOCK_BYTES:
                medium.flush(self.lines.now_s)
                self._exclude_slow(medium)

    def _exclude_slow(self, medium: Medium) -> None:
        while medium.sender.slow:
            listener = medium.sender.slow.pop()
            for wire in [wire for wire in self.lines.wires.values() if wire.listener == listener]:
                self.lines.figures["excluded"] += 1
                self.lines.complain(f"{wire.node} is too slow and is excluded")
                self.lines.lose(wire, End.SLOW)

    def _finish_casts(self) -> None:
        """A cast may be asked for after it was sent: leave when all have it, or after a while."""
        self._ports.clear()
        until_s = time.monotonic() + LEAVE_S
        while any(medium.sender.waiting for medium in self._media.values()) and time.monotonic() < until_s:
            self.turn(time.monotonic())
            time.sleep(0.001)

    # Lines and streams

    def _info(self, wire: Wire) -> records.Info:
        assert wire.hello is not None
        if wire.hello.role != "member":
            return super()._info(wire)
        medium = self._media[wire.bus]
        if not wire.position:
            wire.listener = f"{wire.node} {next(self._listeners)}"
            wire.position = medium.sender.add(wire.listener)
        return self.members.info(
            wire.bus, wire.hello.node, wire.hello.start, medium.stream, wire.position, wire.listener
        )

    def _rose(self, wire: Wire, info: records.Info) -> None:
        if len(info.stream) != STREAM_BYTES or info.position < 1:
            raise Malformed("a node of the carrier udp says what its stream is")
        self._media[wire.bus].listen_to(wire, info.stream, info.position, info.listener)
        if wire.fellow is not None and wire.fellow.out is wire:
            self._say_switch(wire)

    def _on_discard(self, wire: Wire) -> None:
        self._media[wire.bus].forget(wire)

    def _switch_content(self, wire: Wire) -> bytes:
        """From which packet on our casts on this bus are for it."""
        medium = self._media[wire.bus]
        medium.flush(self.lines.now_s)
        return REPORT.pack(medium.sender.next)

    def _on_switch(self, wire: Wire, content: memoryview) -> None:
        if len(content) != REPORT.size:
            raise Malformed("a switch that does not say from when")
        for stream in self._media[wire.bus].streams.values():
            if stream.wire is wire:
                stream.since = REPORT.unpack(content)[0]
        super()._on_switch(wire, content)

    def _on_bye(self, wire: Wire) -> None:
        """It left when we had reported all its casts; the last of them may be waiting here."""
        for stream in list(self._media[wire.bus].streams.values()):
            if stream.wire is wire:
                self._deliver_ready(stream)
        super()._on_bye(wire)

    def _lose(self, wire: Wire, why: str) -> None:
        self.lines.complain(f"the casts of {wire.node} cannot be made whole: {why}")
        self.lines.lose(wire, End.RESET)

    def _on_report(self, wire: Wire, content: memoryview) -> None:
        if len(content) != REPORT.size:
            raise Malformed("a report that is none")
        self._media[wire.bus].sender.on_report(wire.listener, REPORT.unpack(content)[0])

    # In

    def _deliver_ready(self, stream: Stream) -> None:
        """Blocks wait until the node has said on which bus its messages come; those of another are not for us."""
        wire, fellow = stream.wire, stream.wire.fellow
        while stream.ready and fellow is not None and fellow.into is not None:
            if self.members.broken or self.members.view_changed:
                self._settle()
            number, body = stream.ready.popleft()
            if fellow.into is wire and number >= stream.since:
                try:
                    self._take_casts(stream, memoryview(body))
                except Malformed as error:
                    self.lines.refuse(wire, str(error))
                except BaseException:
                    self.lines.lose(wire, End.RESET)  # a handler failed, and the rest of the block with it
                    raise

    def _take_casts(self, stream: Stream, body: memoryview) -> None:
        wire = stream.wire
        for kind, channel, port, content in frames.parse(body):
            if kind == frames.REMOVED:
                if content == stream.listener.encode():
                    self.lines.lose(wire, End.RESET)
            elif kind != frames.CAST:
                raise Malformed(f"a frame of kind {kind} as a cast")
            elif str(channel, "utf-8", "replace") in self.members.channels:
                self._deliver(wire.node, port, content)
            if wire.is_closed:
                return

    def _report(self, now_s: float) -> None:
        for medium in self._media.values():
            for stream in medium.streams.values():
                if (wanted := stream.receiver.report(now_s)) is not None and not stream.wire.is_closed:
                    self.lines.put(stream.wire, *frames.pack(frames.REPORT, pieces=[REPORT.pack(wanted)]))

    def _close_media(self) -> None:
        for medium in self._media.values():
            medium.close()
