from __future__ import annotations

import pytest

from fairlead.errors import ConfigError
from fairlead.runtime.addresses import TcpAddress, UnixAddress, parse_listen


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:7400", TcpAddress("127.0.0.1", 7400), True),
        ("127.8.8.8:0", TcpAddress("127.8.8.8", 0), True),
        ("localhost:1", TcpAddress("localhost", 1), True),
        ("[::1]:7400", TcpAddress("::1", 7400), True),
        ("[::]:7400", TcpAddress("::", 7400), False),
        ("0.0.0.0:7400", TcpAddress("0.0.0.0", 7400), False),
        (":7400", TcpAddress("", 7400), False),
        ("*:7400", TcpAddress("", 7400), False),
        ("example.org:7400", TcpAddress("example.org", 7400), False),
    ],
)
def test_a_tcp_address(text: str, address: TcpAddress, loopback: bool) -> None:
    assert parse_listen(text) == address
    assert address.is_loopback is loopback
    assert parse_listen(str(address)) == address


def test_a_unix_address() -> None:
    assert parse_listen("unix:/run/f.sock") == UnixAddress("/run/f.sock")
    assert str(UnixAddress("/run/f.sock")) == "unix:/run/f.sock"


@pytest.mark.parametrize(
    "text", ["", "7400", "host", "host:", "host:x", "host:65536", "host:-1", "::1:7400", "unix:", "h:²"]
)
def test_what_is_no_address_gets_told_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write|brackets"):
        parse_listen(text)
