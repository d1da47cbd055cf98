from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.directory.registrar import talk
from fairlead.errors import BadParameter

FIRST = {"app": "AX", "identity": "0" * 32}


def test_the_first_word() -> None:
    said = talk.read_register(json.dumps(FIRST | {"mode": "synchronous", "secure": True, "cluster": "c"}).encode())
    link = said.link("A", "u")
    assert (link.broker, link.user, link.kind, link.secure, link.cluster) == ("A", "u", "synchronous", True, "c")
    assert said.kind == "dynamic"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"app": "AX"},
        FIRST | {"app": ""},
        FIRST | {"app": "A X"},
        FIRST | {"app": "A>"},
        FIRST | {"app": "A" * 201},
        FIRST | {"identity": "0" * 31},
        FIRST | {"identity": "G" * 32},
        FIRST | {"kind": "eternal"},
        FIRST | {"client": "x" * 256},
        FIRST | {"secure": 1},
    ],
)
def test_what_is_none(wrong: dict[str, object]) -> None:
    with pytest.raises(BadParameter):
        talk.read_register(json.dumps(wrong).encode())


@given(st.binary(max_size=200))
def test_hostile_bytes_are_bad_parameters_and_nothing_else(body: bytes) -> None:
    for read in (talk.read_register, talk.read_wish):
        try:
            read(body)
        except BadParameter:
            pass


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadParameter):
        talk.read_register(b"[" * 100_000)


def test_a_route_is_answered_under_its_number() -> None:
    wish = talk.read_wish(b'{"route": "AZ", "number": 7}')
    assert json.loads(talk.route(wish, unknown=True)) == {"route": "AZ", "number": 7, "unknown": True}
