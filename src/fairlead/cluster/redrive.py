"""Dead messages back to where they came from: singly, or in bulk by reason, origin or selector (CLU-202).

Each message leaves the dead queue and arrives at its destination in one record, so an interruption leaves it in
exactly one place and the command can simply be given again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from fairlead.errors import NoDestination, WrongKind
from fairlead.security.spaces import owner, prefix_of
from fairlead.wire.properties import lookup

if TYPE_CHECKING:
    from fairlead.cluster.host import Host

PAGE: Final = 500
LOOKED_MAX: Final = 20_000
"""Messages one command looks at; `next` says where the following one goes on."""


class Redrive(Struct, kw_only=True):
    """What to take out of a dead queue, and where to."""

    destination: str = "_DMQ"  # the dead queue
    orders: Annotated[list[int], Meta(max_length=1000)] = []
    reason: str = ""
    origin: str = ""
    selector: str = ""
    to: str = ""  # another destination than the one each came from
    dry_run: bool = False
    start: Annotated[int, Meta(ge=0)] = 0
    count: Annotated[int, Meta(ge=1, le=20_000)] = 1000


def redrive(core: Host, asked: Redrive) -> dict[str, Any]:
    """Do it: how many went where, how many could not and why, and where to go on."""
    source = core.find(asked.destination)
    if source is None:
        raise NoDestination(f"There is no queue {asked.destination!r}.")
    if source.kind != "queue":
        raise WrongKind(f"{asked.destination!r} is a topic; dead messages are in queues.")
    if asked.to and core.find(asked.to) is None:
        raise NoDestination(f"There is no queue or topic {asked.to!r}.")
    wanted = set(asked.orders)
    moved: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    at: int | None = max(asked.start, min(wanted, default=0))
    looked = 0
    waits = False
    while at is not None and looked < LOOKED_MAX and moved.total() < asked.count and not waits:
        page = source.browse(at, PAGE, asked.selector)
        looked += PAGE
        at, waits = page.next, page.waits
        by_target: dict[str, list[int]] = {}
        for seen in page.messages:
            headers = bytes(seen.entry.headers)
            origin = lookup(headers, b":dead-destination")
            if origin:
                origin = prefix_of(owner(source.name)) + str(origin)  # a tenant's dead messages say it without
            if (
                (wanted and seen.order not in wanted)
                or (asked.reason and lookup(headers, b":dead-reason") != asked.reason)
                or (asked.origin and origin != asked.origin)
            ):
                continue
            if moved.total() + sum(map(len, by_target.values())) >= asked.count:
                at = seen.order
                break
            if seen.state != "ready":
                failed[f"held ({seen.state})"] += 1
                continue
            by_target.setdefault(asked.to or str(origin or ""), []).append(seen.order)
        for name, orders in by_target.items():
            target = core.find(name) if name else None
            if target is None:
                failed[f"no destination {name!r}" if name else "its origin is not known"] += len(orders)
            elif target is source:
                failed["it is where it came from"] += len(orders)
            else:
                done = len(orders) if asked.dry_run else source.move(orders, target)
                moved[name] += done
                if done < len(orders):
                    failed["could not be moved now"] += len(orders) - done
        if wanted and (at is None or at > max(wanted)):
            at = None
    return {
        "moved": moved.total(),
        "to": dict(moved),
        "failed": dict(failed),
        "dry_run": asked.dry_run,
        "next": at,
        "waits": waits,
    }
