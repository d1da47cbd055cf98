"""JSON of the handshake: what is understood, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ProtocolError
from fairlead.wire.handshake import Confirm, Connect, GoAway, Welcome, decode, encode, is_name


def test_connect_there_and_back() -> None:
    said = Connect(type="ui", instance="ui-1", user="ann", password="x", credit=5, resume="t")
    assert decode(Connect, encode(said)) == said
    assert b"resume" not in encode(Connect(type="ui", instance="ui-1"))


def test_the_example_of_the_protocol_page() -> None:
    confirm = decode(Confirm, b'{"uid": 123, "server": "s", "version": 1, "software": "fairlead 0.1.0", "frame_max": '
                              b'1114112, "body_max": 67108864, "header_max": 65536, "auth": ["password"]}')  # fmt: skip
    assert confirm.uid == 123
    assert decode(Welcome, b'{"uid": 123, "user": "", "keep_alive_s": 30, "resumed": false}').resumed is False
    assert decode(GoAway, b'{"token": "abc", "within_s": 30}').within_s == 30
    assert decode(Welcome, b'{"uid": 1, "news": [1, 2]}').uid == 1


@pytest.mark.parametrize("name", ["", "a/b", "a\n", "x" * 65, "\x00", "\x85"])
def test_what_is_not_a_name(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(ValueError, match="characters"):
        Connect(type=name, instance="a")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for kind in (Connect, Confirm, Welcome, GoAway):
        try:
            decode(kind, body)
        except ProtocolError as error:
            assert error.code == "bad-request"


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"uid": -1}', b'{"uid": "1"}', b'{"uid": 1, "keep_alive_s": -1}', b"\xff"]
)
def test_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(Welcome, body)
