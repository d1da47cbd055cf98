"""Which series the history has: what each is called, in which unit, and how it comes out of a status report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fairlead.console.counting import Report, managers_of
from fairlead.console.rates import Rates
from fairlead.console.shapes_messages import Destination
from fairlead.console.shapes_server import Latency


class Meaning(NamedTuple):
    unit: str
    text: str
    worst: bool = False  # ten seconds are told by their highest value, not by their mean


FIXED: Final[dict[str, Meaning]] = {
    "messages.in": Meaning("messages/s", "Messages read from clients."),
    "messages.out": Meaning("messages/s", "Messages handed to clients."),
    "bytes.in": Meaning("bytes/s", "Bytes read from clients."),
    "bytes.out": Meaning("bytes/s", "Bytes written to clients."),
    "connections": Meaning("connections", "Client connections."),
    "routed": Meaning("messages/s", "Messages the router found recipients for."),
    "deliveries": Meaning("messages/s", "Recipients the router named."),
    "requests.open": Meaning("requests", "Requests and conversations under way."),
    "under-way": Meaning("messages", "Transient messages in the arenas.", worst=True),
    "durable.stored": Meaning("messages/s", "Messages stored, and confirmed to their senders."),
    "durable.delivered": Meaning("messages/s", "Stored messages handed to consumers."),
    "durable.settled": Meaning("messages/s", "Stored messages acknowledged by consumers."),
    "durable.bytes": Meaning("bytes/s", "Bytes of messages stored."),
    "durable.syncs": Meaning("flushes/s", "Flushes of the journal to stable storage."),
    "durable.dead": Meaning("messages/s", "Messages moved to a dead message queue."),
    "durable.expired": Meaning("messages/s", "Messages that expired."),
    "depth": Meaning("messages", "Messages waiting in all queues and topics."),
    "depth.bytes": Meaning("bytes", "Bytes of these."),
    "blocked": Meaning("destinations", "Destinations whose producers are held back.", worst=True),
    "latency.p50": Meaning("ms", "Round trip of a tiny message: half of them were quicker."),
    "latency.p99": Meaning("ms", "Round trip of a tiny message: all but one in a hundred were quicker.", worst=True),
    "update.pause": Meaning("ms", "The pause a live update or a takeover caused.", worst=True),
    "fairness": Meaning("ratio", "How evenly managers were served: 1 is even, 1/managers is one for all."),
}
MANAGER: Final[dict[str, Meaning]] = {
    "in": Meaning("messages/s", "Messages this manager read from clients."),
    "out": Meaning("messages/s", "Messages this manager handed to clients."),
    "bytes.in": Meaning("bytes/s", "Bytes this manager read from clients."),
    "bytes.out": Meaning("bytes/s", "Bytes this manager wrote to clients."),
    "connections": Meaning("connections", "Connections of this manager."),
    "share": Meaning("ratio", "Of all messages read, the share of this manager."),
    "ring.up": Meaning("ratio", "How full its ring towards the router is.", worst=True),
    "ring.down": Meaning("ratio", "How full its ring from the router is.", worst=True),
    "arena": Meaning("ratio", "How full its arena is.", worst=True),
}
DESTINATION: Final[dict[str, Meaning]] = {
    "depth": Meaning("messages", "Messages waiting in this destination."),
    "in": Meaning("messages/s", "Messages stored in this destination."),
    "out": Meaning("messages/s", "Messages of this destination handed to consumers."),
}
PER_MANAGER: Final = len(MANAGER)


def columns_for(managers: int, destinations: int) -> int:
    """Series a history needs room for; destinations come and go, so twice as many of them."""
    return len(FIXED) + managers * PER_MANAGER + 2 * len(DESTINATION) * destinations + 8


def meaning_of(name: str) -> Meaning:
    if name in FIXED:
        return FIXED[name]
    kind, _, rest = name.partition("/")
    if kind == "manager":
        return MANAGER.get(rest.partition("/")[2], Meaning("", ""))
    return DESTINATION.get(kind, Meaning("", ""))


def joined(name: str, values: list[float]) -> float:
    """One value for ten seconds."""
    return max(values) if meaning_of(name).worst else sum(values) / len(values)


def values_of(
    report: Report, rates: Rates, *, arena_bytes: int, latency: Latency | None, pauses_ms: list[float]
) -> dict[str, float | None]:
    """The values of this second, out of the report."""
    managers = managers_of(report)

    def all_of(name: str) -> float | None:
        return rates.total([f"manager/{index}/{name}" for index in managers])

    messages = report["messages"]
    found: dict[str, float | None] = {
        "messages.in": all_of("messages_in"),
        "messages.out": all_of("messages_out"),
        "bytes.in": all_of("bytes_in"),
        "bytes.out": all_of("bytes_out"),
        "connections": sum(one["connections"] for one in report["managers"]),
        "routed": rates["router/messages_routed"],
        "deliveries": rates["router/deliveries"],
        "requests.open": report["router"]["requests_open"],
        "under-way": report["stored"],
        "durable.stored": rates["messages/stored"],
        "durable.delivered": rates["messages/delivered"],
        "durable.settled": rates["messages/settled"],
        "durable.bytes": rates["messages/stored_bytes"],
        "durable.syncs": rates["messages/syncs"],
        "durable.dead": rates["messages/dead"],
        "durable.expired": rates["messages/expired"],
        "depth": messages.get("depth"),
        "depth.bytes": messages.get("depth_bytes"),
        "blocked": messages.get("blocked"),
        "latency.p50": latency.p50_ms if latency else None,
        "latency.p99": latency.p99_ms if latency else None,
        "update.pause": max(pauses_ms) if pauses_ms else None,
    }
    taken = [rates[f"manager/{index}/messages_in"] for index in managers]
    known = [value for value in taken if value is not None]
    found["fairness"] = evenness(known) if len(known) == len(managers) else None
    total = sum(known)
    for one, rate in zip(report["managers"], taken, strict=True):
        name, key = f"manager/{one['index']}", f"manager/{one['index']}"
        found |= {
            f"{name}/in": rate,
            f"{name}/out": rates[f"{key}/messages_out"],
            f"{name}/bytes.in": rates[f"{key}/bytes_in"],
            f"{name}/bytes.out": rates[f"{key}/bytes_out"],
            f"{name}/connections": one["connections"],
            f"{name}/share": rate / total if rate is not None and total else None,
            f"{name}/ring.up": _fill(one["up"]),
            f"{name}/ring.down": _fill(one["down"]),
            f"{name}/arena": one["stored_bytes"] / arena_bytes if arena_bytes else 0.0,
        }
    return found


def of_destinations(rows: Iterable[Destination], most: int) -> dict[str, float | None]:
    """Depth and rates of the busiest destinations."""
    busiest = sorted(rows, key=lambda one: (one.own, -(one.rate_in or 0) - (one.rate_out or 0), -one.depth, one.name))
    found: dict[str, float | None] = {}
    for one in busiest[:most]:
        found |= {f"depth/{one.name}": float(one.depth), f"in/{one.name}": one.rate_in, f"out/{one.name}": one.rate_out}
    return found


def evenness(rates: list[float]) -> float | None:
    """Jain's index of these."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else None


def _fill(ring: dict[str, int]) -> float:
    return ring["bytes"] / ring["capacity"] if ring["capacity"] else 0.0
