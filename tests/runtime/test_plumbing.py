"""Descriptors that outlive the children: each role gets its own, and a new supervisor collects them from the living."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.runtime import listeners
from fairlead.runtime.plumbing import Plumbing


def made() -> Plumbing:
    plumbing = Plumbing(2)
    plumbing.complete(["127.0.0.1:0"], 16)
    return plumbing


def test_each_role_gets_the_descriptors_it_needs() -> None:
    plumbing = made()
    assert set(plumbing.fds_for("router", 0)) == {"wake", "wake-manager-0", "wake-manager-1"}
    assert set(plumbing.fds_for("manager", 1)) == {"wake", "wake-router", "dispatched", "dispatch-1"}
    assert set(plumbing.fds_for("dispatcher", 0)) == {
        "listen-0",
        "dispatch-0",
        "dispatch-1",
        "dispatched-0",
        "dispatched-1",
    }
    plumbing.close()


def test_tunnels_have_sockets_that_managers_and_gateway_keep_for_each_other(tmp_path: Path) -> None:
    plumbing = made()
    plumbing.complete_tunnels(tmp_path)
    names = {"tunnel-outlet", "tunnel-intake", "tunnel-link"}
    assert set(plumbing.fds_for("tunnel-gateway", 0)) == names
    assert set(plumbing.fds_for("manager", 1)) == {"wake", "wake-router", "dispatched", "dispatch-1"} | names
    assert not plumbing.fds_for("tunnel-broker", 0)
    assert stat.S_IMODE((tmp_path / "tunnel.sock").stat().st_mode) == 0o600
    after = Plumbing(2)
    after.take("manager", 0, copies(plumbing, "manager", 0))
    after.complete_tunnels(tmp_path)
    with socket.socket(fileno=os.dup(plumbing.fds_for("manager", 0)["tunnel-outlet"])) as outlet:
        outlet.send(b"P")
    assert os.read(after.intake, 10) == b"P", "what waits is found by the next supervisor"
    with socket.socket(socket.AF_UNIX) as broker:
        broker.connect(str(tmp_path / "tunnel.sock"))
    plumbing.close()
    after.close()


def copies(plumbing: Plumbing, role: str, index: int) -> dict[str, int]:
    return {name: os.dup(fd) for name, fd in plumbing.fds_for(role, index).items()}


@pytest.mark.parametrize(
    "living", [[("router", 0), ("manager", 0), ("dispatcher", 0)], [("manager", 0), ("manager", 1)]]
)
def test_what_the_living_hold_is_taken_and_the_rest_made_anew(living: list[tuple[str, int]]) -> None:
    before, after = made(), Plumbing(2)
    for role, index in living:
        after.take(role, index, copies(before, role, index))
    after.complete(["127.0.0.1:0"], 16)
    same = [(b"from the dispatcher", "dispatch-0", before, "dispatched-0", after)]
    for data, sender, old, receiver, new in same:
        ours = socket.socket(fileno=os.dup(old.fds_for("dispatcher", 0)[sender]))
        theirs = socket.socket(fileno=os.dup(new.fds_for("dispatcher", 0)[receiver]))
        with ours, theirs:
            ours.send(data)
            assert theirs.recv(100) == data
    os.eventfd_write(before.fds_for("manager", 0)["wake"], 3)
    assert os.eventfd_read(after.fds_for("router", 0)["wake-manager-0"]) == 3
    before.close()
    after.close()


def test_listening_sockets_say_their_url() -> None:
    plumbing = made()
    (sock,) = plumbing.listening()
    assert listeners.url(sock) == f"fairlead://127.0.0.1:{listeners.port(sock)}"
    sock.close()
    plumbing.close()


def test_every_interface_is_reached_by_loopback() -> None:
    with listeners.listen(":0", 8) as sock:
        assert listeners.url(sock).startswith("fairlead://127.0.0.1:")
        socket.create_connection(("127.0.0.1", listeners.port(sock) or 0)).close()


def test_an_address_in_use_is_named() -> None:
    with listeners.listen("127.0.0.1:0", 8) as sock:
        port = listeners.port(sock)
        with pytest.raises(ConfigError, match=rf"The address 127\.0\.0\.1:{port} is in use"):
            listeners.listen(f"127.0.0.1:{port}", 8)
    with pytest.raises(ConfigError, match="Cannot listen on no-such-host"):
        listeners.listen("no-such-host.invalid:7400", 8)


def test_a_unix_socket_left_by_the_dead_is_replaced_but_not_one_in_use(tmp_path: Path) -> None:
    path = tmp_path / "client.sock"
    left = listeners.listen(f"unix:{path}", 8)
    with pytest.raises(ConfigError, match="in use"):
        listeners.listen(f"unix:{path}", 8)
    left.close()
    with listeners.listen(f"unix:{path}", 8) as sock:
        assert listeners.url(sock) == f"fairlead+unix://{path}"
        assert listeners.port(sock) is None
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_console_whose_default_port_is_taken_gets_another_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = f"127.0.0.1:{taken.getsockname()[1]}"
        plumbing = made()
        note = plumbing.complete_console([text], 16, default=True)
        (sock,) = plumbing.consoles()
        url = listeners.url(sock, "http")
        sock.close()
        assert note == f"{text} is taken by another program; the console is at {url} instead"
        assert set(plumbing.fds_for("console", 0)) == {"console-0"}
        assert plumbing.complete_console([text], 16, default=True) == ""  # what is there stays
        plumbing.close()
        with pytest.raises(ConfigError, match="is in use by another program"):
            Plumbing(1).complete_console([text], 16, default=False)
