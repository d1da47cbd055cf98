"""A session of the durable road: one part per group of the cluster, opened when something of that group is first used.

Without a cluster there is one part, `home`. Before it is known whether there is a cluster, and where a destination is,
producers and consumers wait at home; nothing of them is said before they have got to their part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairlead.client.durable.commands import Command, Facts, Reply
from fairlead.client.durable.part import Part, State, as_fairlead
from fairlead.client.durable.producer import Producer
from fairlead.errors import ConnectionLost, SessionLost, WrongKind

if TYPE_CHECKING:
    from fairlead.client.durable.consumer import DurableConsumer
    from fairlead.client.durable.pattern import PatternConsumer
    from fairlead.client.durable.road import Road
    from fairlead.client.durable.transaction import DurableTransaction

__all__ = ["DurableSession", "State", "all_told"]


class DurableSession:
    """What is sent, received and settled in order; at most one transaction at a time, over all parts."""

    def __init__(self, road: Road, ack: str) -> None:
        self.road = road
        self.ack = ack
        self.error: Exception | None = None
        self.is_over = False
        self.stopped = False
        self.transaction: DurableTransaction | None = None
        self.transactions = 0  # how many it has begun: the number of the newest, in all its parts
        self.transfers = 0  # the same of very large messages
        self.patterns: list[PatternConsumer] = []
        self._others: dict[str, Part] = {}
        self._home = self._made(road.first.name)

    @property
    def home(self) -> Part:
        """The part in the first group; another one when the last was given up for lost."""
        if self._home.state is State.ENDED and not self.is_over:
            self._home = self._made(self.road.first.name)
        return self._home

    @property
    def parts(self) -> list[Part]:
        return [self._home, *self._others.values()]

    def part(self, group: str) -> Part:
        """In this group; opened when something of it is used."""
        if not self.road.is_cluster or group == self.road.first.name:
            return self.home
        found = self._others.get(group)
        if found is None or (found.state is State.ENDED and not self.is_over):
            found = self._others[group] = self._made(group)
        return found

    def _made(self, group: str) -> Part:
        of = self.road.group(group)
        made = Part(self, of)
        of.parts.append(made)
        return made

    @property
    def id(self) -> str:
        """The server's id of the part at home; empty before its first use."""
        return self._home.id

    @property
    def state(self) -> State:
        return State.ENDED if self.is_over else self._home.state

    @property
    def is_open(self) -> bool:
        """Is there anything open of it?"""
        return any(part.is_open for part in self.parts)

    @property
    def is_idle(self) -> bool:
        """Is everything sent confirmed or refused?"""
        return all(part.is_idle for part in self.parts)

    @property
    def in_flight(self) -> int:
        return sum(part.in_flight for part in self.parts)

    # What the application opens.

    def producer(
        self, destination: str, kind: str, *, create: bool = False, parameters: dict[str, Any] | None = None
    ) -> Producer:
        """The way to a destination; opened when it is first asked for."""
        found = self._home.producers.get(destination)
        if found is None and self._others:
            found = next(
                (part.producers[destination] for part in self._others.values() if destination in part.producers), None
            )
        if found is not None and kind and found.kind and kind != found.kind:
            raise WrongKind(f"{destination!r} is a {found.kind}, and not a {kind}.")
        if found is None:
            part, is_placed = self._place_of(destination)
            found = Producer(part, destination, kind, create=create, parameters=parameters or {})
            if self.is_over:
                found.error = as_fairlead(self.error or SessionLost())
                return found
            if not is_placed:
                part.unplaced.add(found)
            part.add_producer(found)
        return found

    def add_consumer(self, consumer: DurableConsumer) -> None:
        part, is_placed = self._place_of(consumer.destination)
        if self.is_over:
            consumer.fail(self.error or SessionLost())
            return
        if not is_placed:
            part.unplaced.add(consumer)
        part.add_consumer(consumer)

    def add_pattern(self, pattern: PatternConsumer) -> None:
        """One consumer for each group; at home alone until it is known which there are."""
        self.patterns.append(pattern)
        pattern.join(self.road.groups if self.road.is_cluster else (self.road.first.name,))

    def on_groups(self) -> None:
        """It has become known which groups there are, or there are others now."""
        for one in list(self._home.unplaced):
            self.place(one)
        for pattern in list(self.patterns):
            pattern.join(self.road.groups)

    def _place_of(self, destination: str) -> tuple[Part, bool]:
        """Where to put it, and whether it can stay there."""
        if not self.road.is_known:
            return self.home, False
        if not self.road.is_cluster:
            return self.home, True
        group = self.road.places.get(destination)
        return (self.home, False) if group is None else (self.part(group), True)

    def place(self, one: Producer | DurableConsumer) -> None:
        """Ask where it belongs, and bring it there."""
        waiting = one.part

        def told(group: str, error: Exception | None) -> None:
            if one not in waiting.unplaced:
                return
            if error is not None:
                waiting.unplaced.discard(one)
                one.fail(as_fairlead(error))
            else:
                waiting.hand_over(one, self.part(group))

        self.road.places.locate(one.destination, told)

    def scout(self) -> None:
        """The first group does not answer, and it is not known whether there are others: who has the names may know."""
        names = [*self._home.producers, *(consumer.destination for consumer in self._home.consumers)]
        if names:
            self.road.places.locate(names[0], self.road.on_scouted)

    # Questions.

    def ask(self, command: Command) -> None:
        """At home: of what belongs to no destination."""
        self.home.ask(command)

    def ask_at(self, destination: str, command: Command) -> None:
        """In the group that has the destination."""

        def known(facts: Facts, error: Exception | None) -> None:
            if error is not None:
                command.reply({}, error)
            elif self.road.is_cluster:
                self.road.places.locate(destination, located)
            else:
                self.ask(command)

        def located(group: str, error: Exception | None) -> None:
            if error is not None:
                command.reply({}, error)
            else:
                self.part(group).ask(command)

        self._when_known(known)

    def ask_everywhere(self, do: str, fields: Facts, reply: Reply) -> None:
        """In every group: done when one has done it and the others had nothing to do with it."""

        def known(facts: Facts, error: Exception | None) -> None:
            if error is not None:
                reply({}, error)
                return
            parts = [self.part(name) for name in self.road.groups] if self.road.is_cluster else [self.home]
            errors: list[Exception] = []
            left = len(parts)

            def told(facts: Facts, error: Exception | None) -> None:
                nonlocal left
                left -= 1
                if error is not None:
                    errors.append(error)
                if not left:
                    reply({}, errors[0] if len(errors) == len(parts) else None)

            for part in parts:
                part.ask(Command(do, dict(fields), told))

        self._when_known(known)

    def _when_known(self, then: Reply) -> None:
        """When it is known whether there is a cluster: the first answer of the server says it."""
        if self.road.is_known:
            then({}, None)
        else:
            self.home.when_open(then)

    def flow(self, stop: bool, reply: Reply) -> None:
        """No deliveries, or deliveries again, in all parts; `reply` when all have agreed."""
        self.stopped = stop
        told = all_told([part for part in self.parts if part.is_open], reply)
        for part in self.parts:
            if part.is_open:
                part.ask(Command("flow", {"stop": stop}, told, on_loss="moot"))

    # Its end.

    def on_part_over(self, part: Part, error: Exception) -> None:
        """A part that was given up is replaced when it is next used; without a cluster that is the end of all."""
        if not self.is_over and (part is not self._home or self.road.is_cluster):
            for pattern in list(self.patterns):
                pattern.on_part_over(part)
            return
        self._finish(error)

    def fail(self, error: Exception) -> None:
        """It is over: everybody who waits is told."""
        self._finish(error)
        for part in self.parts:
            part.fail(error)

    def _finish(self, error: Exception) -> None:
        if not self.is_over:
            self.is_over = True
            self.error = error
            self.road.forget(self)

    def end(self, reply: Reply) -> None:
        """An orderly end of all parts, behind everything said so far."""

        def ended(facts: Facts, error: Exception | None) -> None:
            self.fail(ConnectionLost("The session was closed by this program."))
            reply({}, None)

        parts = self.parts
        told = all_told(parts, ended)
        for part in parts:
            part.end(told)


def all_told(asked: Sequence[object], reply: Reply) -> Reply:
    """A callback for each of these; `reply` is called after the last, with the first error there was."""
    left = len(asked)
    failed: Exception | None = None

    def told(facts: Facts, error: Exception | None) -> None:
        nonlocal left, failed
        left -= 1
        failed = failed or error
        if not left:
            reply({}, failed)

    if not asked:
        reply({}, None)
    return told
