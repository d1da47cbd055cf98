"""Tokens for moving to another connection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker.resume import token_for, uid_of

SECRET = bytes(range(32))


@given(st.integers(1, (1 << 64) - 1))
def test_a_token_names_its_attachment_to_whoever_has_the_secret(uid: int) -> None:
    token = token_for(SECRET, uid)
    assert uid_of(SECRET, token) == uid
    assert uid_of(bytes(32), token) is None
    assert uid_of(SECRET, token_for(SECRET, uid)[:-1]) is None


@given(st.text())
def test_other_texts_are_no_tokens(text: str) -> None:
    assert uid_of(SECRET, text) is None
