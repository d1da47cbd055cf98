"""`bus/edge/secure.py`: who gets onto a bus whose nodes have certificates. Its laws are in test_laws."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.bus.config import BusAddress, BusConfig, TlsFiles
from fairlead.bus.edge.secure import Tls
from fairlead.bus.handshake import MAGIC
from fairlead.errors import ConfigError
from tests.authority import Authority
from tests.bus.rig import Town
from tests.bus.test_laws import SECRET


@pytest.fixture
def town() -> Iterator[Town]:
    with Town("tls", secret=SECRET) as town:
        yield town


def kept_out(town: Town, name: str) -> str:
    """That node joins nobody; what the others say about it."""
    town.until(lambda: any("is closed" in line for line in town.log), 30)
    town.go_on(0.3)
    assert town.stations["a"].sees() == {"a"}
    assert town.stations[name].sees() == {name}
    return " ".join(town.log)


def test_nodes_with_certificates_of_the_cluster_find_each_other(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    assert a.bus.send("b", "p", b"hello")
    town.until(lambda: b.got == [("a", b"hello")], 30)


def test_a_certificate_of_another_node_is_not_enough(town: Town) -> None:
    town.add("a")
    town.add("b", tls=town.certificate_of("c"))
    assert "its certificate is not that of node b" in kept_out(town, "b")


def test_a_dns_name_will_do_as_well(town: Town) -> None:
    town.add("a")
    town.add("b", tls=town.certificate_of("something else", dns=("b", "b.example.org")))
    town.settled()


def test_a_certificate_of_somebody_else_is_not_enough(town: Town, tmp_path: Path) -> None:
    town.add("a")
    pair = Authority(tmp_path, "stranger").sign("b")
    assert town.authority is not None
    town.add("b", tls=TlsFiles(str(pair.certificate), str(pair.key), str(town.authority.ca)))
    assert "TLS with it comes to nothing" in kept_out(town, "b")


def test_an_expired_certificate_is_not_enough(town: Town) -> None:
    town.add("a")
    town.add("b", tls=town.certificate_of("b", days=-1))
    assert "expired" in kept_out(town, "b")


def test_the_secret_is_asked_for_as_well(town: Town) -> None:
    town.add("a")
    town.add("b", secret=SECRET[::-1])
    assert "does not know the cluster's secret" in kept_out(town, "b")


def test_a_node_without_tls_is_not_spoken_with_in_either_direction(town: Town) -> None:
    town.add("a")
    town.add("b", tls=None)
    kept_out(town, "b")
    with Town("tcp", secret=SECRET) as plain:
        plain.add("a")
        assert town.authority is not None
        plain.add("b", tls=town.certificate_of("b"))
        kept_out(plain, "b")


def test_strangers_without_a_certificate_and_old_tls_get_nowhere(town: Town) -> None:
    a = town.add("a")
    host, _, port = a.bus.addresses()["main"].rpartition(":")
    for said in (MAGIC, b"GET / HTTP/1.1\r\n\r\n", os.urandom(500), b"\x16\x03\x01\x02\x00" + bytes(512)):
        with socket.create_connection((host, int(port)), 10) as line:
            line.sendall(said)
            before = a.bus.figures()["refused"]
            town.until(lambda before=before: a.bus.figures()["refused"] > before, 30)  # type: ignore[misc]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), 10) as line:
        line.setblocking(False)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = context.wrap_bio(incoming, outgoing)
        before, fault = a.bus.figures()["refused"], None
        for _ in range(500):
            try:
                secure.do_handshake()
                secure.write(MAGIC)
            except ssl.SSLWantReadError:
                pass
            if data := outgoing.read():
                line.setblocking(True)
                line.sendall(data)
                line.setblocking(False)
            town.turn()
            if a.bus.figures()["refused"] > before:
                fault = True
                break
            try:
                incoming.write(line.recv(65536))
            except BlockingIOError:
                pass
        assert fault, "it has shown no certificate and must not be listened to"


def test_a_renewed_certificate_is_shown_on_the_next_line_and_half_of_one_is_not(town: Town) -> None:
    files = town.certificate_of("a")
    tls = Tls(files)
    before = tls.context(server_side=True)
    assert tls.context(server_side=True) is before
    Path(files.certificate).write_text("half")
    assert tls.context(server_side=True) is before
    town.certificate_of("a")
    os.utime(files.certificate, (1, 1))
    assert tls.context(server_side=True) is not before


def test_what_cannot_be_used_is_said_before_anything_starts(tmp_path: Path) -> None:
    files = TlsFiles(*(str(tmp_path / name) for name in ("a", "b", "c")))
    with pytest.raises(ConfigError, match="certificates of this node"):
        Tls(files)
    with pytest.raises(ConfigError, match="tcp"):
        BusConfig("a", 1, "c", "udp", [BusAddress("main", "127.0.0.1:0")], tls=files).check()
