"""`security/identity.py`: what every way to log in gives, and which names nobody else can vouch for."""

from __future__ import annotations

import pytest

from fairlead.security import inside
from fairlead.security.identity import NOBODY, Identity, NoIdentity, may_be_named, named


def test_an_identity_is_a_user_by_password_unless_said_otherwise() -> None:
    assert Identity("ann") == ("ann", (), "", "password", None)
    assert NOBODY.user == ""
    assert NOBODY.how == "anonymous"


@pytest.mark.parametrize("name", ["ann", "a b", "Jürgen", "spiffe://x/y", "x" * 64])
def test_a_printable_name_can_be_vouched_for(name: str) -> None:
    assert may_be_named(name)
    assert named(name, "it") == name


NONE_OF_THEIRS = ["", " ann", "ann ", "a\nb", "a\0b", "x" * 65, "ü" * 33, "anonymous", *sorted(inside.USERS), 7, None]


@pytest.mark.parametrize("name", NONE_OF_THEIRS)
def test_nobody_vouches_for_the_servers_own_programs_nor_for_what_is_no_name(name: object) -> None:
    with pytest.raises(NoIdentity, match="it is no name"):
        named(name, "it")
