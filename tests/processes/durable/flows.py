"""The load of the crash harness: every way of sending and receiving at once, each entered in the books.

A flow starts, works while `go` is set, comes to rest when it is cleared (nothing under way any more), and is asked
then whether anything is still missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import fairlead
from fairlead.errors import FairleadError
from tests.processes.durable.books import CONFIRMED, FAILED, Bank, Faults, Ledger, Reading, read_body, write_body

FOREVER: Final = {"delivery_limit": 0}  # no message is given up, however often its consumers are killed
PATIENCE_S: Final = 60.0
COIN: Final = struct.Struct("<IIQ")  # coin, hops, transaction that brought it here


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Flow:
    """What all of them share: connections, tasks, being busy or at rest."""

    def __init__(self, url: str, seed: str, faults: Faults) -> None:
        self.url = url
        self.faults = faults
        self.random = random.Random(f"{seed}/{type(self).__name__}")
        self.go = asyncio.Event()
        self.errors: Counter[str] = Counter()
        self._busy = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        raise NotImplementedError

    def missing(self) -> list[str]:
        """What should have arrived by now and has not."""
        return []

    async def check(self) -> None:
        """Look at the state at rest; faults go into the books."""

    def counts(self) -> dict[str, int]:
        return {}

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def connect(self, name: str) -> Any:
        """To whichever manager; one that stands still is left for another soon."""
        name = f"{type(self).__name__.lower()}-{name}"
        connection = fairlead.connect(self.url, name=name, reconnect_limit_s=120, keep_alive_s=1.5)
        return await self._stack.enter_async_context(connection)

    def again_and_again(self, work: Callable[[], Awaitable[None]], pause_s: float = 0.01) -> None:
        """Do it, as long as the flow is on; at rest between two times."""

        async def loop() -> None:
            while True:
                await self.go.wait()
                self._busy += 1
                try:
                    await work()
                except FairleadError as error:
                    self.errors[f"{type(self).__name__} {error.code}"] += 1
                finally:
                    self._busy -= 1
                await asyncio.sleep(self.random.uniform(0, pause_s))

        self.task(loop())

    def task(self, work: Any) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.faults.add("a client ended", f"{type(self).__name__}: {error!r:.300}")

    async def rest(self) -> None:
        """Begin nothing new, and wait until nothing is under way."""
        self.go.clear()
        deadline_s = time.monotonic() + PATIENCE_S
        while self._busy:
            if time.monotonic() > deadline_s:
                self.faults.add("hangs", f"{self._busy} of {type(self).__name__} are still under way")
                return
            await asyncio.sleep(0.01)


class Numbered(Flow):
    """Numbered messages from several sources through one ledger."""

    name = "soak.numbers"
    is_topic = False
    bursts = 40
    sources = 3
    parameters: dict[str, Any] = FOREVER

    def __init__(self, url: str, seed: str, faults: Faults) -> None:
        super().__init__(url, seed, faults)
        self.ledger = Ledger(self.name, faults)

    def destination(self, connection: Any) -> Any:
        make = connection.topic if self.is_topic else connection.queue
        return make(self.name, create=True, parameters=dict(self.parameters))

    def options(self, source: int, number: int) -> dict[str, Any]:
        """How this message is sent, as `Destination.send` takes it."""
        return {}

    def body(self, source: int, number: int, options: dict[str, Any]) -> Any:
        sent = now_ms()
        return write_body(
            source,
            number,
            sent,
            due_ms=sent + int(options["delay"] * 1000) if "delay" in options else 0,
            expires_ms=sent + int(options["ttl"] * 1000) if "ttl" in options else 0,
            fill=self.random.choice((0, 20, 200, 1000)),
        )

    async def produce(self, connection: Any, source: int) -> None:
        """One burst: single sends, or a pipelined window; every outcome is entered."""
        destination = self.destination(connection)
        count = self.random.randint(1, self.bursts)
        if self.random.random() < 0.4:
            for _ in range(max(1, count // 10)):
                number = self.ledger.send(source)
                options = self.options(source, number)
                try:
                    receipt = await destination.send(self.body(source, number, options), **options)
                except FairleadError as error:
                    self.errors[f"send {error.code}"] += 1
                    self.ledger.failed(source, number)
                else:
                    self.ledger.confirmed(source, number, receipt.order)
            return
        under_way: list[tuple[int, Any]] = []
        try:
            async with destination.sender(window=64) as sender:
                for _ in range(count):
                    number = self.ledger.send(source)
                    options = self.options(source, number)
                    under_way.append((number, None))
                    under_way[-1] = number, await sender.send(self.body(source, number, options), **options)
        finally:
            for number, future in under_way:
                await self._enter(source, number, future)

    async def _enter(self, source: int, number: int, future: Any) -> None:
        try:
            if future is None:
                raise FairleadError("it was never handed over")
            receipt = await future
        except FairleadError as error:
            self.errors[f"send {error.code}"] += 1
            self.ledger.failed(source, number)
        else:
            self.ledger.confirmed(source, number, receipt.order)

    async def start_producers(self) -> None:
        for source in range(self.sources):
            connection = await self.connect(f"producer-{source}")
            self.again_and_again(lambda connection=connection, source=source: self.produce(connection, source))  # type: ignore[misc]

    async def take(self, message: Any, reading: Reading, lane: str, retries: float = 0.0) -> None:
        """Enter a delivery and settle it, one way or the other."""
        stamp = reading.came(
            await body_of(message),
            order=message.order,
            redelivered=message.redelivered,
            lane=lane,
            now_ms=now_ms(),
            arrival_ms=int(message.arrival.timestamp() * 1000),
        )
        if stamp is None:
            return
        chance = self.random.random()
        if chance < retries:
            await message.retry()
        elif chance < 0.5:
            reading.asked(stamp)
            await message.ack()
        else:
            try:
                await message.ack(confirm=True)
            except FairleadError as error:  # stale: it was written down before the loss, or it comes again
                self.errors[f"ack {error.code}"] += 1
                reading.asked(stamp)
            else:
                reading.safe(stamp)

    async def consume(self, connection: Any, reading: Reading, lane: str, retries: float, **options: Any) -> None:
        """Take for ever; acknowledgements that are waited for do not hold up the next message."""
        settling: set[asyncio.Task[None]] = set()
        async for message in self.destination(connection).consume(**options):
            if options.get("prefetch") == 1:
                await self.take(message, reading, lane or f"key {message.key}", retries)
                continue
            task = asyncio.create_task(self.take(message, reading, lane or f"key {message.key}", retries))
            settling.add(task)
            task.add_done_callback(settling.discard)
            if len(settling) > 100:
                await asyncio.wait(settling, return_when=asyncio.FIRST_COMPLETED)

    def missing(self) -> list[str]:
        return [f"{reading!r}: {one}" for reading in self.ledger.readings.values() for one in reading.missing()]

    def counts(self) -> dict[str, int]:
        readings = self.ledger.readings.values()
        return {
            f"{self.name} confirmed": self.ledger.count(CONFIRMED),
            f"{self.name} not confirmed": self.ledger.count(FAILED),
            f"{self.name} received": sum(reading.seen() for reading in readings),
            f"{self.name} came again, marked": sum(reading.redelivered for reading in readings),
        }


async def body_of(message: Any) -> bytes:
    if not message.is_large:
        body: bytes = message.body
        return body
    return b"".join([piece async for piece in message.stream()])


class Numbers(Numbered):
    """The plain queue, several producers and consumers."""

    async def start(self) -> None:
        await self.start_producers()
        reading = self.ledger.reading()
        for number in range(2):
            connection = await self.connect(f"consumer-{number}")
            self.task(self.consume(connection, reading, f"consumer {number}", 0.02, prefetch=50))


class Held(Numbered):
    """A queue that keeps the messages of a lost session locked for a while; one consumer acknowledges by itself."""

    name = "soak.held"
    sources = 1
    parameters: dict[str, Any] = FOREVER | {"hold_s": 1.0}

    async def start(self) -> None:
        await self.start_producers()
        reading = self.ledger.reading()
        connection = await self.connect("consumer")
        self.task(self.consume(connection, reading, "consumer", 0.02, prefetch=20))
        self.task(self._take_all(await self.connect("auto"), reading))

    async def _take_all(self, connection: Any, reading: Reading) -> None:
        async for message in self.destination(connection).consume(ack="auto", prefetch=20):
            stamp = reading.came(message.body, order=message.order, redelivered=message.redelivered,
                                 lane="auto", now_ms=now_ms())  # fmt: skip
            if stamp is not None:
                reading.asked(stamp)
            await asyncio.sleep(self.random.choice((0, 0, 0.001)))


class Keys(Numbered):
    """Grouping keys: in order within a key, whoever consumes."""

    name = "soak.keys"
    sources = 1
    bursts = 20

    def options(self, source: int, number: int) -> dict[str, Any]:
        return {"key": f"k{self.random.randrange(8)}"}

    async def start(self) -> None:
        await self.start_producers()
        reading = self.ledger.reading()
        for number in range(3):
            connection = await self.connect(f"consumer-{number}")
            self.task(self.consume(connection, reading, "", 0.02, prefetch=10))


class Times(Numbered):
    """Delays and times to live. What lives for a moment only may be missing, but is never late."""

    name = "soak.times"
    sources = 1
    bursts = 5

    def options(self, source: int, number: int) -> dict[str, Any]:
        match number % 3:
            case 0:
                return {"delay": self.random.uniform(0.05, 0.6)}
            case 1:
                self.ledger.reading().optional.add((source, number))
                return {"ttl": self.random.uniform(0.05, 0.4)}
            case _:
                return {"ttl": 3600.0}

    async def start(self) -> None:
        await self.start_producers()
        connection = await self.connect("consumer")
        self.task(self.consume(connection, self.ledger.reading(), "", 0.0, prefetch=1))

    async def take(self, message: Any, reading: Reading, lane: str, retries: float = 0.0) -> None:
        await super().take(message, reading, f"order {message.order}", retries)  # delays change the order


class Large(Numbered):
    """Messages that never fit into one piece."""

    name = "soak.large"
    sources = 1
    bursts = 1

    def body(self, source: int, number: int, options: dict[str, Any]) -> Any:
        return io.BytesIO(write_body(source, number, now_ms(), fill=self.random.randint(100_000, 2_000_000)))

    async def produce(self, connection: Any, source: int) -> None:
        number = self.ledger.send(source)
        try:
            receipt = await self.destination(connection).send(self.body(source, number, {}))
        except FairleadError as error:
            self.errors[f"large send {error.code}"] += 1
            self.ledger.failed(source, number)
        else:
            self.ledger.confirmed(source, number, receipt.order)
        await asyncio.sleep(0.2)

    async def take(self, message: Any, reading: Reading, lane: str, retries: float = 0.0) -> None:
        try:
            await super().take(message, reading, lane, retries)
        except FairleadError as error:  # interrupted while it was read: it comes again
            self.errors[f"large read {error.code}"] += 1

    async def start(self) -> None:
        await self.start_producers()
        connection = await self.connect("consumer")
        self.task(self.consume(connection, self.ledger.reading(), "consumer", 0.0, prefetch=1))


class News(Numbered):
    """A topic with two durable subscriptions, one of them with a selector, attached and detached all the time."""

    name = "soak.news"
    is_topic = True
    sources = 2
    bursts = 10

    def options(self, source: int, number: int) -> dict[str, Any]:
        return {"properties": {"half": number % 2}}

    async def start(self) -> None:
        for name, selector, wants in (("all", None, 1), ("even", "half = 0", 2)):
            reading = self.ledger.reading(name)
            reading.wants = wants
            connection = await self.connect(f"subscriber-{name}")
            ready = asyncio.Event()
            self.task(self._follow(connection, reading, selector, ready))
            await asyncio.wait_for(ready.wait(), PATIENCE_S)
        await self.start_producers()

    async def _follow(self, connection: Any, reading: Reading, selector: str | None, ready: asyncio.Event) -> None:
        while True:
            source = self.destination(connection).subscribe(durable=reading.reader, selector=selector, ack="individual")
            async with source as consumer:
                ready.set()
                for _ in range(self.random.randint(1, 60)):
                    message = await consumer.receive(timeout=0.5)
                    if message is not None:
                        await self.take(message, reading, reading.reader)
            await asyncio.sleep(self.random.uniform(0, 0.1))


class Fragile(Numbered):
    """Messages with priorities and deduplication ids, some sent twice; some are rejected, others fail too often."""

    name = "soak.fragile"
    dead = "soak.fragile.dead"
    sources = 1
    bursts = 10
    parameters: dict[str, Any] = {"delivery_limit": 6, "dead_queue": dead}

    def options(self, source: int, number: int) -> dict[str, Any]:
        return {"priority": self.random.choice((2, 4, 4, 7)), "dedup": f"{source}/{number}"}

    async def start(self) -> None:
        graves = (await self.connect("undertaker")).queue(self.dead, create=True, parameters=dict(FOREVER))
        consumer = await graves.consume(prefetch=5).start()
        self.task(self._bury(consumer, self.ledger.reading("dead")))
        await self.start_producers()
        connection = await self.connect("consumer")
        self.task(self.consume(connection, self.ledger.reading(), "", 0.1, prefetch=5))

    async def produce(self, connection: Any, source: int) -> None:
        await super().produce(connection, source)
        known = [number for sender, number in self.ledger.confirmed_sends() if sender == source][-100:]
        if known:
            number = self.random.choice(known)
            with contextlib.suppress(FairleadError):
                await self.destination(connection).send(self.body(source, number, {}), dedup=f"{source}/{number}")

    async def take(self, message: Any, reading: Reading, lane: str, retries: float = 0.0) -> None:
        stamp = read_body(message.body)
        if stamp is not None and self.ledger.reading("dead").has_seen(stamp):
            self.faults.add("came back from the dead", f"{self.name} number {stamp.number} order {message.order}")
        if stamp is None or stamp.number % 5:
            await super().take(message, reading, f"order {message.order}", retries)
            return
        reading.came(message.body, order=message.order, redelivered=message.redelivered,
                     lane=f"order {message.order}", now_ms=now_ms())  # fmt: skip
        try:
            await message.reject(confirm=True)
        except FairleadError as error:
            self.errors[f"reject {error.code}"] += 1

    async def _bury(self, consumer: Any, reading: Reading) -> None:
        async for message in consumer:
            stamp = reading.came(message.body, order=message.order, redelivered=message.redelivered,
                                 lane=f"order {message.order}", now_ms=now_ms())  # fmt: skip
            if stamp is None:
                continue
            if self.ledger.reading().is_safe(stamp):
                self.faults.add("dead though acknowledged", f"{self.name} number {stamp.number}")
            try:
                await message.ack(confirm=True)
            except FairleadError as error:
                self.errors[f"ack {error.code}"] += 1
            else:
                reading.safe(stamp)

    def missing(self) -> list[str]:
        """Each was acknowledged, or is dead."""
        alive, dead = self.ledger.reading(), self.ledger.reading("dead")
        left = [one for one in self.ledger.confirmed_sends() if not alive.is_done(*one)]
        buried = {*left} - {*dead.missing()}
        return [f"{self.name}: {one}" for one in left if one not in buried]


class Transfers(Flow):
    """Coins move between queues in transactions; some movers change their minds."""

    queues = tuple(f"soak.bank.{number}" for number in range(3))

    def __init__(self, url: str, seed: str, faults: Faults, coins: int = 30) -> None:
        super().__init__(url, seed, faults)
        self.bank = Bank(coins, faults)

    async def start(self) -> None:
        first = self.bank.begin()
        self.bank.set(first, Bank.COMMITTED)
        self._teller = await self.connect("teller")
        for coin in range(self.bank.coins):
            await self._queue(coin % len(self.queues)).send(COIN.pack(coin, 0, first))
        for number in range(3):
            connection = await self.connect(f"mover-{number}")
            self.again_and_again(lambda connection=connection: self._move(connection))  # type: ignore[misc]

    def _queue(self, number: int) -> Any:
        return self._teller.queue(self.queues[number], create=True, parameters=dict(FOREVER))

    async def _move(self, connection: Any) -> None:
        origin, target = self.random.sample(self.queues, 2)
        number, coin, said = self.bank.begin(), None, ""
        try:
            async with connection.transaction() as transaction:
                message = await transaction.receive(origin, timeout=0.3)
                if message is None:
                    raise ChangedMind
                coin, hops, brought = COIN.unpack(message.body)
                said = f"{number} from {origin} order {message.order} to {target}"
                self.bank.saw(brought, f"{origin} order {message.order}")
                await transaction.send(target, COIN.pack(coin, hops + 1, number))
                await asyncio.sleep(self.random.uniform(0, 0.02))
                if self.random.random() < 0.2:
                    raise ChangedMind
                self.bank.set(number, Bank.COMMITTING)
        except ChangedMind:
            self.bank.set(number, Bank.ROLLED_BACK)
        except FairleadError as error:
            self.errors[f"transaction {error.code}"] += 1
            said += f" {error.text}"
            if self.bank.transactions[number] == Bank.OPEN or error.code == "transaction-aborted":
                self.bank.set(number, Bank.ROLLED_BACK)
            else:
                self.bank.set(number, Bank.UNKNOWN)
                if coin is not None:
                    self.bank.maybe[coin] += 1
        else:
            self.bank.set(number, Bank.COMMITTED)
            if coin is not None:
                self.bank.hops[coin] += 1
        if coin is not None:
            self.bank.history[coin].append(f"{said}: {self.bank.word(number)}")

    async def check(self) -> None:
        """Count the coins; those of a lost session take a moment to come back."""
        deadline_s = time.monotonic() + 20
        while True:
            found: dict[int, list[tuple[str, int]]] = {}
            async for queue, coin, hops in self._coins():
                found.setdefault(coin, []).append((queue, hops))
            if sorted(found) == list(range(self.bank.coins)) or time.monotonic() > deadline_s:
                break
            await asyncio.sleep(0.2)
        self.bank.balance(found)

    async def _coins(self) -> AsyncIterator[tuple[str, int, int]]:
        for number, queue in enumerate(self.queues):
            async for message in self._queue(number).browse():
                coin, hops, brought = COIN.unpack(message.body)
                self.bank.saw(brought, f"browsing {queue}")
                yield queue, coin, hops

    def counts(self) -> dict[str, int]:
        states = self.bank.transactions
        return {
            "transactions committed": states.count(Bank.COMMITTED),
            "transactions rolled back": states.count(Bank.ROLLED_BACK),
            "transactions of unknown outcome": states.count(Bank.UNKNOWN),
        }


class ChangedMind(Exception):
    """The application rolls back."""


class Schedule(Flow):
    """One schedule that falls due every second: it goes on through everything, and no firing comes twice unmarked."""

    name = "soak.schedule"

    def __init__(self, url: str, seed: str, faults: Faults) -> None:
        super().__init__(url, seed, faults)
        self.fired: set[int] = set()
        self._safe: set[int] = set()

    async def start(self) -> None:
        connection = await self.connect("all")
        self._began_s = time.monotonic()
        self._queue = connection.queue(self.name, create=True, parameters=dict(FOREVER))
        await self._queue.send(b"tick", cron="@every 1s")
        self.task(self._consume())

    async def _consume(self) -> None:
        async for message in self._queue.consume(prefetch=1):
            if message.order in self._safe:
                self.faults.add("came back after its acknowledgement", f"{self.name} {message.order}")
            elif message.order in self.fired and not message.redelivered:
                self.faults.add("delivered again without the mark", f"{self.name} {message.order}")
            self.fired.add(message.order)
            try:
                await message.ack(confirm=True)
            except FairleadError as error:
                self.errors[f"ack {error.code}"] += 1
            else:
                self._safe.add(message.order)

    async def check(self) -> None:
        schedules = await self._queue.schedules()
        if len(schedules) != 1:
            self.faults.add("schedule lost or doubled", repr(schedules))
        if len(self.fired) > time.monotonic() - self._began_s + 2:
            self.faults.add("schedule fired too often", str(len(self.fired)))

    def counts(self) -> dict[str, int]:
        return {"schedule fired": len(self.fired)}


FLOWS: Final[dict[str, type[Flow]]] = {
    "numbers": Numbers,
    "held": Held,
    "keys": Keys,
    "times": Times,
    "large": Large,
    "news": News,
    "fragile": Fragile,
    "transfers": Transfers,
    "schedule": Schedule,
}
