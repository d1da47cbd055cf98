"""A bare client that scans, frame by frame: what it is sent can be looked at, and it can misbehave."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from fairlead.broker.answers import frame
from fairlead.wire.column_batch import BODY, OFFSETS, ORDER_NUMBER, VALUES
from fairlead.wire.column_codec import Columns, parse
from fairlead.wire.durable import (
    KIND_ANSWER,
    KIND_COLUMNS,
    KIND_MORE,
    KIND_NOTICE,
    KIND_STORE,
    KIND_STORED,
    STORE_HEAD,
    STORED_ITEM,
)
from fairlead.wire.entry_codec import encode
from fairlead.wire.kinds import FLAG_LAST
from tests.processes.test_durable_link import Talker

EVERYTHING = 2**15 - 1
ORDER_AND_BODY = 1 << ORDER_NUMBER | 1 << BODY


class Ended(Exception):
    """A NOTICE said that a scan cannot go on."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self.code: str = facts["code"]
        self.text: str = facts["text"]
        self.handle: int = facts["handle"]


class Scanner(Talker):
    """Scans and sends."""

    def sender(self, destination: str, kind: str = "queue", **parameters: Any) -> Sender:
        return Sender(self, destination, kind, parameters)

    def more(self, scan: int, batches: int, *, stop: bool = False) -> None:
        self.send(frame(KIND_MORE, number=scan, correlation=batches, flags=FLAG_LAST if stop else 0))

    def scan(self, destination: str, first: int, beyond: int, ahead: int = 2, **facts: Any) -> Iterator[Columns]:
        """All batches of a scan."""
        facts = {"columns": ORDER_AND_BODY, **facts}
        opened = self.told("scan", destination=destination, first=first, beyond=beyond, **facts)
        number = opened["scan"]
        self.more(number, ahead)
        while True:
            batch = self.batch(number)
            yield batch
            if batch.end:
                return
            self.more(number, 1)

    def batch(self, scan: int) -> Columns:
        """The next whole batch; its pieces have to lie behind one another."""
        data = bytearray()
        number = 0
        while True:
            found = self.frame()
            if found.kind == KIND_NOTICE and json.loads(found.body)["event"] == "ended":
                raise Ended(json.loads(found.body))
            if found.kind != KIND_COLUMNS or found.number != scan:
                continue
            assert found.peer == len(data)
            assert len(found.body) <= 1 << 20
            assert not number or found.correlation == number
            number = found.correlation
            data += found.body
            if found.flags & FLAG_LAST:
                return parse(data)

    def rows(self, *args: Any, **facts: Any) -> list[tuple[int, bytes]]:
        """Order number and body of everything a scan shows."""
        return [row for batch in self.scan(*args, **facts) for row in rows_of(batch)]

    def code(self, do: str, **facts: Any) -> str:
        """Of the ERROR this has to be answered with."""
        found = self.ask(do, **facts)
        assert found.kind != KIND_ANSWER, found
        return found.code


class Sender:
    """A producer of a session of its own."""

    def __init__(self, client: Scanner, destination: str, kind: str, parameters: dict[str, Any]) -> None:
        self._client = client
        session = client.told("session", ack="individual")
        self._session, self._ids = session["session"], session["ids"][0]
        facts = {"destination": destination, "kind": kind, "create": True, "parameters": parameters}
        self._producer = client.told("produce", session=self._session, **facts)["producer"]
        self._sent = 0

    def send(self, bodies: Iterable[bytes], *, each: int = 1, **options: Any) -> None:
        """In records of so many messages; waits until all are safe."""
        entries = [encode(body, **options) for body in bodies]
        first = self._sent
        for at in range(0, len(entries), each):
            some = entries[at : at + each]
            head = STORE_HEAD.pack(len(some), 0, int(time.time() * 1000), self._ids + self._sent)
            store = frame(KIND_STORE, number=self._producer, correlation=self._sent + 1, body=head + b"".join(some))
            self._client.send(store)
            self._sent += len(some)
        stored = 0
        while stored < self._sent - first:
            body = self._client.expect(KIND_STORED).body
            for _, count, status, _, _ in STORED_ITEM.iter_unpack(body):
                assert status in (0, 1), status
                stored += count


def rows_of(batch: Columns) -> list[tuple[int, bytes]]:
    orders = batch.buffers[ORDER_NUMBER, VALUES].cast("q")
    offsets, values = batch.buffers[BODY, OFFSETS].cast("i"), batch.buffers[BODY, VALUES]
    return [(orders[n], bytes(values[offsets[n] : offsets[n + 1]])) for n in range(batch.rows)]
