"""`security/tokens.py` and `security/keysets.py`: each algorithm, each way to be wrong, and anything else."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from fairlead.security import issuing
from fairlead.security.identity import Identity, NoIdentity
from fairlead.security.keysets import ALGORITHMS, BadKeys, KeySet, read_keys
from fairlead.security.tokens import Terms, UnknownKey, identity_of, said_subject

SECRET = b"0123456789abcdef" * 4
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
P256 = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
PRIVATE: dict[str, Any] = {
    **dict.fromkeys(("HS256", "HS384", "HS512"), SECRET),
    **dict.fromkeys(("RS256", "PS256"), RSA),
    "ES256": P256,
    "EdDSA": ED,
}
TERMS = Terms("https://issuer", ("fairlead",), leeway_s=5.0, tenant_claim="tenant")
HOUR_S = 3600


def pem(key: Any) -> bytes:
    data: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return data


def keys_for(algorithm: str) -> KeySet:
    return read_keys(SECRET if algorithm.startswith("HS") else pem(PRIVATE[algorithm]))


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    makers = {rsa.RSAPrivateKey: "RSAAlgorithm", ec.EllipticCurvePrivateKey: "ECAlgorithm"}
    name = next((made for kind, made in makers.items() if isinstance(key, kind)), "OKPAlgorithm")
    found: dict[str, Any] = getattr(jwt.algorithms, name).to_jwk(key.public_key(), as_dict=True)
    return found | {"kid": kid} | more


def claims(**changed: Any) -> dict[str, Any]:
    said = {"iss": "https://issuer", "aud": "fairlead", "sub": "ann", "exp": int(time.time()) + HOUR_S, "groups": ["a"]}
    return {name: value for name, value in (said | changed).items() if value is not None}


def signed(algorithm: str = "HS256", key: Any = None, kid: str | None = None, **changed: Any) -> str:
    headers = {"kid": kid} if kid else None
    return jwt.encode(claims(**changed), key or PRIVATE[algorithm], algorithm=algorithm, headers=headers)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_is_good_with_its_own_key_and_with_no_other(algorithm: str) -> None:
    token = signed(algorithm, tenant="acme")
    found = identity_of(token, keys_for(algorithm), TERMS)
    assert found[:4] == ("ann", ("a",), "acme", "token")
    assert found.expires_s == pytest.approx(time.time() + HOUR_S + 5, abs=5)
    for other in ALGORITHMS:
        if PRIVATE[other] is not PRIVATE[algorithm]:
            with pytest.raises(NoIdentity):
                identity_of(token, keys_for(other), TERMS)
    with pytest.raises(NoIdentity, match="algorithm"):
        identity_of(token, keys_for(algorithm), Terms(algorithms=tuple(a for a in ALGORITHMS if a != algorithm)))


WRONG: dict[str, Callable[[], str]] = {
    "expired": lambda: signed(exp=int(time.time()) - 10),
    "not yet valid": lambda: signed(nbf=int(time.time()) + 100),
    "issued in the future": lambda: signed(iat=int(time.time()) + 100),
    "without an end": lambda: signed(exp=None),
    "an end that is no time": lambda: signed(exp="soon"),
    "an end beyond all numbers": lambda: signed(exp=1e400),
    "for somebody else": lambda: signed(aud="other"),
    "for nobody": lambda: signed(aud=None),
    "by somebody else": lambda: signed(iss="https://other"),
    "by nobody": lambda: signed(iss=None),
    "of nobody": lambda: signed(sub=None),
    "of a number": lambda: jwt.encode(claims(sub=7), SECRET),
    "of the registrar": lambda: signed(sub="_registrar"),
    "of a client without a name": lambda: signed(sub="anonymous"),
    "groups that are none": lambda: signed(groups={"a": 1}),
    "too many groups": lambda: signed(groups=[f"g{number}" for number in range(65)]),
    "a group that is no name": lambda: signed(groups=["a", "\n"]),
    "a tenant that is no name": lambda: signed(tenant="a\0b"),
    "another secret": lambda: signed(key=SECRET[::-1]),
    "not signed": lambda: jwt.encode(claims(), None, algorithm="none"),
    "cut": lambda: signed()[:-3],
    "without its signature": lambda: signed().rpartition(".")[0] + ".",
    "other claims under the same signature": lambda: forged(signed()),
    "critical fields": lambda: jwt.encode(claims(), SECRET, headers={"crit": ["b64"], "b64": False}),
    "two parts": lambda: "a.b",
    "nothing of the kind": lambda: "x" * 8192,
    "too long": lambda: signed(padding="x" * 8192),
    "a long header": lambda: signed(kid="k" * 3000),
    "a kid that is no text": lambda: head({"alg": "HS256", "kid": {"a": 1}}),
    "an algorithm that is no text": lambda: head({"alg": ["HS256"]}),
}


def forged(token: str) -> str:
    first, _, last = token.split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(sub="root")).encode()).rstrip(b"=").decode()
    return f"{first}.{body}.{last}"


def head(fields: dict[str, Any]) -> str:
    _, body, last = signed().split(".")
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode() + f".{body}.{last}"


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG.keys())
def test_each_way_to_be_wrong_is_nobody(make: Callable[[], str]) -> None:
    with pytest.raises(NoIdentity) as refused:
        identity_of(make(), read_keys(SECRET), TERMS)
    assert str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_public_key_is_no_secret() -> None:
    public = pem(RSA)
    with pytest.raises(jwt.exceptions.InvalidKeyError):
        signed(key=public)  # our library does not help with it
    import hashlib
    import hmac

    text = b".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "typ": "JWT"}, claims())
    )
    seal = base64.urlsafe_b64encode(hmac.new(public, text, hashlib.sha256).digest()).rstrip(b"=")
    token = (text + b"." + seal).decode()
    for keys in (read_keys(public), read_keys(json.dumps({"keys": [jwk(RSA, "a")]}).encode())):
        with pytest.raises(UnknownKey):
            identity_of(token, keys, TERMS)


def test_keys_of_a_set_are_found_by_name_and_unknown_ones_are_worth_another_look() -> None:
    keys = read_keys(
        json.dumps({"keys": [jwk(RSA, "old"), jwk(OTHER_RSA, "new"), jwk(P256, "p"), jwk(ED, "e")]}).encode()
    )
    assert identity_of(signed("RS256", kid="old"), keys, TERMS).user == "ann"
    assert identity_of(signed("RS256", OTHER_RSA, kid="new"), keys, TERMS).user == "ann"
    assert identity_of(signed("RS256", OTHER_RSA), keys, TERMS).user == "ann"
    assert identity_of(signed("ES256", kid="p"), keys, TERMS).user == "ann"
    assert identity_of(signed("EdDSA", kid="e"), keys, TERMS).user == "ann"
    with pytest.raises(UnknownKey):
        identity_of(signed("RS256", kid="newest"), keys, TERMS)
    with pytest.raises(NoIdentity, match="signature"):
        identity_of(signed("RS256", OTHER_RSA, kid="old"), keys, TERMS)


def test_a_key_of_a_set_is_good_for_what_the_set_says_only() -> None:
    for entry in (jwk(RSA, "a", alg="PS256"), jwk(RSA, "a", use="enc"), jwk(RSA, "a", key_ops=["encrypt"])):
        try:
            keys = read_keys(json.dumps({"keys": [entry]}).encode())
        except BadKeys:
            continue
        with pytest.raises(UnknownKey):
            identity_of(signed("RS256", kid="a"), keys, TERMS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        b"{}",
        b'{"keys": []}',
        b'{"keys": {}}',
        b'{"keys": [1]}',
        b'{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}',
        b'{"keys": [{"kty": "RSA"}]}',
        b'{"keys": [{"kty": "nothing"}]}',
        b"-----BEGIN PUBLIC KEY-----\nnothing\n-----END PUBLIC KEY-----",
        b"-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----",
        json.dumps({"keys": [jwk(RSA, "a")] * 65}).encode(),
        b"x" * 300_000,
    ],
)
def test_what_is_no_key_is_refused_whole(data: bytes) -> None:
    with pytest.raises(BadKeys):
        read_keys(data)


def test_weak_keys_are_refused() -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    with pytest.raises(BadKeys, match="1024"):
        read_keys(pem(weak))
    with pytest.raises(BadKeys, match="P-256"):
        read_keys(pem(ec.generate_private_key(ec.SECP384R1())))


def test_a_short_secret_is_good_for_the_short_hash_only() -> None:
    keys = read_keys(SECRET[:32])
    assert keys.keys[0].algorithms == {"HS256"}
    assert "0123" not in repr(keys.keys[0])


def test_what_the_server_issues_is_accepted_until_its_key_is_rotated_away() -> None:
    terms = Terms(issuing.ISSUER, (issuing.AUDIENCE,), ("HS256",), tenant_claim="tenant")
    file = issuing.rotated(b"", b"a" * 48)
    token = issuing.issue(file, "ann", now_s=time.time(), for_s=60, number="1", groups=["x"], tenant="acme")
    assert identity_of(token, read_keys(file), terms)[:4] == ("ann", ("x",), "acme", "token")
    file = issuing.rotated(file, b"b" * 48)
    assert identity_of(token, read_keys(file), terms).user == "ann"
    newer = issuing.issue(file, "ann", now_s=time.time(), for_s=60, number="2")
    file = issuing.rotated(file, b"c" * 48)
    assert identity_of(newer, read_keys(file), terms).user == "ann"
    with pytest.raises(UnknownKey):
        identity_of(token, read_keys(file), terms)
    with pytest.raises(BadKeys):
        issuing.issue(b"", "ann", now_s=0, for_s=1, number="3")
    with pytest.raises(NoIdentity):
        issuing.issue(file, "_registrar", now_s=0, for_s=1, number="4")


def test_the_subject_is_read_for_counting_only() -> None:
    assert said_subject(signed(key=SECRET[::-1])) == "ann"
    assert said_subject("nonsense") == ""
    assert len(said_subject(signed(sub="x" * 1000))) == 64


PIECES = st.one_of(
    st.text(max_size=40),
    st.binary(max_size=60).map(lambda data: base64.urlsafe_b64encode(data).rstrip(b"=").decode()),
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=10),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["alg", "kid", "exp", "sub"]), inner)
        ),
        max_leaves=6,
    ).map(lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()),
)


@given(st.lists(PIECES, max_size=5).map(".".join))
def test_whatever_is_sent_as_a_token_is_nobody_and_no_other_error(text: str) -> None:
    with pytest.raises(NoIdentity):
        identity_of(text, read_keys(SECRET), TERMS)
    assert isinstance(said_subject(text), str)


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "groups", "tenant", "jti"]),
        st.none()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=12)
        | st.lists(st.text(max_size=5), max_size=3),
    )
)
def test_whatever_a_signed_token_claims_it_is_somebody_possible_or_nobody(said: dict[str, Any]) -> None:
    try:
        token = jwt.encode(claims() | said, SECRET, algorithm="HS256")
    except (TypeError, ValueError, jwt.exceptions.PyJWTError):
        return  # our library does not sign it
    try:
        found = identity_of(token, read_keys(SECRET), TERMS)
    except NoIdentity:
        return
    assert isinstance(found, Identity)
    assert found.user == said.get("sub", "ann")


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: ('{"keys": [' + text + "]}").encode()))
def test_whatever_is_read_as_keys_is_keys_or_refused(data: bytes) -> None:
    try:
        assert read_keys(data).keys
    except BadKeys as error:
        assert str(error)
