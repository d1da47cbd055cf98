"""`client/aio/access.py`: what a client shows, fresh for every connection."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from fairlead.client.aio.access import Access, refused_certificate
from fairlead.client.identity import hello
from fairlead.client.session import Session
from fairlead.errors import BadCredentials, ConfigError, ConnectionLost, NoDirectory
from tests.authority import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("access"))


def freshen(access: Access, ours: Session) -> None:
    asyncio.run(access.freshen(ours))


def session() -> Session:
    return Session(hello(name="n", type="t", org="", user="", password="", credit=0, keep_alive_s=1))


def test_a_fixed_token_is_shown_every_time_and_is_not_renewable() -> None:
    access, ours = Access(token="fixed"), session()
    freshen(access, ours)
    assert ours.hello.token == "fixed"
    assert not access.is_renewable
    assert "fixed" not in repr(ours.hello)


def test_a_function_and_a_coroutine_function_are_asked_each_time() -> None:
    given = iter("abcd")

    async def later() -> str:
        return next(given)

    ours = session()
    for access in (Access(token=lambda: next(given)), Access(token=later)):
        assert access.is_renewable
        seen = []
        for _ in range(2):
            freshen(access, ours)
            seen.append(ours.hello.token)
        assert len(set(seen)) == 2


def test_who_gives_no_token_is_told_apart() -> None:
    def fails() -> str:
        raise KeyError("no login")

    def refuses() -> str:
        raise NoDirectory("nobody there")

    with pytest.raises(ConnectionLost, match="no login"):
        freshen(Access(token=fails), session())
    with pytest.raises(NoDirectory):
        freshen(Access(token=refuses), session())
    for nonsense in ("", "x" * 8193, 7, None):
        with pytest.raises(ConfigError):
            freshen(Access(token=lambda nonsense=nonsense: nonsense), session())  # type: ignore[misc]


def test_renewed_files_make_a_new_context_and_half_of_them_does_not(authority: Authority) -> None:
    pair = authority.sign("ann")
    access, ours = Access(certificate=pair.pem, key=str(pair.key), ca=authority.ca), session()
    first = access.tls
    assert isinstance(first, ssl.SSLContext)
    freshen(access, ours)
    assert access.tls is first
    Path(pair.certificate).write_text("half")
    freshen(access, ours)
    assert access.tls is first
    authority.sign("ann")
    os.utime(pair.certificate, (1, 1))
    freshen(access, ours)
    assert access.tls is not first
    assert access.is_renewable


def test_what_contradicts_itself_or_cannot_be_used_is_refused(authority: Authority, tmp_path: Path) -> None:
    pair = authority.sign("bob")
    with pytest.raises(ConfigError, match="not both"):
        Access(tls=ssl.create_default_context(), ca=authority.ca)
    with pytest.raises(ConfigError, match="without its certificate"):
        Access(key=pair.key)
    with pytest.raises(ConfigError, match="cannot be used"):
        Access(certificate=tmp_path / "none", key=pair.key)


def test_alerts_about_certificates_are_refusals_and_others_are_not() -> None:
    def alert(reason: str) -> ssl.SSLError:
        error = ssl.SSLError(1, "x")
        error.reason = reason
        return error

    for reason in ("TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "TLSV13_ALERT_CERTIFICATE_REQUIRED"):
        assert isinstance(refused_certificate(alert(reason)), BadCredentials)
    for reason in ("TLSV1_ALERT_PROTOCOL_VERSION", "WRONG_VERSION_NUMBER", ""):
        assert refused_certificate(alert(reason)) is None
    assert refused_certificate(OSError()) is None
    assert refused_certificate(None) is None
