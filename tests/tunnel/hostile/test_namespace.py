"""A client in a network of its own, from which nothing can be reached but a proxy.

It needs the right to make namespaces. Where that is not given the test fails and says so; with FAIRLEAD_NO_NETNS=1
whoever runs it says that they know.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tunnel.hostile.harness import Program, World, free_port

HOSTS = {"inside": "10.231.75.2", "outside": "10.231.75.1"}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def networks() -> Iterator[dict[str, tuple[str, ...]]]:
    """The words that run a program inside, and outside."""
    names = {host: f"fairlead-{host}-{os.getpid()}" for host in HOSTS}
    made = []
    try:
        try:
            for name in names.values():
                ip("netns", "add", name)
                made.append(name)
            inside, outside = names.values()
            ip("link", "add", "way", "netns", inside, "type", "veth", "peer", "name", "way", "netns", outside)
            for host, address in HOSTS.items():
                ip("-n", names[host], "addr", "add", f"{address}/24", "dev", "way")
                ip("-n", names[host], "link", "set", "way", "up")
                ip("-n", names[host], "link", "set", "lo", "up")
            # An address of the other side which the inside has no route to: the gateway's.
            ip("-n", outside, "addr", "add", "10.231.76.1/32", "dev", "lo")
        except (OSError, subprocess.CalledProcessError) as error:
            text = f"network namespaces cannot be made here: {getattr(error, 'stderr', '') or error}"
            if os.environ.get("FAIRLEAD_NO_NETNS"):
                pytest.skip(text)
            pytest.fail(f"{text} (FAIRLEAD_NO_NETNS=1 leaves this test out)")
        yield {host: ("ip", "netns", "exec", name) for host, name in names.items()}
    finally:
        for name in made:
            ip("netns", "del", name)


@pytest.mark.requirement("TUN-40")
def test_only_the_proxy_can_be_reached(networks: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    port = free_port()
    world = World(tmp_path, before=networks["outside"], listen=f"10.231.76.1:{port}")
    proxy_port = free_port()
    words = ["-m", "tests.tunnel.middlebox.proxy", HOSTS["outside"], str(proxy_port)]
    proxy = Program(words, tmp_path / "proxy.log", "proxy", networks["outside"])
    try:
        proxy.wait("listening")
        world.start()
        gateway = ("10.231.76.1", port)
        options = {"allow_plain": True, "proxy": f"http://{HOSTS['outside']}:{proxy_port}"}
        for websocket in ("never", "auto"):
            client = world.client(
                gateway,
                before=networks["inside"],
                up=5_000_000,
                down=5_000_000,
                options={**options, "websocket": websocket},
            )
            client.results()
        directly = world.client(gateway, before=networks["inside"], up=1000, options={"allow_plain": True}, timeout_s=3)
        assert directly.wait("failed")
    finally:
        world.stop()
        proxy.stop()
