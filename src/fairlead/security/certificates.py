"""Whom a client's certificate stands for: one name out of it, chosen by rule, never by what happens to be there.

TLS has checked who signed it, that it is in its time and not revoked; here it is only read, as Python's `ssl` gives it.
Two names where one is wanted are none: a rule that takes the first of several lets whoever signs put another behind it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final, Literal

from fairlead.security.identity import GROUPS_MAX, Identity, NoIdentity, named

__all__ = ["CertificateUser", "identity_of", "names_in", "serial_of"]

CertificateUser = Literal["cn", "san-uri", "san-dns", "san-email"]
ALTERNATIVES: Final = {"san-uri": "URI", "san-dns": "DNS", "san-email": "email"}
NAME_MAX: Final = 512  # of a name in a certificate, before the map makes a user of it


def names_in(certificate: Mapping[str, Any], rule: CertificateUser) -> list[str]:
    """All names of that kind, in the order of the certificate."""
    if rule == "cn":
        return _of_subject(certificate, "commonName")
    wanted = ALTERNATIVES[rule]
    return [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == wanted]


def identity_of(
    certificate: Mapping[str, Any],
    rule: CertificateUser,
    *,
    users: Mapping[str, str] | None = None,
    units_are_groups: bool = False,
) -> Identity:
    """Who it is; NoIdentity says why nobody. `users` gives names of certificates the users they stand for."""
    found = names_in(certificate, rule)
    if len(found) != 1:
        raise NoIdentity(f"its certificate has {len(found) or 'no'} names of the kind {rule}, not one")
    (name,) = found
    if len(name) > NAME_MAX or "\0" in name:
        raise NoIdentity(f"the name in its certificate cannot be used: {name[:80]!a}")
    user = named((users or {}).get(name, name), "the name in its certificate")
    groups: tuple[str, ...] = ()
    if units_are_groups:
        units = dict.fromkeys(_of_subject(certificate, "organizationalUnitName"))
        if len(units) > GROUPS_MAX:
            raise NoIdentity(f"its certificate has {len(units)} organisational units, which is more than {GROUPS_MAX}")
        groups = tuple(named(unit, "an organisational unit in its certificate") for unit in units)
    return Identity(user, groups, how="certificate", expires_s=expires_s(certificate))


def expires_s(certificate: Mapping[str, Any]) -> float | None:
    """When it expires, in seconds since 1970."""
    until = certificate.get("notAfter")
    return float(ssl.cert_time_to_seconds(until)) if isinstance(until, str) else None


def serial_of(certificate: Mapping[str, Any]) -> int:
    """Its number, which is unique for whoever signed it."""
    return int(str(certificate.get("serialNumber", "0")), 16)


def _of_subject(certificate: Mapping[str, Any], field: str) -> list[str]:
    return [str(value) for part in certificate.get("subject", ()) for key, value in part if key == field]
