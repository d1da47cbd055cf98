"""A scripted source for tests of feeds: numbered messages over UDP that can be dropped, doubled, delayed on the way.

::

    with FeedSource() as source:
        ends = source.add("one")           # ends.table() is that adapter's [source]
        source.drop("one", 50, 59)         # never on its lines, nor from its rewind server
        source.wait_sent(source.send(1000))

`FeedSourceProcess` is the same in a process of its own, for figures that should not share a test's processor time.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from fairlead.feeds.edge.sources.rewind_server import Address, Audience
from fairlead.feeds.edge.sources.transmitter import BURST_RATE, Transmitter
from fairlead.feeds.sources import mold
from fairlead.feeds.sources.day import TradingDay
from fairlead.feeds.sources.mold_codec import pack
from fairlead.feeds.sources.runs import Run, run_of

__all__ = ["Ends", "FeedSource", "FeedSourceProcess"]

Range = tuple[int, int]


class Ends(NamedTuple):
    """Where one adapter listens, and whom it asks for what it missed."""

    listen: list[str]
    rewind: list[str]

    def table(self, **more: Any) -> dict[str, Any]:
        """A [source] table for it."""
        return {"kind": "udp", "id": "day", "listen": self.listen, "rewind": self.rewind} | more


class Faults:
    """What happens to packets on their way to one adapter."""

    def __init__(self) -> None:
        self.dropped: list[tuple[int, int, str]] = []
        self.refused: list[Range] = []
        self.delay_s = {"A": 0.0, "B": 0.0}
        self.copies = 1
        self.reorder = 0
        self.is_cut = {"A": False, "B": False}
        self.answers = True


class FeedSource(Transmitter):
    """A made-up trading day (or the bodies handed in), sent to any number of adapters, each with lines of its own."""

    def __init__(
        self,
        *,
        seed: int = 1,
        malformed: int = 0,
        symbols: int = 100,
        messages: int = 10**9,
        session: str = "DAY0000001",
        per_packet: int = 20,
        heartbeat_s: float = 0.1,
    ) -> None:
        self.day = TradingDay(seed=seed, messages=messages, symbols=symbols, malformed=malformed)
        self._own: dict[int, bytes] = {}
        self._faults: dict[str, Faults] = {}
        self._later: list[tuple[float, int, str, int, bytes]] = []
        self._counted = 0
        super().__init__(self._messages, session=session, per_packet=per_packet, heartbeat_s=heartbeat_s)

    def _messages(self, first: int, count: int) -> Run:
        run = self.day.run(first, count)
        own = {sequence: self._own[sequence] for sequence in range(run.first, run.last + 1) if sequence in self._own}
        if not own:
            return run
        return run_of(run.first, [own.get(n, body) for n, body in enumerate(run.bodies(), run.first)])

    # -- scripting

    def add(self, name: str, lines: int = 2, rewind: bool = True, to: Sequence[Address] = ()) -> Ends:
        """An adapter: free ports for its lines (A, B), or these addresses; and a rewind server of its own."""
        ports = list(to) or [("127.0.0.1", port) for port in free_ports(lines)]
        with self._lock:
            self._faults[name] = Faults()
        audience = self.add_audience(name, ports, ("127.0.0.1", 0) if rewind else None)
        return Ends([f"{host}:{port}" for host, port in ports], audience.rewind)

    def send_bodies(self, bodies: Sequence[bytes], rate: float = BURST_RATE) -> int:
        """Send these instead of the day's next messages; the sequence of the last one."""
        with self._lock:
            for place, body in enumerate(bodies, self._until + 1):
                self._own[place] = bytes(body)
            return self.send(len(bodies), rate)

    def bodies(self, first: int, last: int) -> list[bytes]:
        """What was (or will be) sent under these sequences."""
        return self._messages(first, last - first + 1).bodies()

    def drop(self, name: str, first: int, last: int, lines: str = "AB", rewind: bool = True) -> None:
        """These never come on the lines named; with `rewind` they are not to be had again either."""
        with self._lock:
            self._faults[name].dropped.append((first, last, lines))
            if rewind:
                self._faults[name].refused.append((first, last))

    def cut(self, name: str, lines: str = "AB", on: bool = True) -> None:
        """Nothing at all comes on these lines, heartbeats neither."""
        with self._lock:
            for line in lines:
                self._faults[name].is_cut[line] = on

    def answering(self, name: str, on: bool) -> None:
        """Does its rewind server answer?"""
        with self._lock:
            self._faults[name].answers = on

    def hang_up(self, name: str) -> None:
        """End its TCP connections."""
        with self._lock:
            audience = self.audiences[name]
            for connection in audience.connections.values():
                connection.sock.close()
            audience.connections.clear()

    def delay(self, name: str, seconds: float, lines: str = "AB") -> None:
        with self._lock:
            for line in lines:
                self._faults[name].delay_s[line] = seconds

    def duplicate(self, name: str, copies: int = 2) -> None:
        with self._lock:
            self._faults[name].copies = copies

    def reorder(self, name: str, distance: int) -> None:
        """Every other packet comes about so many packets late; 0 ends it."""
        with self._lock:
            self._faults[name].reorder = distance

    def reset(self, session: str) -> None:
        """Count afresh from 1 in a new session, without a word about the old one; all drops are forgotten."""
        with self._lock:
            self._until = self.sent = 0
            self._own.clear()
            for faults in self._faults.values():
                faults.dropped.clear()
                faults.refused.clear()
            for audience in self.audiences.values():
                for connection in audience.connections.values():
                    connection.follows = min(connection.follows, 1)
            self.session = session
            self._pace(self._rate)
        self.wake()

    def garbage(self, name: str, packet: bytes, line: str = "A") -> None:
        """Any bytes at all, on one of its lines."""
        with self._lock:
            super().carry(self.audiences[name], "AB".index(line), packet)

    # -- on the way

    def transmit(self, run: Run, now_s: float) -> None:
        for audience in self.audiences.values():
            faults = self._faults[audience.name]
            for line in range(len(audience.lines)):
                cuts = [(first, last) for first, last, lines in faults.dropped if "AB"[line] in lines]
                for piece in _without(run, cuts):
                    packed = pack(self.session_bytes(), piece.first, piece.lengths, piece.data, self._per_packet)
                    for packet in packed:
                        self.carry(audience, line, packet)
        self._last_packet_s = now_s

    def carry(self, audience: Audience, line: int, packet: bytes) -> None:
        faults = self._faults[audience.name]
        name = "AB"[line]
        if faults.is_cut[name]:
            return
        self._counted += 1
        delay_s = faults.delay_s[name]
        if faults.reorder and self._counted % 2:
            delay_s += 0.0005 * faults.reorder
        for _ in range(faults.copies):
            if delay_s:
                due_s = time.monotonic() + delay_s
                heapq.heappush(self._later, (due_s, self._counted, audience.name, line, packet))
            else:
                super().carry(audience, line, packet)

    def on_turn(self, now_s: float) -> None:
        while self._later and self._later[0][0] <= now_s:
            _, _, name, line, packet = heapq.heappop(self._later)
            super().carry(self.audiences[name], line, packet)

    def answer(self, audience: Audience, question: bytes) -> list[bytes]:
        faults = self._faults[audience.name]
        if not faults.answers:
            return []
        answers = []
        for packet in super().answer(audience, question):
            session, first, _, lengths, data = mold.split(packet)
            for piece in _without(Run(first, lengths, data), faults.refused):
                answers += pack(session, piece.first, piece.lengths, piece.data)
        return answers


def _without(run: Run, cuts: Sequence[Range]) -> list[Run]:
    pieces = [run]
    for first, last in cuts:
        pieces = [
            part for piece in pieces for part in (piece.cut(0, first - 1), piece.cut(last + 1, piece.last)) if part.size
        ]
    return pieces


def free_ports(count: int) -> list[int]:
    """UDP ports on 127.0.0.1 that nobody uses at the moment."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]


class FeedSourceProcess:
    """A FeedSource in a process of its own: the same methods, and `sent`."""

    MODULE = "fairlead.testing.feed_source"
    METHODS = frozenset(
        {"add", "send", "run", "pause", "wait_sent", "heartbeats", "end_session", "drop", "cut", "answering", "delay"}
        | {"duplicate", "hang_up", "reorder", "reset"}
    )

    def __init__(self, **arguments: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.MODULE, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __getattr__(self, name: str) -> Any:
        if name not in self.METHODS:
            raise AttributeError(name)
        return lambda *args, **named: self._ask(name, args, named)

    def add(self, name: str, lines: int = 2, rewind: bool = True) -> Ends:
        return Ends(*self._ask("add", (name, lines, rewind), {}))

    @property
    def sent(self) -> int:
        return int(self._ask("sent", (), {}))

    @property
    def pid(self) -> int:
        return self._process.pid

    def _ask(self, method: str, args: Sequence[Any], named: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([method, list(args), named]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the source has ended with {self._process.wait()}")
        is_good, result = json.loads(line)
        if not is_good:
            raise RuntimeError(f"the source could not {method}: {result}")
        return result

    def close(self) -> None:
        """Closing its input ends it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main(kind: type[FeedSource] = FeedSource) -> None:
    """Do what is asked on standard input, a JSON list a line: method, arguments, named arguments."""
    with kind(**json.loads(sys.argv[1])) as source:
        for line in sys.stdin:
            method, args, named = json.loads(line)
            try:
                result = source.sent if method == "sent" else getattr(source, method)(*args, **named)
            except Exception as error:
                print(json.dumps([False, f"{type(error).__name__}: {error}"]), flush=True)
            else:
                print(json.dumps([True, result]), flush=True)


if __name__ == "__main__":
    main()
