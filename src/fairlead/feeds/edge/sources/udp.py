"""A numbered source over UDP, unicast or multicast, on one line or more."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator
from typing import Final

from fairlead.errors import ConfigError
from fairlead.feeds.edge.sources.rewind import Rewind
from fairlead.feeds.sources.actions import Action, Ask, Limits
from fairlead.feeds.sources.events import SourceEvent
from fairlead.feeds.sources.recovery import REWIND, Recovery
from fairlead.feeds.sources.settings import Numbered, UdpSource, split_address
from fairlead.feeds.sources.telling import Telling

__all__ = ["UdpLines", "limits_of", "open_line"]

TURN_PACKETS: Final = 512  # taken in before what they gave is handed on
LINE_PACKETS: Final = 64  # of one line before the other's are looked at


class UdpLines:
    """Both lines of a source; `events` ends only by being closed."""

    def __init__(self, settings: UdpSource) -> None:
        self._settings = settings
        self._telling = Telling(settings)
        self._recovery = Recovery(
            lines=len(settings.listen),
            has_rewind=bool(settings.rewind),
            start=settings.first,
            session=settings.session,
            limits=limits_of(settings),
        )

    @property
    def counters(self) -> dict[str, int]:
        return self._recovery.counters

    async def events(self) -> AsyncIterator[SourceEvent]:
        loop = asyncio.get_running_loop()
        recovery, telling = self._recovery, self._telling
        woken = asyncio.Event()
        socks: list[socket.socket] = []
        rewind = Rewind(self._settings.rewind, woken.set)
        try:
            for address in self._settings.listen:
                socks.append(open_line(address, self._settings.interface, self._settings.buffer_bytes))
                loop.add_reader(socks[-1], woken.set)
            recovery.on_start(loop.time())
            while True:
                now_s = loop.time()
                actions: list[Action] = []
                is_idle = _take_in(socks, recovery, actions, now_s) == 0
                for packet in rewind.answers():
                    is_idle = False
                    actions += recovery.on_packet(REWIND, packet, now_s)
                if now_s >= recovery.deadline_s:
                    actions += recovery.on_tick(now_s)
                for action in actions:
                    if isinstance(action, Ask):
                        rewind.ask(action.question)
                for event in telling.events(actions):
                    yield event
                for event in telling.troubles(recovery, now_s):
                    yield event
                if is_idle:
                    woken.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(recovery.deadline_s):
                            await woken.wait()
        finally:
            for sock in socks:
                loop.remove_reader(sock)
                sock.close()
            await rewind.aclose()


def _take_in(socks: list[socket.socket], recovery: Recovery, actions: list[Action], now_s: float) -> int:
    """What the lines have, line after line, a few packets at a time; how many there were."""
    taken = 0
    waiting = list(enumerate(socks))
    while waiting and taken < TURN_PACKETS:
        for one in list(waiting):
            line, sock = one
            for _ in range(LINE_PACKETS):
                try:
                    packet = sock.recv(65536)
                except BlockingIOError:
                    waiting.remove(one)
                    break
                except OSError:
                    continue  # what the network says about somebody else's packet
                taken += 1
                actions += recovery.on_packet(line, packet, now_s)
    return taken


def limits_of(settings: Numbered) -> Limits:
    return Limits(
        reorder_s=settings.reorder_s,
        ask_s=settings.ask_s,
        patience_s=settings.patience_s,
        silent_s=settings.silent_s,
        window_messages=settings.window_messages,
        window_bytes=settings.window_bytes,
        jump_max=settings.jump_max,
    )


def open_line(text: str, interface: str, buffer_bytes: int) -> socket.socket:
    """A socket that hears what is sent to this address; a multicast group may have several listeners on a host."""
    host, port = split_address(text)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        if _is_multicast(host):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            member = socket.inet_aton(host) + socket.inet_aton(interface)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        else:
            sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigError(f"The source cannot listen on {text}: {error.strerror or error}.") from None
    return sock


def _is_multicast(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_multicast
    except ValueError:
        return False
