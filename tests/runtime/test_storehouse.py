"""The whole store: made, measured, looked into without anybody running."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.runtime import storehouse
from fairlead.runtime.config import load
from fairlead.runtime.settings import Config
from fairlead.runtime.status import look
from fairlead.store import layout
from fairlead.store.connections import ConnectionTable
from fairlead.store.edge import segment


def small() -> Config:
    return load(
        None,
        {},
        {
            "store.arena_bytes": 1 << 20,
            "store.routing_bytes": 1 << 20,
            "fairness.queue_bytes": 1 << 16,
            "limits.connections_per_manager": 8,
        },
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    storehouse.create(tmp_path / "s", small(), managers=2, mode=layout.MODE_PLAIN, server_id=9, unix_s=1000)
    return tmp_path / "s"


def test_every_segment_is_there_and_the_sizes_add_up(store: Path) -> None:
    per_manager = {f"{name}-{i}" for name in ("up", "down", "arena", "counters-manager") for i in range(2)}
    assert {path.name for path in store.iterdir()} == {
        *per_manager,
        "routing",
        "connections",
        "counters-router",
        "counters-dispatcher",
        "counters-message-manager",
    }
    assert sum(path.stat().st_size for path in store.iterdir()) == storehouse.bytes_needed(small(), 2)


@pytest.mark.requirement("SRV-127", state="half")
def test_the_report_is_read_from_the_store_alone(store: Path) -> None:
    one = segment.open_segment(store / "connections", layout.KIND_CONNECTIONS)
    table = ConnectionTable(one.view)
    uid, index = table.open(1, "127.0.0.1:1", 5) or (0, 0)
    table.adopt(1, index, uid, 4)
    peek = storehouse.Peek(store, 2)
    seen = look(peek, handle=1 << layout.HANDLE_ARENA_SHIFT)
    assert [(entry.uid, entry.manager, entry.descriptor) for entry in seen.connections] == [(1000 << 20, 1, 4)]
    assert [manager.connections for manager in seen.managers] == [0, 1]
    assert all(manager.reading and manager.queue == 0 for manager in seen.managers)
    assert seen.message == {"handle": 1 << layout.HANDLE_ARENA_SHIFT, "stored": False}
    assert seen.routing["attachments"] == []
    assert look(peek, brief=True).connections == []
    peek.close()
    del table
    one.close()


def test_a_store_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise ConfigError("no room")

    monkeypatch.setattr(segment, "create_connections", full)
    with pytest.raises(ConfigError, match="no room"):
        storehouse.create(tmp_path / "s", small(), managers=1, mode=1, server_id=9, unix_s=1000)
    assert not (tmp_path / "s").exists()


def test_no_managers_means_one_per_core() -> None:
    assert storehouse.managers_of(load(None, {}, {"server.managers": 5})) == 5
    assert 1 <= storehouse.managers_of(load(None, {})) <= 24
