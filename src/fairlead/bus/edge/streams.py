"""The bus over streams: carriers `tcp` and `local`, and what `udp` sends to one node only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fairlead.bus import frames, records, relay
from fairlead.bus.config import MESSAGE_BYTES_MAX, BusConfig
from fairlead.bus.edge import sockets
from fairlead.bus.edge.lines import Lines
from fairlead.bus.edge.outflow import HELD_S
from fairlead.bus.edge.telling import Mirror, PeersFile
from fairlead.bus.edge.wire import Wire
from fairlead.bus.faults import FaultSwitch
from fairlead.bus.frames import FRAME, Malformed
from fairlead.bus.membership import End, Membership
from fairlead.bus.port import Bytes, Handler, View

MESSAGE, CAST = frames.MESSAGE, frames.CAST
PART_S = 0.3


class StreamBus:
    """See port.Bus. Handlers are called within `turn` only, and the view and `broken` before what follows them."""

    def __init__(self, config: BusConfig) -> None:
        config.check()
        self.node = config.node
        self.carrier = config.carrier
        self.faults: FaultSwitch | None = config.faults
        self.members: Membership[Wire] = Membership(
            config.node, config.start, tuple(bus.name for bus in config.buses), dict(config.tag), time.time_ns
        )
        self.lines = Lines(config, self.members, self._take, self._introduce)
        self.counters = {"sent": 0, "received": 0, "relayed": 0, "unheard": 0, "broken": 0}
        self._config = config
        self._tick_s = min(0.1, config.detection_s / 8)
        self._next_tick_s = 0.0
        self._ports: dict[bytes, Handler] = {}
        self._on_view: list[Callable[[View], None]] = []
        self._on_broken: list[Callable[[str], None]] = []
        self._on_dead: list[Callable[[str, int], None]] = []
        self._to_us: list[tuple[bytes, bytes]] = []
        self._relayed = relay.Numbers()
        self._mirror = Mirror(config.node, self.lines)
        self._peers_file = PeersFile(config)

    # Bus

    @property
    def view(self) -> View:
        return self.members.view

    def fileno(self) -> int:
        return self.lines.epoll.fileno()

    def addresses(self) -> Mapping[str, str]:
        """Where this node listens, by bus."""
        return self.lines.addresses

    def listen(self, port: str, handler: Handler) -> None:
        self._ports[port.encode()] = handler

    def deaf(self, port: str) -> None:
        self._ports.pop(port.encode(), None)

    def join(self, channel: str) -> None:
        if channel not in self.members.channels:
            self.members.channels.add(channel)
            self._inform()

    def leave(self, channel: str) -> None:
        if channel in self.members.channels:
            self.members.channels.discard(channel)
            self._inform()

    def send(self, to: str, port: str, *pieces: Bytes) -> bool:
        fellow = self.members.fellows.get(to)
        if fellow is None:
            if to == self.node:
                self._to_us.append((port.encode(), b"".join(pieces)))
                return True
            return relay.is_control(port) and self._send_distant(to, port, pieces)
        wire = fellow.out
        if wire is None:
            return False
        self._check(pieces)
        self._send_on(wire, *frames.pack(MESSAGE, "", port, pieces))
        if self.lines.taps:
            self._mirror.add(wire.bus, to, port, pieces)
        return True

    def cast(self, channel: str, port: str, *pieces: Bytes) -> None:
        self._check(pieces)
        wires = [one.out for one in self.members.fellows.values() if one.out is not None and channel in one.channels]
        if wires:
            self._cast_on(wires, *frames.pack(CAST, channel, port, pieces))
        if self.lines.taps:
            for bus in sorted({wire.bus for wire in wires}):
                self._mirror.add(bus, f"#{channel}", port, pieces)
        if relay.is_control(port):
            for node in self.members.distant_listeners(channel):
                self._send_distant(node, port, pieces)

    def tag(self, key: str, value: Any) -> None:
        if value is None:
            self.members.tag.pop(key, None)
        else:
            self.members.tag[key] = value
        self.members.refresh()
        self._inform()

    def on_view(self, handler: Callable[[View], None]) -> None:
        self._on_view.append(handler)

    def on_broken(self, handler: Callable[[str], None]) -> None:
        self._on_broken.append(handler)

    def on_dead(self, handler: Callable[[str, int], None]) -> None:
        """Called with name and start of a node whose keeper says that it died."""
        self._on_dead.append(handler)

    def backlog(self, to: str) -> int:
        fellow = self.members.fellows.get(to)
        return fellow.out.backlog if fellow is not None and fellow.out is not None else 0

    def turn(self, now_s: float) -> None:
        self.lines.turn(now_s)
        if self._is_over():
            return
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + self._tick_s
            self.lines.tick(now_s)
            self.members.tick(now_s)
        self._settle()
        if self._to_us:
            mine, self._to_us = self._to_us, []
            for port, message in mine:
                self._deliver(self.node, port, memoryview(message))
        if self._config.faults is not None and not self._is_over():
            self.lines.out.release_due()
        self.flush()

    def flush(self) -> None:
        self._mirror.flush()
        self.lines.out.flush()

    def patience_s(self, now_s: float) -> float:
        if self._to_us or self.members.broken or self.members.view_changed or self.members.redial:
            return 0.0
        patience_s = max(0.0, self._next_tick_s - now_s)
        return min(patience_s, HELD_S) if self.lines.out.is_holding else patience_s

    def close(self) -> None:
        if self._is_over():
            return
        for wire in list(self.lines.wires.values()):
            if wire.is_up:
                self.lines.put(wire, *frames.pack(frames.BYE))
        self.flush()
        self._part()
        self.drop()

    def drop(self) -> None:
        """Close without a word, as the kernel does for a process that died."""
        if not self._is_over():
            self.lines.close()

    def _is_over(self) -> bool:
        return self.lines.epoll.closed

    def figures(self) -> dict[str, int]:
        """For status and counters."""
        return {**self.counters, **self.lines.figures}

    # Out

    @staticmethod
    def _check(pieces: tuple[Bytes, ...]) -> None:
        if (size := sum(map(len, pieces))) > MESSAGE_BYTES_MAX:
            raise ValueError(f"a message of {size} bytes is too large for the bus: at most {MESSAGE_BYTES_MAX}")

    def _cast_on(self, wires: list[Wire], packed: list[bytes], size: int) -> None:
        for wire in wires:
            self._send_on(wire, packed, size)

    def _send_on(self, wire: Wire, packed: list[bytes], size: int) -> None:
        self._say_switch(wire)
        self.counters["sent"] += 1
        self.lines.put(wire, packed, size)

    def _say_switch(self, wire: Wire) -> None:
        if not wire.said_switch:
            wire.said_switch = True
            self.lines.put(wire, *frames.pack(frames.SWITCH, pieces=[self._switch_content(wire)]))

    def _switch_content(self, wire: Wire) -> bytes:
        return b""

    def _send_distant(self, to: str, port: str, pieces: tuple[Bytes, ...]) -> bool:
        way = self.members.route(to)
        fellow = self.members.fellows.get(way) if way is not None else None
        if fellow is None or fellow.out is None:
            return False
        head = relay.pack(self.node, self._config.start, self._relayed.next(to))
        self._check(pieces)
        self._send_on(fellow.out, *frames.pack(frames.RELAY, to, port, (head, *pieces)))
        return True

    def _introduce(self, wire: Wire) -> None:
        """The first words on a line whose other end is known."""
        self._inform_one(wire)

    def _inform(self) -> None:
        """Tell everybody what is new about us."""
        for wire in list(self.lines.wires.values()):
            if wire.is_up or wire in self.lines.taps:
                self._inform_one(wire)

    def _inform_one(self, wire: Wire) -> None:
        assert wire.hello is not None
        info = records.encode(self._info(wire))
        if info != wire.info_sent:
            if len(info) > records.INFO_BYTES_MAX:
                raise ValueError(f"tags and channels of {len(info)} bytes are too much to tell everybody")
            wire.info_sent = info
            self.lines.put(wire, *frames.pack(frames.INFO, pieces=[info]))
        if len(self._config.buses) > 1 and wire.is_up:
            distant = records.encode(self.members.distant(wire.bus))
            if distant != wire.distant_sent:
                wire.distant_sent = distant
                self.lines.put(wire, *frames.pack(frames.DISTANT, pieces=[distant]))

    def _info(self, wire: Wire) -> records.Info:
        assert wire.hello is not None
        return self.members.info(wire.bus, wire.hello.node, wire.hello.start)

    def _part(self) -> None:
        """Write what is left, then read until the others have closed: closing before would take our last words back.

        Nobody waits long for those who do not read; for them this is a break, and no orderly leave.
        """
        left = {wire for wire in self.lines.wires.values() if wire.is_up}
        until_s = time.monotonic() + PART_S
        while left and time.monotonic() < until_s:
            left = {wire for wire in left if not wire.part()}
            time.sleep(0.001)

    # In

    def _take(self, wire: Wire, body: memoryview) -> None:
        """A block has come: its messages go to their ports."""
        if self.members.broken or self.members.view_changed:
            self._settle()
        at, end = 0, len(body)
        fellow, sender = wire.fellow, wire.node
        while at < end:
            if end - at < FRAME.size:
                raise Malformed("a block ends within the head of a frame")
            size, kind, to_size, port_size = FRAME.unpack_from(body, at)
            at += FRAME.size
            port_at = at + to_size
            content_at = port_at + port_size
            frame_end = at + size
            if frame_end > end or content_at > frame_end:
                raise Malformed("a frame is longer than its block")
            if kind <= CAST:
                is_ours = kind == MESSAGE or str(body[at:port_at], "utf-8", "replace") in self.members.channels
                if is_ours and fellow is not None and fellow.into is wire:
                    self._deliver(sender, bytes(body[port_at:content_at]), body[content_at:frame_end])
            else:
                self._control(
                    wire, kind, bytes(body[at:port_at]), bytes(body[port_at:content_at]), body[content_at:frame_end]
                )
                fellow = wire.fellow
            if wire.is_closed:
                return
            at = frame_end

    def _deliver(self, sender: str, port: bytes, message: memoryview) -> None:
        handler = self._ports.get(port)
        if handler is None:
            self.counters["unheard"] += 1
            return
        self.counters["received"] += 1
        handler(sender, message)

    def _control(self, wire: Wire, kind: int, to: bytes, port: bytes, content: memoryview) -> None:
        try:
            if kind == frames.INFO:
                self._on_info(wire, records.decode_info(content))
            elif kind == frames.DEAD:
                self._on_death(wire, records.decode_death(content))
            elif kind == frames.ACCEPT:
                self._on_accept(wire)
            elif kind == frames.REFUSE:
                self._on_refuse(wire, str(content[:64], "utf-8", "replace"))
            elif wire.fellow is None:
                self._on_unattached(wire, kind, content)
            elif kind == frames.SWITCH:
                self._on_switch(wire, content)
            elif kind == frames.BYE:
                self._on_bye(wire)
            elif kind == frames.DISTANT:
                self.members.told_distant(wire.node, records.decode_distant(content))
            elif kind == frames.RELAY:
                self._on_relay(wire, to, port, content)
            elif kind == frames.REPORT:
                self._on_report(wire, content)
            elif kind != frames.PING:
                raise Malformed(f"a frame of the unknown kind {kind}")
        except msgspec.MsgspecError as error:
            raise Malformed(str(error)) from None
        self._settle()

    def _on_unattached(self, wire: Wire, kind: int, content: memoryview) -> None:
        """From those who are no members: heralds, taps, lines that do not count yet."""
        if kind != frames.PING:
            raise Malformed(f"a frame of kind {kind} before the line was accepted")

    def _on_accept(self, wire: Wire) -> None:
        if not wire.verdict_open or wire.hello is None:
            raise Malformed("it accepts what was not its to accept")
        wire.verdict_open = False
        self.members.accepted(wire, wire.bus, wire.hello)

    def _on_switch(self, wire: Wire, content: memoryview) -> None:
        self.members.switch(wire, wire.node)

    def _on_bye(self, wire: Wire) -> None:
        self.lines.lose(wire, End.LEFT)

    def _on_refuse(self, wire: Wire, why: str) -> None:
        if why != "busy":
            self.lines.complain(f"{wire.node} refuses us: {why}")
        self.lines.lose(wire, End.RESET)

    def _on_info(self, wire: Wire, info: records.Info) -> None:
        if wire.hello is None or wire.hello.role != "member":
            raise Malformed("only members say what they are")
        if wire.verdict_open:
            raise Malformed("it speaks before it has accepted the line")
        address = sockets.reachable(wire.hello.address, wire.socket)
        rose = self.members.informed(wire, wire.bus, wire.node, info, address)
        if rose:
            wire.is_up = True
            wire.fellow = self.members.fellows[wire.node]
        self.lines.heard(wire.bus, info.peers)
        if rose:
            self.lines.call_due()
            self._rose(wire, info)
        if len(self._config.buses) > 1:
            self._inform()  # those on our other buses hear of it from us

    def _rose(self, wire: Wire, info: records.Info) -> None:
        """A line is up; `udp` has more to do then."""

    def _on_report(self, wire: Wire, content: memoryview) -> None:
        raise Malformed("a report without multicasts")

    def _on_relay(self, wire: Wire, to: bytes, port: bytes, content: memoryview) -> None:
        origin, start, number, message = relay.parse(content)
        name, target = str(port, "utf-8", "replace"), str(to, "utf-8", "replace")
        if not relay.is_control(name):
            raise Malformed(f"port {name[:64]!r} is not relayed")
        if target == self.node:
            if self._relayed.is_new(origin, start, number):
                self.members.came_by(origin, wire.node)
                self._deliver(origin, port, message)
            return
        fellow = self.members.fellows.get(target)
        if origin == wire.node and fellow is not None and fellow.out is not None:
            self.counters["relayed"] += 1
            self._send_on(fellow.out, *frames.pack(frames.RELAY, target, name, (content,)))

    def _on_death(self, wire: Wire, death: records.Death) -> None:
        self.lines.put(wire, *frames.pack(frames.HEARD))
        if death.node == self.node:
            return
        self._config.log("info", f"{death.node} has died, says its keeper", {"start": death.start})
        self.members.dead(death.node, death.start)
        self._settle()
        for handler in self._on_dead:
            handler(death.node, death.start)

    def _settle(self) -> None:
        """Tell what the membership has found."""
        members = self.members
        while not self._is_over() and (members.broken or members.view_changed or members.ended or members.redial):
            self.lines.discard_ended()
            if members.redial:
                for bus, address in members.redial:
                    self.lines.hurry(bus, address)
                members.redial.clear()
                self.lines.call_due()
            broken, members.broken = members.broken, []
            for name in broken:
                self.counters["broken"] += 1
                self._config.log("info", f"order from {name} is lost and begins anew", {})
                for tell_broken in self._on_broken:
                    tell_broken(name)
            if members.view_changed:
                members.view_changed = False
                self._inform()
                self._peers_file.write(members)
                for tell_view in self._on_view:
                    tell_view(members.view)
