"""What one cycle costs a message manager's loop: a STORE of a batch, its STORED and DELIVER, the SETTLE of it.

    python benchmarks/micro/message_manager.py [--batch 8] [--size 1024] [--cycles 3000] [--data DIRECTORY]

The real loop, journal and links, turned by hand in this process; nobody else takes part, so this is what the loop's
thread spends, in CPU time, with everything in the processor's caches. Writing and syncing is the journal's thread's.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from fairlead.cluster.demuxing import scan
from fairlead.cluster.edge.message_manager import MessageManager
from fairlead.cluster.outgoing import Link
from fairlead.runtime import config as configuring
from fairlead.runtime.control import Start
from fairlead.store import layout
from fairlead.store.edge.segment import create_counters
from fairlead.store.memory import MODE
from fairlead.wire import durable
from fairlead.wire.entry_codec import encode_many

MANY = 1 << 40


class Control:
    """A supervisor that says nothing."""

    lost = False

    def fileno(self) -> int:
        return -1

    def _nothing(self, *args: Any, **facts: Any) -> None: ...

    log = send = answer = _nothing


class Manager:
    """A connection manager with one client, whose uid is 1."""

    def __init__(self, turn: Any, path: Path) -> None:
        self._turn = turn
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(path))
        self.sock.setblocking(False)
        self._buffer = bytearray()
        self.ask(0, do="hello", manager=0, generation=1, pid=os.getpid())

    def send(self, uid: int, kind: int, **facts: Any) -> None:
        link = Link(1)
        link.frame(uid, uid, kind, **facts)
        data = memoryview(b"".join(link.out))
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                self._turn()

    def receive(self) -> list[tuple[int, int, bytes]]:
        """Kind, number and body of what has come."""
        try:
            self._buffer += self.sock.recv(1 << 21)
        except BlockingIOError:
            return []
        frames, used = scan(self._buffer, 0, len(self._buffer))
        found = [(frame[2], frame[4], bytes(self._buffer[frame[9] : frame[10]])) for frame in frames]
        for kind, _, body in found:
            if kind == durable.KIND_COMMAND:
                answer = {"do": "announced", "number": msgspec.json.decode(body)["number"]}
                self.send(0, durable.KIND_COMMAND, body=msgspec.json.encode(answer))
        del self._buffer[:used]
        return found

    def ask(self, uid: int, **facts: Any) -> dict[str, Any]:
        self.send(uid, durable.KIND_COMMAND, number=1, body=msgspec.json.encode(facts))
        while True:
            self._turn()
            for kind, _, body in self.receive():
                if kind == durable.KIND_ANSWER:
                    found: dict[str, Any] = msgspec.json.decode(body)
                    return found


def measure(data: Path, batch: int, size: int, cycles: int) -> tuple[float, float, float]:
    """Of one cycle: microseconds of the loop's thread, turns, syncs."""
    store = data / "store"
    store.mkdir(parents=True)
    (data / "run").mkdir()
    create_counters(store / layout.counters_name("message-manager"), index=0, mode=MODE, server_id=1).close()
    config = configuring.load(None, {}, {"server.data": str(data)})
    start = Start("message-manager", 0, config, store, 0, 1, 1, "active", {})
    manager = MessageManager(Control(), start)  # type: ignore[arg-type]
    manager.open()
    spent = turns = 0.0

    def turn() -> None:
        nonlocal spent, turns
        began = time.thread_time()
        manager._turn()
        spent += time.thread_time() - began
        turns += 1

    path = data / "run" / "mm-0.sock"
    sending, taking = Manager(turn, path), Manager(turn, path)
    session = sending.ask(1, do="session", ack="individual")
    taking.ask(1, do="session", ack="individual")
    made = {"session": 1, "destination": "q", "kind": "queue", "create": True}
    producer = sending.ask(1, do="produce", **made)["producer"]
    consumer = taking.ask(1, do="consume", messages=MANY, bytes=MANY, **made)["consumer"]
    entries = encode_many([bytes(size)] * batch)
    order, stored, warm = 1, 0, cycles // 10 + 1
    for cycle in range(warm + cycles):
        if cycle == warm:
            assert manager._engine is not None
            spent = turns = 0.0
            synced = manager._engine.journal.syncs
        first = cycle * batch + 1
        head = durable.STORE_HEAD.pack(batch, 0, 1, session["ids"][0] + first - 1)
        sending.send(1, durable.KIND_STORE, number=producer, correlation=first, body=head + entries)
        delivered = 0
        while stored < first + batch - 1 or delivered < batch:
            turn()
            for kind, _, body in sending.receive():
                if kind == durable.KIND_STORED:
                    stored += sum(item[1] for item in durable.STORED_ITEM.iter_unpack(body))
            for kind, _, body in taking.receive():
                if kind == durable.KIND_DELIVER:
                    delivered += durable.CHUNK.unpack_from(body)[1]
        items = durable.SETTLE_ITEM.pack(order, order + batch, durable.ACKNOWLEDGE, 0)
        flags = getattr(durable, "FLAG_PATIENT", 0)
        taking.send(1, durable.KIND_SETTLE, number=consumer, peer=cycle + 1, flags=flags, body=items)
        order += batch
        turn()
    result = spent / cycles * 1e6, turns / cycles, (manager._engine.journal.syncs - synced) / cycles  # type: ignore[union-attr]
    sending.sock.close()
    taking.sock.close()
    manager.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--cycles", type=int, default=3000)
    parser.add_argument("--data", type=Path, default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.data) as folder:
        spent, turns, syncs = measure(Path(folder) / "data", asked.batch, asked.size, asked.cycles)
    print(f"cycles of {asked.batch} messages of {asked.size} bytes: {spent:.0f} us of the loop's thread each,")
    print(f"{spent / asked.batch:.2f} us a message; {turns:.2f} turns and {syncs:.2f} syncs a cycle")


if __name__ == "__main__":
    main()
