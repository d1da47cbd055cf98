"""All segments of one server together: how large they are, making them, looking into them from the supervisor.

The supervisor makes the store and from then on only reads it; `Peek` is its read-only view, which works whether or not
the processes that write are running (SRV-127).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.runtime.config import Config
from fairlead.runtime.counters import Counters
from fairlead.store import layout
from fairlead.store.connections import ConnectionTable
from fairlead.store.edge import segment
from fairlead.store.edge.segment import Segment

ROUTING_FIRST_BYTES = 1 << 20


def managers_of(config: Config) -> int:
    """How many managers the configuration asks for; 0 is one per core."""
    return config.server.managers or min(len(os.sched_getaffinity(0)), 24)


def bytes_needed(config: Config, managers: int) -> int:
    """All of the store once everything in it is in use."""
    rings = 2 * managers * layout.ring_bytes(config.fairness.queue_bytes)
    arenas = managers * layout.arena_plan(_blocks(config)).size
    table = layout.connections_bytes(managers, config.limits.connections_per_manager)
    return rings + arenas + table + layout.routing_bytes(_area_bytes(config)) + (managers + 3) * layout.COUNTERS_BYTES


def create(directory: Path, config: Config, *, managers: int, mode: int, server_id: int, unix_s: int) -> None:
    """Make every segment; raises ConfigError, leaving nothing behind, when one cannot be made."""
    segment.remove_directory(directory)
    segment.make_directory(directory)
    made: list[Segment] = []
    common: dict[str, Any] = {"mode": mode, "server_id": server_id}
    try:
        for i in range(managers):
            ring: dict[str, Any] = {"index": i, "capacity": config.fairness.queue_bytes, **common}
            made.append(
                segment.create_ring(directory / layout.up_name(i), entries_max=config.fairness.queue_entries, **ring)
            )
            made.append(segment.create_ring(directory / layout.down_name(i), entries_max=0, **ring))
            made.append(
                segment.create_arena(
                    directory / layout.arena_name(i),
                    index=i,
                    blocks=_blocks(config),
                    first_blocks=max(1, config.store.arena_step_bytes // layout.BLOCK_BYTES),
                    **common,
                )
            )
            made.append(segment.create_counters(directory / layout.counters_name("manager", i), index=i, **common))
        made.append(
            segment.create_routing(
                directory / layout.ROUTING_NAME,
                area_bytes=_area_bytes(config),
                first_bytes=ROUTING_FIRST_BYTES,
                **common,
            )
        )
        table = segment.create_connections(
            directory / layout.CONNECTIONS_NAME,
            managers=managers,
            per_manager=config.limits.connections_per_manager,
            **common,
        )
        made.append(table)
        ConnectionTable(table.view).begin_uids(unix_s)
        for role in ("router", "dispatcher", "message-manager"):
            made.append(segment.create_counters(directory / layout.counters_name(role), index=0, **common))
    except BaseException:
        segment.remove_directory(directory)
        raise
    finally:
        for one in made:
            one.close()


def complete(directory: Path, *, mode: int, server_id: int) -> None:
    """Add to a running server's store the segment that an earlier version did not make."""
    path = directory / layout.counters_name("message-manager")
    if not path.exists():
        segment.create_counters(path, index=0, mode=mode, server_id=server_id).close()


def _blocks(config: Config) -> int:
    return max(1, config.store.arena_bytes // layout.BLOCK_BYTES)


def _area_bytes(config: Config) -> int:
    return max(1 << 16, config.store.routing_bytes // 2 // 4096 * 4096)


class Peek:
    """The store as the supervisor sees it: read-only, each segment mapped when first asked for."""

    def __init__(self, directory: Path, managers: int) -> None:
        self.directory = directory
        self.managers = managers
        self._segments: dict[str, Segment] = {}

    def segment(self, name: str, kind: int) -> Segment:
        if name not in self._segments:
            self._segments[name] = segment.open_segment(self.directory / name, kind, read_only=True)
        return self._segments[name]

    def view(self, name: str, kind: int) -> memoryview:
        return self.segment(name, kind).view

    def up(self, manager: int) -> memoryview:
        return self.view(layout.up_name(manager), layout.KIND_RING)

    def down(self, manager: int) -> memoryview:
        return self.view(layout.down_name(manager), layout.KIND_RING)

    def arena(self, manager: int) -> memoryview:
        return self.view(layout.arena_name(manager), layout.KIND_ARENA)

    def routing(self) -> memoryview:
        return self.view(layout.ROUTING_NAME, layout.KIND_ROUTING)

    def connections(self) -> ConnectionTable:
        return ConnectionTable(self.view(layout.CONNECTIONS_NAME, layout.KIND_CONNECTIONS))

    def counters(self, role: str, index: int = 0) -> Counters:
        return Counters(role, self.view(layout.counters_name(role, index), layout.KIND_COUNTERS))

    def stored(self, census: Callable[[memoryview], tuple[int, int]]) -> tuple[int, int]:
        """Messages and bytes in all arenas."""
        found = [census(self.arena(manager)) for manager in range(self.managers)]
        return sum(count for count, _ in found), sum(size for _, size in found)

    def close(self) -> None:
        for one in self._segments.values():
            one.close()
        self._segments = {}
