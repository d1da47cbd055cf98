"""What is true of one carrier only, over real sockets; and what every listener does with strangers."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator

import pytest

from fairlead.bus.config import BusAddress, BusConfig
from fairlead.bus.edge import open_bus
from fairlead.bus.edge.lines import STRANGERS_MAX
from fairlead.bus.faults import FaultSwitch
from fairlead.bus.frames import BLOCK
from fairlead.bus.handshake import MAGIC
from fairlead.bus.multicast import packets
from fairlead.errors import ConfigError
from tests.bus.rig import Town
from tests.bus.test_laws import SECRET, joined, numbers

CARRIERS = ("tcp", "local", "udp")


@pytest.fixture(params=CARRIERS)
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    with Town(request.param) as town:
        yield town


# Multicast


@pytest.mark.requirement("CLU-37", state="half", note="messages to one node go over streams")
def test_bytes_sent_do_not_grow_with_listeners_on_udp() -> None:
    sent = []
    for listeners in (1, 3):
        with Town("udp") as town:
            a = town.add("a")
            names = [f"b{number}" for number in range(listeners)]
            for name in names:
                town.add(name)
            town.settled()
            joined(town, "all", *names)
            before = a.bus.figures()["multicast_bytes_out"]
            for number in range(300):
                a.bus.cast("all", "p", b"%d " % number, bytes(1000))
                if not number % 10:
                    town.turn()
            town.until(lambda t=town, names=names: all(len(t.stations[name].got) == 300 for name in names))  # type: ignore[misc]
            sent.append(a.bus.figures()["multicast_bytes_out"] - before)
    assert 300_000 < sent[0] < 400_000
    assert sent[1] < sent[0] * 1.1


@pytest.mark.requirement("CLU-39")
@pytest.mark.parametrize("secret", [None, SECRET])
def test_casts_come_whole_through_loss_and_delay(secret: bytes | None) -> None:
    with Town("udp", secret=secret, mtu=1400) as town:
        faults = {name: FaultSwitch(number) for number, name in enumerate("abc")}
        stations = {name: town.add(name, faults=faults[name]) for name in "abc"}
        town.settled()
        joined(town, "all", *"abc")
        for switch in faults.values():
            switch.drop(0.2)
        faults["c"].delay(0.005)
        rng = random.Random(1)
        for number in range(150):
            for one in stations.values():
                one.bus.cast("all", "p", b"%d " % number, bytes(rng.choice((5, 500, 5000))))
            if not number % 5:
                town.turn()
        town.until(lambda: all(len(one.got) == 300 for one in stations.values()), 30)
        for name, one in stations.items():
            for other in set("abc") - {name}:
                assert numbers(one, other) == list(range(150))
            assert not one.broken
        assert sum(one.bus.figures()["repeats"] for one in stations.values()) > 0


@pytest.mark.requirement("CLU-207")
def test_recorded_and_invented_packets_have_no_effect() -> None:
    with Town("udp", secret=SECRET) as town:
        a, b = town.add("a"), town.add("b")
        town.settled()
        joined(town, "all", "b")
        group, _, port = town.group_of("main").partition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
            ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ear.bind((group, int(port)))
            member = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
            ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            ear.settimeout(5)
            for number in range(5):
                a.bus.cast("all", "p", b"%d" % number)
                a.bus.flush()
            town.until(lambda: len(b.got) == 5)
            recorded = [ear.recv(65536) for _ in range(5)]
            mouth = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            stream = recorded[0][8:24]
            invented = packets.Sealer(b"guessed", stream).pack(packets.DATA, 3, 6, b"invented")
            rng = random.Random(2)
            for data in [*recorded * 3, invented, *(rng.randbytes(rng.randrange(2000)) for _ in range(300))]:
                mouth.sendto(data, (group, int(port)))
            mouth.close()
            town.until(lambda: b.bus.figures()["multicast_packets_in"] > 300)
        a.bus.cast("all", "p", b"5")
        town.until(lambda: len(b.got) == 6)
        assert numbers(b, "a") == list(range(6))
        assert not b.broken


def test_what_a_leaving_node_has_said_arrives_first(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    joined(town, "all", "b")
    for number in range(100):
        a.bus.cast("all", "p", b"%d " % number, bytes(100))
    for number in range(100):
        a.bus.send("b", "p", b"%d " % (100 + number), bytes(20_000))
        b.bus.send("a", "p", bytes(20_000))  # unread when it leaves
    town.remove("a", orderly=True)
    town.until(lambda: b.sees() == {"b"})
    assert sorted(numbers(b, "a")) == list(range(200))
    assert not b.broken


# Faults


def test_a_rate_is_kept_per_bus(town: Town) -> None:
    faults = FaultSwitch()
    a, b = town.add("a", faults=faults), town.add("b")
    town.settled()
    joined(town, "all", "b")
    faults.limit(1 << 20)
    begun_s = time.monotonic()
    for _ in range(100):
        a.bus.cast("all", "p", bytes(10_000))
        town.turn()
    town.until(lambda: len(b.got) == 100)
    assert time.monotonic() - begun_s > 0.6, "a megabyte at a megabyte a second"


def test_a_delay_is_kept_and_order_with_it(town: Town) -> None:
    faults = FaultSwitch()
    a, b = town.add("a", faults=faults), town.add("b")
    town.settled()
    assert faults.command({"fault": "delay", "from": "a", "to": "b", "value": 0.2})["ok"]
    begun_s = time.monotonic()
    for number in range(10):
        a.bus.send("b", "p", b"%d" % number)
        town.turn()
    town.until(lambda: len(b.got) == 10)
    assert time.monotonic() - begun_s > 0.15
    assert numbers(b, "a") == list(range(10))


def test_the_switch_says_what_it_does_not_understand() -> None:
    faults = FaultSwitch()
    assert not faults.command({"fault": "explode"})["ok"]
    assert not faults.command({"fault": "drop", "value": 2})["ok"]
    assert not faults.command({"fault": "drop", "value": "much"})["ok"]
    assert faults.command({"fault": "cut", "from": "a", "to": "b", "bus": "main"})["faults"] == ["cut a>b on main 0"]
    assert faults.command({"fault": "rate", "value": 1000})["ok"]
    assert faults.is_cut("a", "b", "main")
    assert not faults.is_cut("b", "a", "main")
    assert faults.command({"fault": "heal"})["faults"] == []


# Strangers


def knock(town: Town, address: str) -> socket.socket:
    if "/" in address:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
    else:
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    return sock


def is_closed(sock: socket.socket) -> bool:
    try:
        while data := sock.recv(65536):
            assert len(data) < 10_000
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


HOSTILE = [
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(100),
    MAGIC + b"\xff\xff" + bytes(100),
    MAGIC + b"\x04\x00\x81\xa1\x61\x01",
    MAGIC + b"\x01\x00\xc1",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


@pytest.mark.requirement("CLU-207")
def test_strangers_are_shut_out_and_nobody_is_harmed(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    address = a.bus.addresses()["main"]
    rng = random.Random(3)
    said = [*HOSTILE, *(rng.randbytes(rng.randrange(1, 20_000)) for _ in range(20))]
    said += [MAGIC + rng.randbytes(rng.randrange(10, 3000)) for _ in range(20)]
    socks = []
    for data in said:
        sock = knock(town, address)
        try:
            sock.send(data)
        except OSError:
            pass
        socks.append(sock)
        town.turn(0.001)
    a.bus.send("b", "p", b"1")
    town.until(lambda: b.got == [("a", b"1")])
    town.until(lambda: all(is_closed(sock) for sock in socks), 10)  # those that say too little: after a while
    for sock in socks:
        sock.close()
    town.until(lambda: len(a.bus.lines.wires) == 1)
    assert a.sees() == {"a", "b"}
    assert not a.broken + b.broken
    assert any("first bytes are others" in line for line in town.log)
    assert len([line for line in town.log if line.startswith("a:")]) < 60


def test_callers_that_say_nothing_are_few_and_go(town: Town) -> None:
    a = town.add("a")
    address = a.bus.addresses()["main"]
    socks = []
    for _ in range(STRANGERS_MAX + 40):
        socks.append(knock(town, address))
        town.turn(0)
    town.go_on(0.05)
    assert len(a.bus.lines.wires) <= STRANGERS_MAX
    b = town.add("b")
    town.until(lambda: a.sees() == b.sees() == {"a", "b"}, 5)
    town.until(lambda: all(is_closed(sock) for sock in socks))
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("at", ["block", "frame", "kind", "size"])
def test_a_member_that_speaks_nonsense_is_cut_off(town: Town, at: str) -> None:
    """Even one that knows the secret: its line is closed, and it comes back as the node it is."""
    a, b, c = (town.add(name) for name in "abc")
    town.settled()
    out = b.bus.members.fellows["a"].out
    assert out is not None
    nonsense = {
        "block": BLOCK.pack(0xFFFFFFFF),
        "size": BLOCK.pack(8) + b"\xff\xff\xff\x7f\x01\x00\x00\x00",
        "frame": BLOCK.pack(5) + b"\x01\x02\x03\x04\x05",
        "kind": BLOCK.pack(8) + b"\x00\x00\x00\x00\x63\x00\x00\x00",
    }[at]
    out.socket.send(nonsense)
    town.until(lambda: a.broken == ["b"])
    town.settled()
    assert "b" not in c.broken
    assert any("is closed" in line for line in town.log)


@pytest.mark.requirement("CLU-207")
def test_a_recorded_line_played_again_has_no_effect() -> None:
    """All that a node has said on its line, said again by somebody else: it stops at the proof."""
    with Town("tcp", secret=SECRET) as town:
        a = town.add("a")
        address = a.bus.addresses()["main"]
        host, _, port = address.rpartition(":")
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        b = town.add("b", seeds={"main": [f"127.0.0.1:{listener.getsockname()[1]}"]})
        recorded = bytearray()
        found: list[socket.socket] = []
        while not found:
            town.turn()
            accepts(listener, found)
        near = found[0]
        far = socket.create_connection((host, int(port)))
        for sock in (near, far):
            sock.setblocking(False)

        def pump() -> None:
            for source, target, is_kept in ((near, far, True), (far, near, False)):
                try:
                    data = source.recv(65536)
                except BlockingIOError:
                    continue
                if is_kept:
                    recorded.extend(data)
                target.sendall(data)

        town.until(lambda: (pump(), a.sees() == b.sees() == {"a", "b"})[1])  # type: ignore[func-returns-value]
        b.bus.send("a", "p", b"pay")
        town.until(lambda: (pump(), len(a.got) == 1)[1])  # type: ignore[func-returns-value]
        before = a.bus.figures()["refused"]
        replayed = knock(town, address)
        replayed.sendall(recorded)
        town.until(lambda: (pump(), is_closed(replayed))[1])  # type: ignore[func-returns-value]
        assert len(a.got) == 1
        assert a.bus.figures()["refused"] == before + 1
        far.sendall(recorded[-60:])  # a block again, on the very line
        town.until(lambda: a.broken == ["b"])
        assert len(a.got) == 1
        for sock in (near, far, replayed, listener):
            sock.close()


def accepts(listener: socket.socket, found: list[socket.socket]) -> None:
    try:
        found.append(listener.accept()[0])
    except BlockingIOError:
        pass


# Configuration


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"carrier": "pigeon"}, "carrier"),
        ({"node": "a/b"}, "name of a node"),
        ({"buses": []}, "on no bus"),
        ({"buses": [BusAddress("x", "127.0.0.1:0"), BusAddress("x", "127.0.0.1:0")]}, "twice"),
        ({"buses": [BusAddress("x", "0.0.0.0:0")]}, "secret"),
        ({"buses": [BusAddress("x", "nonsense")]}, "host:port"),
        ({"carrier": "udp", "buses": [BusAddress("x", "127.0.0.1:0", "10.0.0.1:5")]}, "multicast"),
        ({"carrier": "local", "buses": [BusAddress("x", "/tmp/" + "x" * 120)]}, "too long"),
    ],
)
def test_what_cannot_work_is_refused_at_once(changes: dict[str, object], why: str, tmp_path: object) -> None:
    values = {"node": "a", "start": 1, "cluster": "c", "carrier": "tcp", "buses": [BusAddress("x", "127.0.0.1:0")]}
    if "local" in changes.values():
        changes = {**changes, "buses": [BusAddress("x", f"{tmp_path}/" + "x" * 120)]}
    with pytest.raises(ConfigError, match=why):
        open_bus(BusConfig(**{**values, **changes}))  # type: ignore[arg-type]
