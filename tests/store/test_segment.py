"""Segments as files: made, mapped, refused."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.store import layout
from fairlead.store.edge import segment


def make_ring(directory: Path, mode: int = layout.MODE_COMPILED) -> Path:
    path = directory / "up-1"
    segment.create_ring(path, index=1, capacity=65536, entries_max=10, mode=mode, server_id=42).close()
    return path


def test_a_ring_has_all_its_memory_and_its_header(tmp_path: Path) -> None:
    path = make_ring(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_blocks * 512 >= 4096 + 65536
    one = segment.open_segment(path, layout.KIND_RING, mode=layout.MODE_COMPILED)
    assert (one.index, one.server_id, one.size) == (1, 42, 4096 + 65536)
    assert struct.unpack_from("<QQ", one.map, layout.RING_CAPACITY) == (65536, 10)
    one.close()


def test_arena_and_routing_are_sparse(tmp_path: Path) -> None:
    common = {"mode": layout.MODE_PLAIN, "server_id": 1}
    arena = segment.create_arena(tmp_path / "arena-0", index=0, blocks=4096, first_blocks=16, **common)
    routing = segment.create_routing(tmp_path / "routing", area_bytes=1 << 26, first_bytes=1 << 20, **common)
    assert struct.unpack_from("<QQ", arena.map, layout.ARENA_BLOCKS) == (4096, 16)
    for one, memory in ((arena, 2 << 20), (routing, 2 << 20)):
        facts = one.path.stat()
        assert facts.st_size == one.size > 100 << 20
        assert facts.st_blocks * 512 <= memory
        one.close()


def test_a_read_only_mapping_cannot_write(tmp_path: Path) -> None:
    one = segment.open_segment(make_ring(tmp_path), layout.KIND_RING, read_only=True)
    with pytest.raises(TypeError):
        one.view[0] = 1
    one.close()


@pytest.mark.requirement("SRV-15")
def test_an_unknown_layout_version_is_refused_and_left_untouched(tmp_path: Path) -> None:
    path = make_ring(tmp_path)
    with path.open("r+b") as file:
        file.seek(layout.HEADER_VERSION)
        file.write(struct.pack("<I", 99))
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"up-1 has layout version 99, this program understands version 1"):
        segment.open_segment(path, layout.KIND_RING)
    assert path.read_bytes() == before


def test_other_modes_kinds_and_files_are_refused_by_name(tmp_path: Path) -> None:
    path = make_ring(tmp_path)
    with pytest.raises(ConfigError, match="used in compiled mode, this program runs in plain mode"):
        segment.open_segment(path, layout.KIND_RING, mode=layout.MODE_PLAIN)
    with pytest.raises(ConfigError, match="is a ring, not a arena"):
        segment.open_segment(path, layout.KIND_ARENA)
    os.truncate(path, 8192)
    with pytest.raises(ConfigError, match="should have 69632 bytes and has 8192"):
        segment.open_segment(path, layout.KIND_RING)
    path.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="is not a segment"):
        segment.open_segment(path, layout.KIND_RING)
    with pytest.raises(ConfigError, match="Cannot open"):
        segment.open_segment(tmp_path / "absent", layout.KIND_RING)


def test_no_room_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match="No room for"):
        make_ring(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_store_is_on_tmpfs_when_it_fits_and_beside_the_data_when_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    chosen = segment.store_directory(data, 1 << 20, tmpfs=tmp_path)
    assert chosen.parent == tmp_path
    assert chosen.name.startswith(f"fairlead-{os.getuid()}-")
    assert chosen == segment.store_directory(data, 1 << 20, tmpfs=tmp_path)
    assert segment.store_directory(data, 1 << 20, tmpfs=tmp_path / "absent") == data / "run" / "store"
    with pytest.raises(ConfigError, match="Make room"):
        segment.store_directory(data, 1 << 60, tmpfs=tmp_path)


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link"):
        segment.make_directory(tmp_path / "link")
