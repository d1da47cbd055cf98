"""Numbered traffic: every sender numbers what it sends, every receiver keeps a book of what came.

`Load` is broadcast by many connections at a fixed rate; `Exchanges` are the other four modes, one message after the
other. Both count what happened to their connections, so that a loss can be told from a bug.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, Self

import fairlead
from fairlead import Connection, Event, FairleadError, RequestTimeout
from fairlead.testing import Server

STAMP = struct.Struct("<IQQ")  # who, the number, when (monotonic ns)
BURST, BURST_S = 10, (0.02, 0.1)  # messages said at once, and how often at most and at least
OPENINGS_AT_ONCE = 50
LINES_MAX = 20  # of one failure


class Gap(NamedTuple):
    """Numbers that one book skipped, and when it noticed."""

    sender: int
    first: int
    after: int
    seen_s: float


class Book:
    """What one receiver saw of each sender's numbers."""

    def __init__(self) -> None:
        self.next: dict[int, int] = {}
        self.gaps: list[Gap] = []
        self.count = self.duplicated = self.reordered = 0
        self.worst_ns = 0
        self._missing: dict[int, set[int]] = {}

    def enter(self, bodies: Iterable[bytes]) -> None:
        now_ns = time.monotonic_ns()
        oldest_ns = now_ns
        for body in bodies:
            sender, number, sent_ns = STAMP.unpack_from(body)
            expected = self.next.get(sender, 0)
            self.count += 1
            if sent_ns < oldest_ns:
                oldest_ns = sent_ns
            if number == expected:
                self.next[sender] = number + 1
            elif number > expected:
                self.gaps.append(Gap(sender, expected, number, time.monotonic()))
                self._missing.setdefault(sender, set()).update(range(expected, number))
                self.next[sender] = number + 1
            elif number in self._missing.get(sender, ()):
                self._missing[sender].discard(number)
                self.reordered += 1
            else:
                self.duplicated += 1
        self.worst_ns = max(self.worst_ns, now_ns - oldest_ns)

    @property
    def missing(self) -> int:
        """Skipped and never seen later."""
        return sum(len(numbers) for numbers in self._missing.values())


class Result(NamedTuple):
    """A load's books, added up."""

    sent: int
    arrived: int
    lost: int
    duplicated: int
    reordered: int
    disconnected: int
    moved: int
    worst_ms: float

    @property
    def faults(self) -> tuple[int, int, int, int]:
        """Lost, duplicated, out of order, connections dropped: all zero when all is well."""
        return self.lost, self.duplicated, self.reordered, self.disconnected


class Party:
    """A connection and what happened to it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: Counter[str] = Counter()
        self.last: Event | None = None
        self._last_s: dict[str, float] = {}
        connection.on_event(self._on_event)

    def _on_event(self, event: Event) -> None:
        self.events[event.name] += 1
        self.last = event
        self._last_s[event.name] = time.monotonic()

    def __str__(self) -> str:
        now_s = time.monotonic()
        told = [f"{n} x {name}, {now_s - self._last_s[name]:.2f} s ago" for name, n in self.events.items()]
        state = "connected" if self.connection.connected else "not connected"
        return f"uid {self.connection.uid} ({'; '.join([state, *told])})"


class Load:
    """Broadcast at a rate: each publisher has a topic of its own, each subscriber reads those of its group."""

    def __init__(
        self, url: str, *, publishers: int, subscribers: int, rate: float, size: int = 64, keep_alive_s: float = 30
    ) -> None:
        self.url, self.rate = url, rate
        self.counts = publishers, subscribers
        self.keep_alive_s = keep_alive_s
        self.publishers: list[Party] = []
        self.subscribers: list[Party] = []
        self.books = [Book() for _ in range(subscribers)]
        self.sent = [0] * publishers
        self.paused = False
        self._sent_s = [time.monotonic()] * publishers
        self._padding = bytes(max(0, size - STAMP.size))
        self._tasks: list[asyncio.Task[None]] = []
        self._running = True

    async def __aenter__(self) -> Self:
        publishers, subscribers = self.counts
        parties = await open_parties(self.url, publishers + subscribers, "load", keep_alive_s=self.keep_alive_s)
        self.publishers, self.subscribers = parties[:publishers], parties[publishers:]
        subscriptions = [
            party.connection.subscribe(f"load.{group}.*", buffer=1 << 20)
            for group, party in enumerate(self.subscribers)
        ]
        await asyncio.gather(*(one.start() for one in subscriptions))
        self._tasks = [
            asyncio.create_task(self._read(one, book)) for one, book in zip(subscriptions, self.books, strict=True)
        ]
        self._writers = [asyncio.create_task(self._write(number)) for number in range(publishers)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._running = False
        for task in (*self._writers, *self._tasks):
            task.cancel()
        await asyncio.gather(*self._writers, *self._tasks, return_exceptions=True)
        await close_parties([*self.publishers, *self.subscribers])

    async def _read(self, subscription: fairlead.Subscription, book: Book) -> None:
        async for batch in subscription.batches():
            book.enter(message.body for message in batch)

    async def _write(self, number: int) -> None:
        connection = self.publishers[number].connection
        topic = f"load.{number % self.counts[1]}.{number}"
        share = self.rate / self.counts[0]
        period_s = min(max(BURST_S[0], BURST / share), max(BURST_S[1], 1 / share))
        due_s = time.monotonic() + period_s * (number / self.counts[0])
        owed = 0.0
        while self._running:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s + period_s, time.monotonic() - period_s)
            if self.paused:
                continue
            owed += share * period_s
            count, now_ns, first = int(owed), time.monotonic_ns(), self.sent[number]
            owed -= count
            bodies = [STAMP.pack(number, first + i, now_ns) + self._padding for i in range(count)]
            self.sent[number] += count
            await connection.publish_many(topic, bodies)
            self._sent_s[number] = time.monotonic()

    def forget_worst(self) -> float:
        """The worst delay so far, in ms; from here on it is measured anew."""
        worst_ms = self.result().worst_ms
        for book in self.books:
            book.worst_ns = 0
        return worst_ms

    async def all_connected(self, timeout_s: float) -> None:
        parties = [*self.publishers, *self.subscribers]
        try:
            await until(lambda: all(party.connection.connected for party in parties), timeout_s)
        except AssertionError:
            away = [f"{party.connection.address} {party.last}" for party in parties if not party.connection.connected]
            raise AssertionError(f"not connected again in {timeout_s:g} s: {away}") from None

    def unexplained(self) -> list[str]:
        """Gaps beyond one for each time that an end of the flow lost its connection, in words."""
        found = []
        for group, book in enumerate(self.books):
            gaps = Counter(gap.sender for gap in book.gaps)
            for sender, count in gaps.items():
                lost = self.subscribers[group].events["lost"] + self.publishers[sender].events["lost"]
                if count > lost:
                    numbers = [(gap.first, gap.after) for gap in book.gaps if gap.sender == sender]
                    found.append(f"publisher {sender} to subscriber {group}: gaps {numbers}, {lost} connections lost")
        return found

    async def settle(self, timeout_s: float = 20.0) -> Result:
        """Stop sending, wait until the last number of every publisher is in, and add up.

        The last number never comes in if it was sent while an end of the flow was away: see `sent_again`.
        """
        self._running = False
        done, unfinished = await asyncio.wait(self._writers, timeout=timeout_s)
        for task in done:
            task.result()
        deadline_s = time.monotonic() + (0 if unfinished else timeout_s)
        while unfinished or self._behind():
            assert time.monotonic() < deadline_s, f"not all is in after {timeout_s:g} s:\n{self._whats_missing()}"
            await asyncio.sleep(0.01)
        return self.result()

    async def sent_again(self, timeout_s: float = 20.0) -> None:
        """Wait until every publisher has sent something from now on."""
        before = list(self.sent)
        await until(lambda: all(now > then for now, then in zip(self.sent, before, strict=True)), timeout_s)

    def _behind(self) -> list[int]:
        """Publishers whose last number is not in."""
        books, count = self.books, self.counts[1]
        return [n for n, sent in enumerate(self.sent) if books[n % count].next.get(n, 0) < sent]

    def _whats_missing(self) -> str:
        """A line for each flow that stands still: what is missing, and what happened to its two ends."""
        now_s, lines = time.monotonic(), []
        sending = {number for number, task in enumerate(self._writers) if not task.done()}
        for number in sorted({*self._behind(), *sending}):
            group = number % self.counts[1]
            book, last_s = self.books[group], self._sent_s[number]
            gaps = [(gap.first, gap.after) for gap in book.gaps if gap.sender == number][-3:]
            lines.append(
                f"publisher {number} {self.publishers[number]} {'is sending' if number in sending else 'sent'} "
                f"{self.sent[number]}, the last {now_s - last_s:.2f} s ago; "
                f"subscriber {group} {self.subscribers[group]} has {book.next.get(number, 0)}, gaps {gaps}"
            )
        more = len(lines) - LINES_MAX
        return "\n".join(lines[:LINES_MAX] + ([f"and {more} more"] if more > 0 else []))

    def result(self) -> Result:
        books, parties = self.books, [*self.publishers, *self.subscribers]
        behind = sum(
            sent - self.books[number % self.counts[1]].next.get(number, 0) for number, sent in enumerate(self.sent)
        )
        return Result(
            sent=sum(self.sent),
            arrived=sum(book.count for book in books),
            lost=behind + sum(book.missing for book in books),
            duplicated=sum(book.duplicated for book in books),
            reordered=sum(book.reordered for book in books),
            disconnected=sum(party.events["lost"] + party.events["closed"] for party in parties),
            moved=sum(party.events["moved"] for party in parties),
            worst_ms=max(book.worst_ns for book in books) / 1e6,
        )


class Exchanges:
    """Requests, conversations, fan-out requests and one-way messages, numbered, until told to stop.

    `done` counts what was answered as it should, `errors` what ended in an error, by mode and code; a fault (a wrong
    or a doubled answer, silence) is a sentence in `faults`.
    """

    def __init__(self, url: str, *, patience_s: float = 20.0) -> None:
        self.url, self.patience_s = url, patience_s
        self.done: Counter[str] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []
        self.served: Counter[int] = Counter()
        self.parties: list[Party] = []
        self.inbox = Book()
        self.said = 0
        self._running = True

    async def __aenter__(self) -> Self:
        self.parties = await open_parties(self.url, 4, "exchange")
        asker, *servers = [party.connection for party in self.parties]
        for server in servers:
            await server.respond("numbered.request", lambda request: request.body)
            await server.respond("numbered.everybody", lambda request: request.body)
        self._serving = [asyncio.create_task(self._accept(server, number)) for number, server in enumerate(servers)]
        self._serving.append(asyncio.create_task(self._collect(servers[0])))
        await until(lambda: self._accepting == len(servers), 10.0)
        target = servers[0]
        self._asking = [
            asyncio.create_task(self._repeat("request", lambda n: self._request(asker, n))),
            asyncio.create_task(self._repeat("fan-out", lambda n: self._ask_all(asker, n, len(servers)))),
            asyncio.create_task(self._repeat("conversation", lambda n: self._converse(asker, n))),
            asyncio.create_task(self._repeat("one-way", lambda n: self._send(asker, target, n))),
        ]
        return self

    _accepting = 0

    async def __aexit__(self, *exc: object) -> None:
        for task in (*self._asking, *self._serving):
            task.cancel()
        await asyncio.wait((*self._asking, *self._serving), timeout=5)  # a broken server may never say OK
        await close_parties(self.parties)

    async def settle(self) -> None:
        """Let what is under way end."""
        self._running = False
        await asyncio.wait_for(asyncio.gather(*self._asking), self.patience_s + 5)
        if not any(party.events["lost"] for party in self.parties):
            await until(lambda: self.inbox.count >= self.said, self.patience_s)

    async def _repeat(self, mode: str, step: Callable[[int], Awaitable[None]]) -> None:
        number = 0
        while self._running:
            try:
                await step(number)
                self.done[mode] += 1
            except RequestTimeout:
                self.faults.append(f"{mode} {number}: no answer and no error within {self.patience_s:g} s")
            except FairleadError as error:
                self.errors[mode, error.code] += 1
                await asyncio.sleep(0.02)  # so as not to ask a receiver that is away a thousand times
            number += 1
            await asyncio.sleep(0.002)

    async def _request(self, asker: Connection, number: int) -> None:
        answer = await asker.request("numbered.request", str(number), timeout=self.patience_s)
        self.served[answer.sender] += 1
        self._check(f"request {number}", answer.body, number)

    async def _ask_all(self, asker: Connection, number: int, servers: int) -> None:
        stream = asker.request_all("numbered.everybody", str(number), timeout=self.patience_s)
        async for answer in stream:
            self._check(f"fan-out {number}", answer.body, number)
        if not stream.is_complete:
            raise RequestTimeout("incomplete")
        if stream.answered != servers and not any(party.events["lost"] for party in self.parties):
            self.faults.append(f"fan-out {number}: {stream.answered} of {servers} answers, {stream.lost} lost")

    async def _converse(self, asker: Connection, number: int) -> None:
        async with asker.converse("numbered.talk") as talk:
            who = b""
            for i in range(20):
                await talk.send(str(i))
                said = (await talk.receive(self.patience_s)).body
                who = who or said.partition(b" ")[0]
                if said != who + f" {i}".encode():
                    self.faults.append(f"conversation {number}: {said!r} came for {i} from {who!r}")

    async def _send(self, sender: Connection, target: Connection, number: int) -> None:
        await sender.send_to(target.address, STAMP.pack(0, self.said, time.monotonic_ns()))
        self.said += 1

    async def _accept(self, server: Connection, name: int) -> None:
        async with server.accept("numbered.talk") as talks:
            self._accepting += 1
            async for talk in talks:
                task = asyncio.create_task(self._answer(talk, name))
                self._serving.append(task)

    async def _answer(self, talk: Any, name: int) -> None:
        with contextlib.suppress(FairleadError):
            async for message in talk:
                await talk.send(f"{name} ".encode() + message.body)

    async def _collect(self, server: Connection) -> None:
        async for batch in server.inbox().batches():
            self.inbox.enter(message.body for message in batch)

    def _check(self, what: str, body: bytes, number: int) -> None:
        if body != str(number).encode():
            self.faults.append(f"{what}: answered with {body!r}")


async def open_parties(url: str, count: int, type_: str, *, keep_alive_s: float = 30) -> list[Party]:
    """That many connections, some at a time."""
    gate = asyncio.Semaphore(OPENINGS_AT_ONCE)

    async def one(number: int) -> Party:
        async with gate:
            party = Party(fairlead.connect(url, name=f"{type_}-{number}", type=type_, keep_alive_s=keep_alive_s))
            await party.connection
            return party

    return list(await asyncio.gather(*(one(number) for number in range(count))))


async def close_parties(parties: list[Party]) -> None:
    await asyncio.gather(*(party.connection.close() for party in parties))


async def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Look until it is so."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not reached in {timeout_s:g} s"
        await asyncio.sleep(0.01)


async def update(server: Server, component: str, **facts: Any) -> dict[str, Any]:
    """A planned update, without holding up the traffic."""
    return await asyncio.to_thread(server.update, component, **facts)


async def kill(server: Server, role: str, *, standby: bool = False) -> int:
    """kill -9 of the one that serves, once somebody stands by; back when that one serves. Who was killed.

    Within `parked_s` after an update the parked one takes over again; `standby` waits for the usual case.
    """

    def is_safe(status: dict[str, Any]) -> bool:
        found = {one[1] for one in states(status) if one[0] == role}
        return found >= {"standby"} and "parked" not in found if standby else bool(found & {"standby", "parked"})

    await holds(server, is_safe)
    pid: int = await asyncio.to_thread(server.kill, role)
    await holds(server, lambda status: any(one[:2] == (role, "active") and one[2] != pid for one in states(status)))
    return pid


async def holds(server: Server, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 15.0) -> dict[str, Any]:
    """`Server.wait_until` on the short report, without holding up the traffic."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        status = await asyncio.to_thread(server.status, brief=True)
        if condition(status):
            return status
        assert time.monotonic() < deadline_s, f"not reached in {timeout_s:g} s; the report says: {status}"
        await asyncio.sleep(0.02)


def states(status: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(one["role"], one["state"], one["pid"]) for one in status["components"]]


async def books_balance(server: Server) -> dict[str, Any]:
    """Nothing is left in the store, nothing was counted wrongly, no wake-up was lost."""
    status = await holds(server, lambda found: found["stored"] == 0)
    assert status["accounting_faults"] == 0
    assert status["safety_tick_finds"] == 0
    return status
