"""What people and monitors read: what this address is, the status as JSON, counters for Prometheus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fairlead.runtime.version import VERSION

if TYPE_CHECKING:
    from fairlead.tunnel.edge.gateway.station import Station

__all__ = ["METRICS", "about", "metrics", "status_json"]

METRICS = "text/plain; version=0.0.4; charset=utf-8"


def about(url: str, name: str = "") -> bytes:
    """For whoever opens the address of a tunnel in a browser."""
    shown = f"{url}/{printable(name)}" if name else f"{url}/NAME"
    whose = (
        f"This is where tunnels to the broker {printable(name)!r} begin" if name else "Tunnels to brokers begin here"
    )
    return (
        f"Fairlead {VERSION}: a gateway of HTTP tunnels.\n\n"
        f"{whose}. A browser can do nothing with it; a program connects with\n\n"
        f'    import fairlead\n    connection = await fairlead.connect("{shown}")\n\n'
        f"Is it well? {url}/health    What is it doing? {url}/status (on this host)\n"
    ).encode()


def printable(name: str) -> str:
    return "".join(letter if letter.isprintable() and letter not in "\"'\\" else "?" for letter in name[:255])


def report(station: Station) -> dict[str, Any]:
    status = asdict(station.status())
    return {"version": VERSION, "leaving": station.leaving, **status, "edge": report_edge(station)}


def report_edge(station: Station) -> dict[str, Any]:
    """What the machine does not see."""
    counters = station.counters
    return {
        "requests": counters.requests,
        "replies": {str(status): number for status, number in sorted(counters.replies.items())},
        "damaged_links": counters.damaged_links,
        "links_broken": counters.links_broken,
        "dropped_links": counters.dropped_links + sum(link.dropped for link in station.links()),
        "dropped_streams": counters.dropped_streams + sum(stream.dropped for stream in station.streams()),
    }


def status_json(station: Station) -> bytes:
    return json.dumps(report(station), separators=(",", ":")).encode()


def metrics(station: Station) -> bytes:
    """The text format of Prometheus."""
    status, edge = station.status(), report_edge(station)
    counters = asdict(status.counters)
    refused = counters.pop("refused")
    carriers = Counter(tunnel.carrier for tunnel in status.tunnels)
    servers = Counter(tunnel.server for tunnel in status.tunnels)
    lines = [
        *family("tunnels", "gauge", "Tunnels there are.", [("", len(status.tunnels))]),
        *family("carrier_tunnels", "gauge", "Tunnels by what carries them.", labelled("carrier", carriers)),
        *family("server_tunnels", "gauge", "Tunnels by broker.", labelled("server", servers)),
        *family("links", "gauge", "Links of brokers.", [("", len(status.links))]),
        *family("buffered_bytes", "gauge", "What waits for clients.", [("", status.buffered_bytes)]),
        *family("requests_total", "counter", "Requests by type.", labelled("type", edge["requests"])),
        *family("replies_total", "counter", "Answers by status.", labelled("status", edge["replies"])),
        *family("refused_total", "counter", "Refusals of the gateway by status.", labelled("status", refused)),
    ]
    for name, value in counters.items():
        lines += family(f"{name}_total", "counter", f"{name.replace('_', ' ').capitalize()}, so far.", [("", value)])
    for name in ("damaged_links", "links_broken", "dropped_links", "dropped_streams"):
        lines += family(f"edge_{name}_total", "counter", f"{name.replace('_', ' ').capitalize()}.", [("", edge[name])])
    return ("\n".join(lines) + "\n").encode()


def family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    full = f"fairlead_tunnel_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} {kind}", *(f"{full}{label} {value}" for label, value in samples)]


def labelled(label: str, values: Mapping[Any, float]) -> list[tuple[str, float]]:
    return [(f'{{{label}="{escaped(str(name))}"}}', value) for name, value in sorted(values.items())]


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
