"""`broker/edge/tls.py`: contexts, the filter between bytes and engine, and what is known of certificates."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker.edge.tls import (
    TlsFilter,
    ask_for_certificates,
    expiry_of,
    make_context,
    renew_contexts,
    revoked_serials,
)
from fairlead.errors import ConfigError
from fairlead.runtime.config import load
from fairlead.runtime.expiring import expiry_notes
from tests.authority import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def own(authority: Authority) -> Pair:
    return authority.sign("server", loopback=True)


class Ends:
    """A filter and a client, over memory."""

    def __init__(self, context: ssl.SSLContext, client: ssl.SSLContext) -> None:
        self.failures: list[tuple[str, bool]] = []
        self.filter = TlsFilter(context, lambda reason, about: self.failures.append((reason, about)))
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(self._in, self._out, server_hostname="localhost")
        self.plain = b""

    def go(self, rounds: int = 6) -> None:
        for _ in range(rounds):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            self.swap()

    def swap(self) -> None:
        plain, answer = self.filter.receive(self._out.read())
        self.plain += plain
        self._in.write(answer)


def trusting(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def test_bytes_go_through_and_the_certificate_is_known(authority: Authority, own: Pair) -> None:
    context = make_context(own.pem, str(own.key))
    ask_for_certificates(context, str(authority.ca), str(authority.crl))
    for pair, name in ((authority.sign("ann"), "ann"), (None, None)):
        ends = Ends(context, trusting(authority, pair))
        assert ends.filter.certificate() is None
        assert ends.filter.send(b"too early") == b""
        ends.go()
        ends.client.write(b"hello")
        ends.swap()
        assert ends.plain == b"hello"
        shown = ends.filter.certificate()
        assert (shown is None) == (name is None)
        if shown is not None:
            assert shown["subject"] == ((("commonName", name),),)
        assert ends.failures == []


@pytest.mark.parametrize("why", ["stranger", "expired", "revoked"])
def test_a_bad_certificate_is_answered_with_an_alert_and_told(
    authority: Authority, own: Pair, why: str, tmp_path: Path
) -> None:
    makes = {
        "stranger": lambda: Authority(tmp_path, "other").sign("ann"),
        "expired": lambda: authority.sign("old", days=-1),
        "revoked": lambda: authority.sign("gone"),
    }
    pair = makes[why]()
    if why == "revoked":
        authority.revoke(pair)
    context = make_context(own.pem, str(own.key))
    ask_for_certificates(context, str(authority.ca), str(authority.crl))
    ends = Ends(context, trusting(authority, pair))
    with pytest.raises(ssl.SSLError, match=r"ALERT|alert"):
        ends.go()
        ends.client.read(1)
    ((reason, about_certificate),) = ends.failures
    assert about_certificate
    assert reason
    assert ends.filter.receive(b"more") == (b"", b"")
    assert ends.filter.certificate() is None


@given(st.binary(min_size=1, max_size=300))
def test_whatever_comes_instead_of_tls_is_an_ssl_error_or_waits_for_more(own: Pair, data: bytes) -> None:
    filter_ = TlsFilter(make_context(own.pem, str(own.key)))
    try:
        plain, _ = filter_.receive(data)
    except ssl.SSLError:
        return
    assert plain == b""
    assert filter_.certificate() is None


def test_when_a_certificate_expires_is_known_and_noted_in_time(authority: Authority, own: Pair) -> None:
    soon, over = authority.sign("soon", days=10), authority.sign("over", days=-1)
    assert expiry_of(own.pem, str(own.key)) == pytest.approx(time.time() + 100 * 86400, abs=86400)
    assert expiry_of(over.pem, str(over.key)) == 0.0
    assert expiry_of(own.pem, str(soon.key)) is None

    def notes(pair: Pair) -> list[str]:
        security = {"security.tls_certificate": pair.pem, "security.tls_key": str(pair.key)}
        return expiry_notes(load(environ={}, overrides=security), time.time())

    assert notes(own) == []
    assert "expires on" in notes(soon)[0]
    assert "has expired" in notes(over)[0]
    assert expiry_notes(load(environ={}), time.time()) == []


def test_contexts_are_renewed_in_place_or_left_alone(authority: Authority, tmp_path: Path) -> None:
    folder = Authority(tmp_path, "folder")
    pair = folder.sign("server", loopback=True)
    context = make_context(pair.pem, str(pair.key))

    def shown() -> bytes:
        ends = Ends(context, trusting(folder))
        ends.go()
        return ends.client.getpeercert(binary_form=True) or b""

    before = shown()
    Path(pair.certificate).write_text("nonsense")
    with pytest.raises(ConfigError):
        renew_contexts()
    assert shown() == before
    folder.sign("server", loopback=True)
    renew_contexts()
    assert shown() != before


def test_the_numbers_of_revoked_certificates_are_read_or_it_is_said_why_not(
    authority: Authority, tmp_path: Path
) -> None:
    before = len(revoked_serials(str(authority.crl)))
    authority.revoke(authority.sign("one more"))
    assert len(revoked_serials(str(authority.crl))) == before + 1
    (tmp_path / "broken.crl").write_text("-----BEGIN X509 CRL-----\nx\n-----END X509 CRL-----\n")
    for file in (tmp_path / "broken.crl", tmp_path / "none.crl"):
        with pytest.raises(ConfigError):
            revoked_serials(str(file))
