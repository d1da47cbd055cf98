"""The tree of errors, and the codes that never change."""

from __future__ import annotations

import pickle

import pytest

from fairlead import errors
from fairlead.errors import CODES, FairleadError, from_wire
from scripts import reference

PROTOCOL_CODES = {
    *("bad-request", "unsupported-version", "frame-too-large", "header-too-large", "body-too-large", "not-a-preface"),
    *("bad-credentials", "not-allowed", "duplicate-instance", "no-receiver", "receiver-lost", "conversation-lost"),
    *("too-many", "slow-client", "keep-alive-timeout", "handshake-timeout", "shutting-down", "server-full"),
    *("bad-topic", "bad-pattern", "unknown-number", "unknown-correlation", "manager-lost", "store-lost"),
    *("internal", "cancelled", "timeout", "connection-lost"),
}


def every_class() -> list[type[FairleadError]]:
    return [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, FairleadError)]


def test_no_code_of_the_protocol_is_missing() -> None:
    assert CODES.keys() >= PROTOCOL_CODES


@pytest.mark.parametrize("code", CODES)
def test_a_code_from_the_wire_becomes_its_exception(code: str) -> None:
    error = from_wire(code, "what happened")
    assert type(error) is CODES[code].error
    assert (error.code, str(error), error.text) == (code, "what happened", "what happened")


def test_a_code_nobody_knows_is_kept() -> None:
    error = from_wire("from-the-future", "")
    assert type(error) is FairleadError
    assert (error.code, str(error), error.retryable) == ("from-the-future", "from-the-future", False)


def test_without_a_text_the_table_speaks() -> None:
    assert str(from_wire("no-receiver")) == CODES["no-receiver"].sentence


@pytest.mark.parametrize("cls", every_class())
def test_every_class_has_a_code_of_the_table_that_leads_back_to_it(cls: type[FairleadError]) -> None:
    entry = CODES[cls.code]
    assert issubclass(cls, errors.ProtocolError) or cls is entry.error  # which side broke the rules is not in the code
    assert cls.__name__ in (errors.__doc__ or "")


def test_only_what_is_unavailable_is_worth_another_try() -> None:
    assert {cls for cls in every_class() if cls.retryable} == {
        cls for cls in every_class() if issubclass(cls, errors.Unavailable)
    }


def test_the_builtin_relatives() -> None:
    assert issubclass(errors.RequestTimeout, TimeoutError)
    assert issubclass(errors.ConnectionLost, ConnectionError)


def test_an_error_survives_pickling_with_its_facts() -> None:
    error = errors.BodyTooLarge("too long", size=10, limit=5)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.size, copy.limit) == (errors.BodyTooLarge, "too long", 10, 5)
    assert pickle.loads(pickle.dumps(from_wire("manager-lost"))).code == "manager-lost"


def test_the_reference_pages_are_up_to_date() -> None:
    assert reference.stale() == [], "run `make docs`"
