"""A cluster whose nodes have certificates: it works as any other, and its buses speak TLS and nothing else."""

from __future__ import annotations

import socket
import ssl
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import fairlead
from fairlead.testing.cluster import Cluster
from tests.authority import Authority, Pair

pytestmark = pytest.mark.processes


class Town(NamedTuple):
    cluster: Cluster
    authority: Authority
    certificates: dict[str, Pair]
    addresses: dict[str, str]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    cluster = Cluster(cms=1, groups=1, backups=1, directory=folder / "cluster")
    found, addresses = {}, {}
    for path in sorted(Path(folder / "cluster").rglob("node.toml")):
        node = tomllib.loads(path.read_text())
        pair = found[node["name"]] = authority.sign(node["name"])
        addresses[node["name"]] = next(iter(node["buses"].values()))
        files = {"tls_certificate": pair.certificate, "tls_key": pair.key, "tls_ca": authority.ca}
        path.write_text("".join(f'{key} = "{file}"\n' for key, file in files.items()) + path.read_text())
    with cluster:
        yield Town(cluster, authority, found, addresses)


async def test_a_cluster_with_certificates_keeps_what_it_is_sent(town: Town) -> None:
    async with fairlead.connect(town.cluster.url) as connection:
        queue = connection.queue("orders")
        for number in range(50):
            await queue.send(str(number))
        async with queue.consume() as consumer:
            for number in range(50):
                delivery = await consumer.receive(30)
                assert delivery is not None
                assert delivery.body == str(number).encode()
                await delivery.ack()


def test_every_node_shows_its_own_certificate_and_speaks_with_no_stranger(town: Town) -> None:
    assert len(town.certificates) >= 3
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(town.authority.ca)
    context.load_cert_chain(*next(iter(town.certificates.values())))
    for name, address in town.addresses.items():
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), 30) as line,
            context.wrap_socket(line) as secure,
        ):
            shown = secure.getpeercert()
            assert shown is not None
            assert ((("commonName", name),),) == shown["subject"]
        with socket.create_connection((host, int(port)), 30) as line:
            line.sendall(b"FLBUS\0\1\n" + bytes(64))
            line.settimeout(30)
            answer = b""
            while data := line.recv(4096):
                answer += data
            assert b"FLBUS" not in answer
