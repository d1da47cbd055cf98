"""Messages going in, and another consumer that takes some of the queue's: threads with ordinary clients."""

from __future__ import annotations

import itertools
import random
import threading
from typing import Final

import fairlead.sync
from fairlead.errors import FairleadError
from tests.pipeline.crashing.books import Books
from tests.pipeline.crashing.flows import Flow

KEYS: Final = 40
BURST: Final = 12
PAUSE_S: Final = 0.1
TAKEN_AT_ONCE: Final = 4
TAKE_PAUSE_S: Final = 0.25
TIMEOUT_S: Final = 60.0


class Party(threading.Thread):
    """Somebody with a connection of their own; `error` is why it ended."""

    def __init__(self, url: str, flow: Flow, books: Books) -> None:
        super().__init__(daemon=True)
        self._url, self._flow, self._books = url, flow, books
        self._end = threading.Event()
        self.error: Exception | None = None

    def close(self) -> None:
        self._end.set()
        self.join(TIMEOUT_S)


class Producer(Party):
    """Sends bursts of one key each while `go` is set."""

    def __init__(self, url: str, flow: Flow, books: Books, chance: random.Random) -> None:
        super().__init__(url, flow, books)
        self._chance = chance
        self._numbers = itertools.count()
        self.go = threading.Event()
        self.resting = threading.Event()

    def run(self) -> None:
        try:
            with fairlead.sync.connect(self._url, name=f"producer-{self._flow.name}") as connection:
                to = connection.queue if self._flow.name == "queue" else connection.topic
                destination = to(self._flow.source, create=False)
                while not self._end.wait(PAUSE_S):
                    if not self.go.is_set():
                        self.resting.set()
                        continue
                    self.resting.clear()
                    self._burst(destination)
        except Exception as error:  # the harness tells of it
            self.error = error
            self.resting.set()

    def _burst(self, destination: fairlead.sync.Queue | fairlead.sync.Topic) -> None:
        key = f"k{self._chance.randrange(KEYS)}"
        numbers = list(itertools.islice(self._numbers, self._chance.randint(1, BURST)))
        self._books.keys.update(dict.fromkeys(numbers, key))
        destination.send_many([b"%d" % number for number in numbers], key=key)
        self._books.confirmed.update(numbers)


class Rival(Party):
    """Consumes from the same queue, slowly; what it acknowledged must not come out of the pipeline."""

    def run(self) -> None:
        try:
            with fairlead.sync.connect(self._url, name="rival") as connection:
                queue = connection.queue(self._flow.source, create=False)
                with queue.consume(prefetch=TAKEN_AT_ONCE) as consumer:
                    while not self._end.wait(TAKE_PAUSE_S):
                        for message in consumer.receive_many(TAKEN_AT_ONCE, timeout=0.2):
                            self._take(int(message.body), message.ack)
        except Exception as error:
            self.error = error

    def _take(self, number: int, ack: object) -> None:
        try:
            ack(confirm=True)  # type: ignore[operator]
        except FairleadError:
            self._books.unsure.add(number)
        else:
            self._books.taken.append(number)
