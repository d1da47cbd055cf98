"""A session's way to receive from one destination: what came and was not taken, credit, and settlement.

Credit is given back in bulk for what the application is done with: the last it took counts when it comes for more, so
that a window of one means one message at a time (CLU-111). What was only in the buffer is lost with the line and comes
again; what was acknowledged but not answered is acknowledged again and not shown twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fairlead.client.durable.channel import Channel
from fairlead.client.durable.commands import Command, Facts, Reply, moot
from fairlead.client.durable.downloads import Download
from fairlead.client.durable.keys import Keys
from fairlead.client.durable.settlement import Told, ranges
from fairlead.errors import FairleadError, Stale
from fairlead.wire.codec import encode_frame
from fairlead.wire.durable import CHUNK, ENTRY_KEY, KIND_WANT, RELEASE, RETURN
from fairlead.wire.entry_codec import Delivered, deliveries, survey

if TYPE_CHECKING:
    from fairlead.client.durable.part import Part

__all__ = ["DurableConsumer"]

HOLDS_MAX = 1000
STALE = "Message {} came by a connection that was lost; it comes again."


class DurableConsumer:
    """`wake` is called when something came or it ended; `one_by_one` hands out one message of a key at a time."""

    def __init__(
        self,
        part: Part,
        destination: str,
        fields: Facts,
        *,
        prefetch: int,
        prefetch_bytes: int,
        answered: bool,
        one_by_one: bool,
        wake: Callable[[], None],
    ) -> None:
        self.part = part
        self.refused_by: Part | None = None  # it is not there, said this one; asked where it is, we ask once more
        self.destination = destination
        self.prefetch = prefetch
        self.looks = bool(fields.get("browse")) or fields.get("replay") is not None
        """Nothing is locked, so nothing is settled."""
        self.comes_again = not self.looks and bool(fields.get("kind") != "topic" or fields.get("durable"))
        """What was delivered and not settled when a line was lost comes again."""
        self.buffer: deque[Delivered] = deque()
        self.main = Channel(self, destination, answered=answered)
        self.handle = 0
        self.own = 0  # its number in its session
        self.error: Exception | None = None
        self.is_open = False  # was it ever
        self.is_opening = False  # the server was asked, and has not answered
        self.is_over = False  # nothing more will come: end of a browse, or an orderly close
        self.caught_up = False
        self.stopped = False
        self.epoch = 0  # counts lost lines
        self._prefetch_bytes = prefetch_bytes
        self._topics: dict[int, Channel] = {}  # of a pattern, by handle
        self._by_pattern = False
        self._answered = answered
        self._fields = fields
        self._wake = wake
        self._one_by_one = one_by_one
        self._keys: Keys | None = None  # from the first message on that has one
        self._last = 0  # the newest order number that came
        self._again: set[int] = set()  # not to be shown again: acknowledged on a line that was lost, or browsed
        self._downloads: dict[int, Download] = {}
        self._leaving: Reply | None = None  # it is to end as soon as the server has said its handle
        self.held: Callable[[], list[int]] = list  # what the application has and may still settle

    @property
    def was_open(self) -> bool:
        return self.is_open

    @property
    def source(self) -> DurableConsumer:
        """Of what was taken last: itself."""
        return self

    def has_lost(self, epoch: int) -> bool:
        """Was the line lost by which something of that epoch came, and does it come again?"""
        return epoch != self.epoch and self.comes_again

    @property
    def stale(self) -> int:
        """Settlements that came too late."""
        return self.main.settlements.stale

    # Opening and ending.

    def request(self) -> Facts:
        """The fields of `consume`. When it was open before, credit is given after what is still to be settled.

        Of a pattern nothing is; its credit is for each topic, also for those that are made later. The first time it
        holds nothing, and says so: it may have been open at the server, and sent things, before a line was lost.
        """
        fields: Facts = {"destination": self.destination, "own": self.own, **self._fields}
        if not self.is_open or self._by_pattern:
            nothing: Facts = {} if self.looks else {"holds": []}
            return fields | nothing | {"messages": self.prefetch, "bytes": self._prefetch_bytes}
        fields |= {"messages": 0, "bytes": 0}
        if not self.looks:
            fields["holds"] = self._holds()
        if self._last and fields.get("replay") is not None:
            fields["replay"] = self._last + 1
        elif self._last and fields.get("kind") == "topic" and not fields.get("durable"):
            fields["start"] = self._last + 1
        return fields

    def _holds(self) -> list[tuple[int, int]]:
        """What somebody still has of what came before the line was lost; the rest may come again (CLU-126)."""
        held = ranges(sorted({*self.held(), *self.main.settlements.unsaid()}))
        return [(item.first, item.beyond) for item in held[:HOLDS_MAX]]

    def is_of_another(self, facts: Facts) -> bool:
        """Is what was opened again not the destination of before? Its order numbers would mean other messages."""
        known, found = self.main.destination_id, str(facts.get("destination_id") or "")
        return self.is_open and "joined" not in facts and bool(known and found) and known != found

    def on_open(self, facts: Facts) -> None:
        self.is_opening = False
        self.handle = int(facts["consumer"])
        self.main.destination_id = str(facts.get("destination_id") or "")
        self._by_pattern = "joined" in facts
        again, self.is_open = self.is_open, True
        if "joined" in facts:
            for topic in facts["joined"]:
                self.on_joined(topic)
        else:
            self.main.settlements.handle = self.handle
            self.main.settlements.flush()
            if again:
                self._want(self.main, self.prefetch, self._prefetch_bytes)
            elif self._fields.get("kind") == "topic" and self._fields.get("start") == "new":
                self._last = max(int(facts.get("next") or 1) - 1, 0)
        for download in list(self._downloads.values()):
            download.on_open(self.handle)
        if self.stopped:
            self._flow(True, moot)
        if (leaving := self._take_leaving()) is not None:
            self.end(leaving)
        self._wake()

    def on_joined(self, topic: Facts) -> None:
        """A pattern took in another topic, which has a handle of its own."""
        handle = int(topic["handle"])
        channel = Channel(self, str(topic["destination"]), answered=self._answered)
        channel.destination_id = str(topic.get("destination_id") or "")
        channel.settlements.handle = handle
        self._topics[handle] = channel
        self.part.road.handles[handle] = self

    def on_handle_ended(self, handle: int, error: FairleadError) -> None:
        if handle in self._topics:
            self._topics.pop(handle).settlements.fail(error)
        else:
            self.fail(error)

    def on_lost(self) -> None:
        self.handle = 0
        self.is_opening = False
        if (leaving := self._take_leaving()) is not None:
            leaving({}, None)  # the server gives it up with the line
        self.epoch += 1
        held = set(self.held())
        self._again |= self.main.on_lost(held)
        for channel in self._topics.values():
            channel.settlements.fail(Stale("The connection was lost before the acknowledgement was answered."))
        self._topics.clear()
        if self.looks:
            self._again.difference_update(message.order for message in self.buffer)
        if self.buffer:
            self._last = min(self._last, self.buffer[0].order - 1)  # from here on it is asked for again
        self.buffer.clear()
        if self._keys is not None:
            self._keys.on_lost(held)
        for download in self._downloads.values():
            download.on_lost()

    def fail(self, error: Exception) -> None:
        if self.error is None and not self.is_over:
            self.error = error
        self._stop(error)

    def over(self) -> None:
        """An orderly end."""
        self.is_over = True
        self._stop(FairleadError("The consumer was closed.", code="cancelled"))

    def _stop(self, error: Exception) -> None:
        self.handle = 0
        self.is_opening = False
        if (leaving := self._take_leaving()) is not None:
            leaving({}, None)
        self.part.remove_consumer(self)
        for channel in (self.main, *self._topics.values()):
            channel.settlements.fail(error)
        downloads, self._downloads = self._downloads, {}
        for download in downloads.values():
            download.fail(error)
        self._wake()

    # What comes.

    def on_deliver(self, handle: int, body: bytes) -> None:
        messages = deliveries(body, handle)
        if not messages:
            return
        chunks, flags = _look(body)
        self._channel(handle).came(len(messages), len(body) - CHUNK.size * chunks)
        if flags & ENTRY_KEY and self._one_by_one and self._keys is None:
            self._keys = Keys()
        if self._keys is not None and self._keys.given_back:
            messages = self._in_order(self._keys, handle, messages)
        elif self._fields.get("browse"):
            messages = self._unseen(handle, messages)
        if messages and not self._topics:
            self._last = max(self._last, messages[-1].order)
        self.buffer.extend(messages)
        self._wake()

    def _in_order(self, keys: Keys, handle: int, messages: list[Delivered]) -> list[Delivered]:
        """Without those that must not be seen before one of their key that was given back."""
        kept = []
        for message in messages:
            if keys.is_early(message):
                self._channel(handle).left(1)
                self.release([message])
            else:
                kept.append(message)
        return kept

    def _unseen(self, handle: int, messages: list[Delivered]) -> list[Delivered]:
        """A browse that was begun again shows nothing twice."""
        new = [message for message in messages if message.order not in self._again]
        self._again.update(message.order for message in new)
        passed = len(messages) - len(new)
        if passed:
            self._channel(handle).left(passed)
            self._channel(handle).owed += passed
            self.touch()
        return new

    def on_settled(self, handle: int, tag: int, body: bytes) -> None:
        self._channel(handle).settlements.on_settled(tag, body)

    def on_caught_up(self) -> None:
        self.caught_up = True
        self._wake()

    def on_data(self, order: int, offset: int, flags: int, body: bytes) -> None:
        download = self._downloads.get(order)
        if download is not None:
            download.on_data(offset, flags, body)

    # What the application does.

    def name_of(self, message: Delivered) -> str:
        """The destination it came from."""
        return self._channel(message.handle).name

    def asked(self) -> None:
        """The application comes for more: what it took last counts as consumed now."""
        main = self.main
        if main.in_hand:
            main.asked()
        for channel in self._topics.values():
            channel.asked()
        if self._is_owed(main) or (self._topics and any(map(self._is_owed, self._topics.values()))):
            self.touch()

    def _is_owed(self, channel: Channel) -> bool:
        return channel.owed > 0 and (2 * channel.owed >= self.prefetch or not self.buffer)

    def take(self, limit: int) -> list[Delivered]:
        """Up to `limit` messages, without waiting."""
        self.asked()
        buffer = self.buffer
        if self._keys is not None or (self._again and not self.looks):
            taken = self._choose(limit)
        else:
            taken = [buffer.popleft() for _ in range(min(limit, len(buffer)))]
            if not self._topics:
                self.main.left(len(taken))
        if not self._topics:
            self.main.in_hand += len(taken)
        else:
            for handle, count in Counter(message.handle for message in taken).items():
                self._channel(handle).in_hand += count
                if self._keys is None and not (self._again and not self.looks):
                    self._channel(handle).left(count)
        return taken

    def _choose(self, limit: int) -> list[Delivered]:
        """The slow way: keys are kept apart, and what was acknowledged before is acknowledged again unseen."""
        buffer, keys, again = self.buffer, self._keys, self._again
        taken: list[Delivered] = []
        while buffer and len(taken) < limit:
            message = buffer.popleft()
            channel = self._channel(message.handle)
            channel.left(1)
            if again and message.order in again and message.redelivered and not self.looks:
                again.discard(message.order)
                channel.settlements.acknowledged.append(message.order)
                channel.owed += 1
                self.touch()
            elif keys is None or not message.flags & ENTRY_KEY or keys.admit(message):
                taken.append(message)
        return taken

    def put_back(self, messages: list[Delivered], epoch: int) -> None:
        """Taken, and not shown to the application after all."""
        self.buffer.extendleft(reversed(messages))
        for message in messages:
            channel = self._channel(message.handle)
            channel.in_hand = max(channel.in_hand - 1, 0)
            channel.came_back(1)
            if self._keys is not None and message.key is not None:
                self._keys.forget(message.key, message.order)

    def comes_back(self, order: int) -> None:
        """The application was told that its acknowledgement came too late: it expects the message again."""
        if not self.looks:
            self._again.discard(order)

    def acknowledge(self, message: Delivered, epoch: int) -> None:
        channel = self._topics.get(message.handle) if self._topics else self.main
        if channel is None or (self._topics and epoch != self.epoch):
            self.part.road.stale += 1
            return
        settlements = channel.settlements
        if not settlements.acknowledged:
            self.part.road.touch(self)
        settlements.acknowledged.append(message.order)
        if epoch != self.epoch:
            self._again.add(message.order)  # it may be on its way to us a second time
        if self._keys is not None and message.flags & ENTRY_KEY:
            self._next_of(message)

    def settle(self, message: Delivered, action: int, delay_ms: int, epoch: int) -> None:
        """Anything but an acknowledgement. What comes after it with the same key goes back first, unseen."""
        if self._topics and epoch != self.epoch:
            self.part.road.stale += 1
            return
        key = message.key if self._keys is not None else None
        if key is not None and self._keys is not None and action in (RETURN, RELEASE):
            behind = [other for other in self.buffer if other.key == key]
            if behind:
                self.buffer = deque(other for other in self.buffer if other.key != key)
                for other in behind:
                    self._channel(other.handle).left(1)
            self.release([*self._keys.take(key), *behind])
        settlements = self._channel(message.handle).settlements
        settlements.settle(message.order, message.order + 1, action, delay_ms)
        if key is not None and self._keys is not None:
            self._next_of(message)
            if action in (RETURN, RELEASE):
                settlements.ask(message.order, self._keys.give_back(key, message.order))

    def ask_settled(self, message: Delivered, epoch: int, told: Told) -> None:
        """Tell when what was said about this message is safe."""
        if self._topics and epoch != self.epoch:
            told.set_exception(Stale(STALE.format(message.order)))
        elif self.error is not None or self.is_over:
            told.set_exception(self.error or Stale("The consumer is closed."))
        else:
            self._channel(message.handle).settlements.ask(message.order, told)

    def release(self, messages: Iterable[Delivered]) -> None:
        """Give back what the application never saw."""
        by_handle: dict[int, list[int]] = {}
        for message in messages:
            by_handle.setdefault(message.handle, []).append(message.order)
            if self._keys is not None and (key := message.key) is not None:
                self._channel(message.handle).settlements.ask(message.order, self._keys.give_back(key, message.order))
        for handle, orders in by_handle.items():
            channel = self._channel(handle)
            channel.owed += len(orders)
            for item in ranges(sorted(orders)):
                channel.settlements.settle(item.first, item.beyond, RELEASE)

    def withdraw(self) -> list[Delivered]:
        """Everything the application has not seen: it will not see it."""
        unseen = [*self.buffer, *(self._keys.take_all() if self._keys is not None else ())]
        for message in self.buffer:
            self._channel(message.handle).left(1)
        self.buffer.clear()
        return unseen

    def release_unseen(self) -> None:
        unseen = self.withdraw()
        if not self.looks:
            done = [message for message in unseen if message.order in self._again and message.redelivered]
            for message in done:  # the application was done with it before the line was lost
                self._channel(message.handle).settlements.acknowledged.append(message.order)
            self.release([message for message in unseen if message not in done] if done else unseen)
            self.touch()

    def settle_in(self, transaction: int, messages: list[Delivered]) -> None:
        """What the application took in this transaction; those of a lost line are not its any more."""
        by_handle: dict[int, list[int]] = {}
        for message in messages:
            by_handle.setdefault(message.handle, []).append(message.order)
        for handle, orders in by_handle.items():
            self._channel(handle).settlements.in_transaction(transaction, ranges(sorted(orders)))

    def destination_ids(self, messages: Iterable[Delivered]) -> set[str]:
        """Where these came from, in hexadecimal digits."""
        return {self._channel(handle).destination_id for handle in {message.handle for message in messages}}

    def download(self, message: Delivered, epoch: int, wake: Callable[[], None]) -> Download:
        """The body of a very large message, piece by piece."""
        made = Download(self, message, wake)
        self._downloads[message.order] = made
        return made

    def end_download(self, order: int) -> None:
        self._downloads.pop(order, None)

    def _next_of(self, message: Delivered) -> None:
        key = message.key
        if key is not None and self._keys is not None:
            following = self._keys.settled(key, message.order)
            if following is not None:
                self.buffer.appendleft(following)
                self._channel(following.handle).came_back(1)
                self._wake()

    def _channel(self, handle: int) -> Channel:
        return self._topics.get(handle, self.main) if self._topics else self.main

    # What is said.

    def touch(self) -> None:
        self.part.road.touch(self)

    def flush(self) -> None:
        """Settlements first, then credit."""
        if not self.handle:
            return
        for channel in (self.main, *self._topics.values()):
            channel.settlements.flush()
            if self._is_owed(channel):
                self._want(channel, *channel.want())

    @property
    def is_out_of_credit(self) -> bool:
        """Has everything come that the server may send? Not known of a pattern, or while something is in the buffer."""
        main = self.main
        return not self._topics and not self.buffer and main.in_hand + main.owed >= self.prefetch

    @property
    def is_settled(self) -> bool:
        """Is everything that was said about messages answered?"""
        return all(channel.settlements.is_idle for channel in (self.main, *self._topics.values()))

    def _want(self, channel: Channel, messages: int, size: int) -> None:
        if channel.handle:
            self.part.road.send(encode_frame(KIND_WANT, 0, channel.handle, messages, size, b"", b"", b""))

    def flow(self, stop: bool, reply: Reply) -> None:
        """Ask for no more deliveries, or for them again."""
        self.stopped = stop
        self._flow(stop, reply)

    def _flow(self, stop: bool, reply: Reply) -> None:
        if not self.handle:
            reply({}, None)
            return
        self.part.road.ask(
            Command("flow", {"handle": self.handle, "stop": stop}, reply, part=self.part, on_loss="moot")
        )

    def end(self, reply: Reply) -> None:
        """The orderly end at the server, behind what was said; also of one that is being opened again just now, so that
        whoever opens it anew after the reply does not find it in use."""
        self.flush()
        if self.is_opening and not self.handle:
            self._leaving = reply
            return
        if not self.handle:
            reply({}, None)
            return
        self.part.road.ask(Command("end", {"handle": self.handle}, reply, part=self.part, on_loss="moot"))

    def _take_leaving(self) -> Reply | None:
        leaving, self._leaving = self._leaving, None
        return leaving


def _look(body: bytes) -> tuple[int, int]:
    """How many chunks a DELIVER has, and the flags of all its messages or-ed; `deliveries` has checked it."""
    at = count = flags = 0
    while at < len(body):
        beyond = at + CHUNK.size + int.from_bytes(body[at + 52 : at + 56], "little")
        flags |= survey(body, at + CHUNK.size, beyond)[1]
        at = beyond
        count += 1
    return count, flags
