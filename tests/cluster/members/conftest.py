"""Member nodes for one test each, and clients of theirs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.members.rig import Client, Nodes

SMALL = {"segment_bytes": 1 << 20}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def begin(**facts: Any) -> Nodes:
        made.append(Nodes(tmp_path / f"{len(made)}", **{"messages": SMALL, **facts}))
        return made[-1]

    yield begin
    for nodes in made:
        for name in list(nodes.keepers):
            try:
                os.kill(int(nodes.status(name)["pid"]), signal.SIGCONT)
            except (KeyError, ProcessLookupError):
                pass
        nodes.stop()
        for name in nodes.names:
            print(f"--- {name}\n{nodes.output(name) if (nodes.directory / f'{name}.out').exists() else ''}")


@pytest.fixture
def client_of() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def begin(nodes: Nodes, group: str = "a", own: str = "cm") -> Client:
        made.append(Client(nodes, group, own))
        return made[-1]

    yield begin
    for client in made:
        client.close()
