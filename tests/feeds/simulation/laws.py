"""What must hold whatever happens: once and in order or an exact report, one active an epoch, equal numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from fairlead.feeds.block_codec import Block, StreamMessage
from fairlead.feeds.events import Discontinuity, Down, Lost, SnapshotEnded
from fairlead.feeds.records import ADMIN, ADMIN_VOID, MESSAGE
from fairlead.feeds.speech import decode_admin
from fairlead.feeds.words import Fill
from tests.feeds.simulation.feed import body_of, outputs

if TYPE_CHECKING:
    from tests.feeds.simulation.group import Group
    from tests.feeds.simulation.parts import AdapterProgram, ClientProgram


class Broken(Exception):
    """A law that does not hold."""


def check(group: Group) -> None:
    """After the storm has passed and everything had time to heal."""
    for client in group.clients:
        check_messages(group, client)
        check_admins(group, client)
        check_counters(client)
        check_arrived(group, client)
    check_numbers(group)


def check_messages(group: Group, client: ClientProgram) -> None:
    """In the order of each source, once, with the right content; what is missing was reported exactly."""
    begun = group.starts.get(client.name)
    if begun is None:
        raise Broken(f"{client.name} never got its stream")
    truth = {source: outputs(source, 1, last) for feed in group.feeds for source, last in feed.sent.items()}
    place: dict[str, tuple[int, int]] = {}
    seen: dict[str, Counter[tuple[int, int]]] = {source: Counter() for source in truth}
    lost: dict[str, set[tuple[int, int]]] = {source: set() for source in truth}
    for source, placed in begun.items():
        place[source] = whole(placed)
    for item in client.got:
        if isinstance(item, Lost):
            check_loss_is_exact(client, item, place, truth, seen, lost)
        if isinstance(item, SnapshotEnded):
            begun |= {source: (at[0], at[1], at[2]) for source, at in item.positions.items() if source not in place}
            place |= {source: whole(at) for source, at in item.positions.items() if source not in place}
        if isinstance(item, Discontinuity) and not item.source and client.brokered is not None:
            begun |= client.brokered.positions  # no adapter has a snapshot
            place |= {source: whole(at) for source, at in begun.items()}
        if not isinstance(item, StreamMessage) or item.kind != MESSAGE:
            continue
        here = item.sequence, item.part
        if item.body != body_of(item.source, *here):
            raise Broken(f"{client.name}: {item} has another body")
        seen[item.source][here] += 1
        if seen[item.source][here] > 1:
            raise Broken(f"{client.name}: {item} is doubled")
        if item.late:
            continue
        was = place.get(item.source)
        if was is None and client.start_kind == "new":
            was = 0, 1
        if was is not None:
            if here <= was:
                raise Broken(f"{client.name}: {item} is not in order, after {was}")
            between = next_after(truth[item.source], was)
            if between != here and client.gap_policy == "hold":
                raise Broken(f"{client.name}: {item} follows {was}, a silent hole from {between}")
        place[item.source] = here
    for source, places in truth.items():
        if source not in place:
            continue
        first = begun.get(source, (0, 1, 1)) if client.start_kind != "oldest" else min(seen[source], default=(0, 1))
        for each in places:
            after_start = each > (whole(first) if len(first) == 3 else first) and each <= place[source]
            if after_start and not seen[source][each] and each not in lost[source]:
                raise Broken(f"{client.name}: {source} {each} is missing and was not reported")
            if seen[source][each] and each in lost[source]:
                raise Broken(f"{client.name}: {source} {each} was reported lost and delivered")


def whole(placed: tuple[int, int, int]) -> tuple[int, int]:
    """A place as it is compared: after its last part nothing of that source message follows."""
    return placed[0], 65_535 if placed[1] >= placed[2] else placed[1]


def next_after(places: list[tuple[int, int]], place: tuple[int, int]) -> tuple[int, int] | None:
    index = bisect_left(places, (place[0], place[1] + 1))
    return places[index] if index < len(places) else None


def check_loss_is_exact(
    client: ClientProgram,
    item: Lost,
    place: dict[str, tuple[int, int]],
    truth: dict[str, list[tuple[int, int]]],
    seen: dict[str, Counter[tuple[int, int]]],
    lost: dict[str, set[tuple[int, int]]],
) -> None:
    if item.first > item.last:
        raise Broken(f"{client.name}: {item} is empty")
    was = place.get(item.source)
    if client.gap_policy == "hold":
        if was is not None and (item.first, item.first_part) <= was:
            raise Broken(f"{client.name}: {item} goes back behind {was}")
        place[item.source] = item.last, item.last_part or 65_535
    for each in truth[item.source]:
        if (item.first, item.first_part) <= each <= (item.last, item.last_part or 65_535):
            lost[item.source].add(each)


def check_admins(group: Group, client: ClientProgram) -> None:
    """Each one at most once; and once if it is in the stream of an adapter that lives, after this client's start."""
    got = Counter(item.admin.id for item in client.got if isinstance(item, StreamMessage) and item.admin)
    for name, count in got.items():
        if count > 1:
            raise Broken(f"{client.name}: administrative message {name} came {count} times")
    start = group.starts[client.name]
    if client.start_kind == "oldest" or any(isinstance(item, (Lost, Down)) for item in client.got):
        return
    known = {item.source for item in client.got if isinstance(item, StreamMessage)} | set(start)
    wanted: dict[str, str] = {}
    early = set(group.stale_admins)
    early |= {name for name, epoch in group.switches.items() if epoch not in group.actives}  # nothing came of it
    for name, source, place in group.buried:
        if place <= start.get(source, (0, 1, 1))[:2]:
            early.add(name)
    for adapter in group.living:
        for name, source, place in admins_of(adapter):
            begun = start.get(source, (0, 1, 1))
            if place <= (begun[0], begun[1]) or source not in known:
                early.add(name)  # at one of them it was before this client's start
            elif adapter.machine.synchronised:
                wanted[name] = f"{source} {place} of {adapter.name}"
    for name, where in wanted.items():
        if name not in early and not got[name]:
            raise Broken(f"{client.name} never got administrative message {name} after {where}")


def admins_of(adapter: AdapterProgram) -> list[tuple[str, str, tuple[int, int]]]:
    found = []
    for block in blocks_of(adapter):
        if block.mask & (1 << ADMIN | 1 << ADMIN_VOID):
            for i in range(block.count):
                record = block.record(i)
                if record.kind == ADMIN:
                    found.append((decode_admin(record.body).id, block.source, (record.sequence, record.part)))
                elif record.kind == ADMIN_VOID:
                    found.append((record.body.decode(), block.source, (record.sequence, record.part)))
    return found


def blocks_of(adapter: AdapterProgram) -> list[Block]:
    machine = adapter.machine
    filled = machine.fill(Fill(id=1, first=machine.first, last=machine.last))
    return [Block.parse(block) for block in filled.blocks]


def check_counters(client: ClientProgram) -> None:
    """STR-83."""
    counters = client.arbiter.counters
    delivered = sum(isinstance(item, StreamMessage) and item.kind == MESSAGE for item in client.got)
    lost = sum(item.last - item.first + 1 for item in client.got if isinstance(item, Lost))
    if counters["delivered"] != delivered or counters["lost"] != lost:
        raise Broken(f"{client.name}: counters {counters}, though {delivered} were delivered and {lost} lost")


def check_arrived(group: Group, client: ClientProgram) -> None:
    """Once all is healed the client is where the source is."""
    positions = client.arbiter.positions
    for feed in group.feeds:
        last = outputs(feed.id, 1, feed.sent[feed.id])
        here = positions.get(feed.id)
        if last and (here is None or here[:2] < last[-1]):
            raise Broken(f"{client.name} has not arrived: {here} of {feed.id} {last[-1]}, {client.arbiter.state}")
    if client.arbiter.state not in ("normal", "no-backup"):
        raise Broken(f"{client.name} is {client.arbiter.state} in the end")


def check_numbers(group: Group) -> None:
    """Who is active has one epoch for itself; synchronised adapters give equal messages equal numbers (STR-19)."""
    for epoch, names in group.actives.items():
        if len(names) > 1:
            raise Broken(f"epoch {epoch} has the actives {sorted(names)}")
    living = [adapter for adapter in group.living if adapter.machine.synchronised]
    if len(group.living) > 1 and len(living) < 2 and group.is_simple:
        raise Broken("the backup is not synchronised in the end")
    if len(living) < 2 or not group.is_simple:
        return
    numbers: dict[tuple[str, int, int], int] = {}
    for adapter in living:
        for block in blocks_of(adapter):
            for i in range(block.count):
                record = block.record(i)
                if record.kind == MESSAGE and record.number > group.healed_at(adapter):
                    place = block.source, record.sequence, record.part
                    if numbers.setdefault(place, record.number) != record.number:
                        raise Broken(f"{place} has the numbers {numbers[place]} and {record.number} ({adapter.name})")
