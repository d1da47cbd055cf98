"""Several real servers with links between them, and a relay to cut a link with."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import fairlead
from fairlead.client.aio.subscription import Subscription
from fairlead.errors import FairleadError
from fairlead.testing import Server

Servers = dict[str, Server]
STARTED_AT_ONCE = 3  # each has its seconds to be ready, also on a busy machine
SMALL: dict[str, Any] = {"messages.enabled": "false", "limits.frozen_s": "60"}


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def started(
    parents: Mapping[str, Sequence[str]],
    via: Mapping[tuple[str, str], int] | None = None,
    ports: Mapping[str, int] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Servers]:
    """Servers by name, each with its parents; all at once, since bridges wait for the others. `via`: a relay's port."""
    ports = dict(zip(parents, free_ports(len(parents)), strict=True)) | dict(ports or {})
    servers: Servers = {}
    for name, above in parents.items():
        urls = [f"fairlead://127.0.0.1:{(via or {}).get((name, parent), ports[parent])}" for parent in above]
        own = {"links.parents": ",".join(urls)} if urls else {}
        servers[name] = Server(managers=1, listen=f"127.0.0.1:{ports[name]}", **{**SMALL, **own, **(settings or {})})
    with ExitStack() as stack:
        for server in servers.values():
            stack.push(server.__exit__)
        with ThreadPoolExecutor(STARTED_AT_ONCE) as threads:
            list(threads.map(lambda server: server.start(), servers.values()))
        for name, above in parents.items():
            if above:
                servers[name].wait_until(partial(are_up, count=len(above)), 20)
        yield servers


def are_up(report: dict[str, Any], count: int) -> bool:
    return [link["state"] for link in report["links"]].count("up") == count


@asynccontextmanager
async def clients(*servers: Server) -> AsyncIterator[list[fairlead.Connection]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(fairlead.connect(server.url)) for server in servers]


async def until(true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "it did not come to that"
        await asyncio.sleep(0.01)


async def reached(sender: fairlead.Connection, topic: str, *subscriptions: Subscription, timeout_s: float = 20) -> None:
    """Wait until what is published there arrives here; every probe that arrives is taken out again."""
    deadline_s = time.monotonic() + timeout_s
    waiting = list(subscriptions)
    last = 0
    while waiting:
        assert time.monotonic() < deadline_s, f"{topic} reached {len(subscriptions) - len(waiting)} of all"
        last += 1
        await sender.publish(topic, f"probe {last}")
        for subscription in list(waiting):
            with contextlib.suppress(TimeoutError, FairleadError):
                await subscription.next(0.1)
                waiting.remove(subscription)
    await sender.publish(topic, "end of probes")
    for subscription in subscriptions:
        while (await subscription.next(5)).body != b"end of probes":
            pass


async def answered(ask: Callable[[], Any], timeout_s: float = 20) -> Any:
    """Ask again while nobody is known to serve it."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return await ask()
        except FairleadError:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)


def saying(number: int) -> Callable[[fairlead.Request], str]:
    """A handler that answers with this."""
    return lambda request: str(number)


class Relay:
    """A TCP relay to one port: `cut` ends what goes through it and lets nothing new in, `mend` does again."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._is_cut = False
        self._pairs: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                if self._is_cut:
                    raise OSError("cut")
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            self._pairs += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self._is_cut = True
        pairs, self._pairs = self._pairs, []
        for one in pairs:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
