"""Money moves between two groups of real processes, while primaries and the agent are killed (CLU-155)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest

import fairlead
from fairlead.errors import CommitUnknown, FairleadError
from tests.cluster.agent.node_rig import CmNode
from tests.cluster.members.rig import Nodes, until

LEFT, RIGHT = "left", "right"
COINS = 40

pytestmark = [pytest.mark.processes, pytest.mark.nodes]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two groups, each with a member on each of two nodes, and a witness."""
    folder = tmp_path_factory.mktemp("bank")
    made = Nodes(folder, groups=("a", "b"), pins={"a": [LEFT], "b": [RIGHT]}, messages={"segment_bytes": 1 << 20})
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def cm(nodes: Nodes) -> Iterator[CmNode]:
    with CmNode(nodes) as node:
        until(lambda: node.groups_up() == {"a", "b"}, "both groups are linked")
        yield node
        print(node.output())


class Bank:
    """Tellers that move coins from one queue to the other, and an auditor at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.moved = self.undone = self.unknown = 0
        self.over = False

    async def found(self) -> None:
        async with await fairlead.connect(self.url) as connection:
            for number in range(COINS):
                await connection.queue(LEFT if number % 2 else RIGHT).send(b"coin %d" % number)

    async def teller(self, source: str, target: str) -> None:
        async with await fairlead.connect(self.url) as connection:
            while not self.over:
                try:
                    async with connection.transaction() as transaction:
                        coin = await transaction.receive(source, timeout=0.5)
                        if coin is not None:
                            await transaction.send(target, coin.body)
                    self.moved += coin is not None
                except CommitUnknown:
                    self.unknown += 1
                except FairleadError:
                    self.undone += 1

    async def audit(self) -> list[bytes]:
        found: list[bytes] = []
        async with await fairlead.connect(self.url) as connection:
            for name in (LEFT, RIGHT):
                async with connection.queue(name).consume() as consumer:
                    while (coin := await consumer.receive(timeout=2)) is not None:
                        found.append(bytes(coin.body))
                        await coin.ack(confirm=True)
        return found

    async def run(self, *hurts: Callable[[], None]) -> None:
        await self.found()
        tellers = [asyncio.create_task(self.teller(*way)) for way in ((LEFT, RIGHT), (RIGHT, LEFT)) * 2]
        for hurt in hurts:
            await self._progress()
            await asyncio.to_thread(hurt)
        await self._progress()
        self.over = True
        await asyncio.gather(*tellers)

    async def _progress(self, count: int = 10) -> None:
        wanted = self.moved + count
        while self.moved < wanted:
            await asyncio.sleep(0.01)


@pytest.mark.requirement("CLU-155", state="scaled", note="dozens of transfers; two primaries and two agents are killed")
@pytest.mark.requirement("CLU-79", "CLU-163", "CLU-166", "CLU-167", "CLU-168", "CLU-169", state="half", note="the sum")
def test_money_is_neither_made_nor_lost_by_real_processes(nodes: Nodes, cm: CmNode) -> None:
    def kill_primary(group: str) -> None:
        nodes.kill(nodes.wait_in_sync(2, group))

    def kill_agent() -> None:
        pid = cm.agent_pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: cm.agent_pid() not in (0, pid), "another agent")

    bank = Bank(cm.url)

    async def run() -> list[bytes]:
        async with asyncio.timeout(100):
            await bank.run(lambda: kill_primary("a"), kill_agent, lambda: kill_primary("b"), kill_agent)
            until(lambda: not cm.ask("transactions")["transactions"], "nothing is open in any group")
            return await bank.audit()

    coins = asyncio.run(run())
    print(f"moved {bank.moved}, undone {bank.undone}, unknown {bank.unknown}")
    assert sorted(coins) == sorted(b"coin %d" % number for number in range(COINS))
