"""The disk that forgets: does the recorder see everything, and does the model keep what was synced and nothing else?"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.durable import power

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(power.compiler() is None, reason="needs a C compiler"),
]

PROGRAM = """
import os, sys
place = sys.argv[1]
a = os.open(place + "/a", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(a, 0, 4096)
os.pwrite(a, b"safe" * 300, 100)
os.fdatasync(a)
directory = os.open(place, os.O_RDONLY)
os.fsync(directory)
os.pwritev(a, [b"not ", b"safe"], 2000)
with open(place + "/b", "wb") as b:
    b.write(b"old")
    b.flush()
    os.fsync(b.fileno())
os.rename(place + "/b", place + "/c")
os.ftruncate(a, 3000)
if sys.argv[2] == "synced":
    os.fsync(directory)
    os.fsync(a)
"""


def record(tmp_path: Path, how: str) -> power.Disk:
    data = tmp_path / "data"
    data.mkdir()
    disk = power.Disk(data, tmp_path)
    subprocess.run([sys.executable, "-c", PROGRAM, str(data), how], check=True, env=os.environ | disk.environment)
    return disk


def test_what_was_recorded_is_what_was_done(tmp_path: Path) -> None:
    disk = record(tmp_path, "unsynced")
    seen = {path: file.content() for path, file in disk.catch_up().names.items()}
    assert seen == {str(path): path.read_bytes() for path in disk.directory.iterdir()}


def test_synced_things_survive_and_others_may_not(tmp_path: Path) -> None:
    disk = record(tmp_path, "unsynced")
    a, b, c = (str(disk.directory / name) for name in "abc")
    sizes, names = set(), set()
    for seed in range(50):
        survived = disk.catch_up().after_power_loss(random.Random(seed))
        assert survived[a][100:1300] == b"safe" * 300
        sizes.add((len(survived[a]), survived[a][2000:2008]))
        names |= survived.keys() - {a}
        assert all(survived[name] in (b"old", b"") for name in (b, c) if name in survived)
    assert {(4096, bytes(8)), (3000, b"not safe")} <= sizes
    assert names == {b, c}


def test_everything_survives_once_it_is_synced(tmp_path: Path) -> None:
    disk = record(tmp_path, "synced")
    before = {path.name: path.read_bytes() for path in disk.directory.iterdir()}
    disk.lose_power(random.Random(1))
    assert {path.name: path.read_bytes() for path in disk.directory.iterdir()} == before
