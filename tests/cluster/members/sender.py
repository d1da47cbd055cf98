"""A client of the members' rig that sends numbered messages and knows which are confirmed."""

from __future__ import annotations

import time

from tests.cluster.members.rig import Client, Lost, until


class Sender:
    """Sends numbered messages one after another, keeps what is not confirmed, resumes and repeats like a library."""

    def __init__(self, client: Client, queue: str = "orders") -> None:
        self.client = client
        self.queue = queue
        self.sent = 0
        self.confirmed = 0
        client.connect()
        client.open()
        self.producer = client.producer(queue)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            self.client.send(self.producer, self.sent, b"%d" % self.sent)

    def fill(self, count: int) -> None:
        """Larger ones, in batches."""
        for first in range(self.sent + 1, self.sent + count + 1, 100):
            self.client.send(self.producer, first, *(b"%d" % n + bytes(1000) for n in range(first, first + 100)))
            self.sent += 100
            self.client.turn(0.0)
        self.confirm_all()

    def bring(self, count: int) -> None:
        """The same, also if the bus of a busy machine took us for lost meanwhile."""
        try:
            self.fill(count)
        except Lost:
            self.go_on()

    def hear(self) -> None:
        for first, count, _ in self.client.stored():
            assert first == self.confirmed + 1, "confirmed out of order"
            self.confirmed = first + count - 1

    def confirm_all(self) -> None:
        def done() -> bool:
            self.hear()
            if self.client.served is None:
                raise Lost
            return self.confirmed == self.sent

        until(done, f"all {self.sent} confirmed", step=self.client.turn)

    def go_on(self, other_than: str = "") -> float:
        """After an interruption: resume, learn what was accepted, repeat the rest. When the group answered again."""
        while True:
            try:
                self.client.connect(other_than)
                accepted = self.client.open(resume=True)["accepted"].get(self.queue, 0)
                back_s = time.monotonic()
                assert accepted >= self.confirmed, "a confirmed message is not there"
                self.producer = self.client.producer(self.queue)
                self.confirmed, rest = accepted, self.sent
                self.sent = accepted
                self.send(rest - accepted)
                self.confirm_all()
                return back_s
            except Lost:
                self.client.turn()

    def check(self) -> None:
        """Everything confirmed is there, in order, once."""
        got = self.client.receive(self.queue, self.sent)
        assert got == [b"%d" % n for n in range(1, self.sent + 1)]
