"""A client of the simulation: a real end, and pushes, pulls and streams that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.gateway import Gateway, Reply
from fairlead.tunnel.packets import Abort, Kind, encode, split
from tests.tunnel.gateway.watch import Violation

if TYPE_CHECKING:
    from tests.tunnel.gateway.simulation import Simulation

from tests.tunnel.gateway.program import BODY_BYTES, HEAD, RULES, Program, stream_of


class Client:
    def __init__(self, simulation: Simulation, number: int, server: str, *, vanishes: bool) -> None:
        self.simulation = simulation
        self.number = number
        self.server = server
        self.program: Program | None = None
        self.token = ""
        self.end: End | None = None
        self.vanished = False
        self.failure = ""
        self._pushes = 0
        self._paused_until_s = 0.0
        self._stream: int | None = None
        self._uses_streams = simulation.random.random() < simulation.faults.streams
        self._stream_s = 0.0
        simulation.at(simulation.random.uniform(0.1, 3), self._open)
        if vanishes:
            simulation.at(simulation.random.uniform(3, 12), self._vanish)

    def __str__(self) -> str:
        if self.end is None or self.program is None:
            return f"client {self.number} opens"
        program = self.program
        return f"client {self.number} ({self.end.state}): wrote {program.written}, read {program.read} {self.failure}"

    @property
    def is_done(self) -> bool:
        return self.vanished or bool(self.failure) or (self.end is not None and self.end.state is State.CLOSED)

    def check_end(self) -> None:
        if self.vanished:
            return
        if self.failure or self.program is None or not self.program.is_complete:
            raise Violation(f"{self} did not end well")
        broker = self.simulation.brokers[self.server]
        other = next(
            (one for one in broker.programs.values() if one.head[:HEAD] == stream_of(self.number, "", 0)), None
        )
        if other is None or other.read != len(stream_of(self.number, "up", self.simulation.size)):
            raise Violation(f"{self}: the broker has read {other and other.read}")

    def _vanish(self) -> None:
        self.vanished = True
        if self._stream is not None:
            self._leave_stream()

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        body = encode(Kind.CONN_INIT, window=RULES.capacity)

        def ask(gateway: Gateway, key: int) -> Reply:
            reply = gateway.connect(self.server, body, f"10.0.0.{self.number}", self.simulation.now_s)
            self.simulation.watch.opened(self.server, reply)
            return reply

        self.simulation.request(ask, self._opened, timeout_s=1.0)

    def _opened(self, reply: Reply) -> None:
        if self.vanished:
            return
        if reply.status != 200:
            if reply.status not in (0, 503):
                raise Violation(f"connect was answered {reply}")
            self.simulation.at(0.7, self._open)
            return
        (answer,) = split(reply.body).packets
        self.token = answer.payload.hex()
        self.end = End(RULES, Role.CLIENT, answer.connection_id, self.simulation.now_s)
        self.program = Program(
            self.simulation,
            self.end,
            stream_of(self.number, "up", self.simulation.size),
            stream_of(self.number, "down", self.simulation.size),
        )
        self._pull()
        self._turn(self.end)

    def _turn(self, end: End) -> None:
        """Twenty times a second: the program, the clock, pushes."""
        if end is not self.end:
            return  # another one was opened in its place
        if self.is_done and end.state is not State.CLOSED:
            return
        assert self.program is not None
        now_s = self.simulation.now_s
        self.program.turn()
        self.end.on_time(now_s)
        if self.end.state is State.ABORTED:
            self.failure = self.failure or f"gave up: {self.end.reason}"
            return
        if self._uses_streams and now_s > self._stream_s:
            self._stream_s = now_s + self.simulation.random.uniform(1, 6)
            if self._stream is None:
                self._enter_stream()
            else:
                self._leave_stream()
                self._pull()
        while self._pushes < 2 and now_s >= self._paused_until_s and self.end.has_packets(now_s):
            self._push(b"".join(self.end.take_packets(BODY_BYTES, now_s)))
        if not self.end.is_done():
            self.simulation.every(0.05, lambda: self._turn(end))

    def _push(self, body: bytes) -> None:
        end = self.end
        if end is None:
            return
        connection_id, token = end.connection_id, self.token
        self.simulation.watch.sends((self.server, connection_id), body)
        if (key := self._stream) is not None:
            self.simulation.at(0.02, lambda: self._frame(key, body))
            return

        def ask(gateway: Gateway, key: int) -> Reply:
            reply = gateway.push(self.server, connection_id, token, body, self.simulation.now_s, instance="here")
            self.simulation.watch.answered(self.server, connection_id, reply, key, is_pull=False)
            return reply

        self._pushes += 1
        self.simulation.request(ask, lambda reply: self._pushed(reply, body, end), timeout_s=1.5, can_repeat=True)

    def _pushed(self, reply: Reply, body: bytes, end: End) -> None:
        self._pushes -= 1
        if self._judge(reply, end) and reply.status == 503:  # it certainly did not arrive
            self.simulation.at(0.5, lambda: self._push(body) if self.end is end else None)

    def _pull(self) -> None:
        end = self.end
        if end is None or self.vanished or self.failure or end.is_done() or self._stream is not None:
            return
        connection_id, token = end.connection_id, self.token

        def ask(gateway: Gateway, key: int) -> Reply | None:
            reply = gateway.pull(self.server, connection_id, token, 3.0, key, self.simulation.now_s, instance="here")
            self.simulation.watch.answered(self.server, connection_id, reply, key, is_pull=True)
            return reply

        self.simulation.request(ask, lambda reply: self._pulled(reply, end), timeout_s=4.0)

    def _pulled(self, reply: Reply, end: End) -> None:
        if self._judge(reply, end):
            self.simulation.at(0.0 if reply.status == 200 else 0.4, self._pull)

    def _judge(self, reply: Reply, end: End) -> bool:
        """False: there is nothing more to ask for."""
        if self.vanished or self.failure or self.end is not end:
            return False
        now_s = self.simulation.now_s
        if reply.status == 200:
            end.on_packets(split(reply.body).packets, now_s)
        elif reply.status == 503:
            self._paused_until_s = now_s + 0.5
        elif reply.status == 410:
            if end.state is State.OPENING:  # the broker never heard of it; another try may do
                self.end = self.program = None
                self.simulation.at(0.5, self._open)
            elif end.state is not State.CLOSED:
                self.failure = f"gone: {Abort.of(split(reply.body).packets[0].payload)}"
            return False
        elif reply.status:
            raise Violation(f"{self} was answered {reply}")
        return True

    # -- WebSocket ----------------------------------------------------------------------------------------------------

    def _enter_stream(self) -> None:
        gateway, end, key = self.simulation.gateway, self.end, next(self.simulation.keys)
        if gateway is None or end is None:
            return
        self.simulation.streams[key] = self
        self._stream = key
        if gateway.stream(self.server, end.connection_id, self.token, key, self.simulation.now_s) is not None:
            del self.simulation.streams[key]
            self._stream = None
        self.simulation.settle()

    def _frame(self, key: int, body: bytes) -> None:
        if self._stream == key and self.simulation.gateway is not None:
            self.simulation.gateway.on_stream(key, body, self.simulation.now_s)
            self.simulation.settle()

    def later_from_stream(self, key: int, body: bytes) -> None:
        assert self.end is not None
        if self._stream == key:
            self.simulation.watch.on_stream((self.server, self.end.connection_id), body)
        self.simulation.at(0.02, lambda: self._from_stream(key, body))

    def _from_stream(self, key: int, body: bytes) -> None:
        if self._stream == key and self.end is not None:
            self.end.on_packets(split(body).packets, self.simulation.now_s)

    def _leave_stream(self) -> None:
        assert self._stream is not None
        key, self._stream = self._stream, None
        del self.simulation.streams[key]
        if self.simulation.gateway is not None:
            self.simulation.gateway.forget(key, self.simulation.now_s)

    def stream_closed(self) -> None:
        """By the gateway."""
        assert self._stream is not None
        del self.simulation.streams[self._stream]
        self._stream = None
        self.simulation.at(0.1, self._pull)
