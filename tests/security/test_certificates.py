"""`security/certificates.py`: whom a certificate stands for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.security.certificates import CertificateUser, identity_of, names_in, serial_of
from fairlead.security.identity import Identity, NoIdentity, may_be_named

SHOWN: dict[str, Any] = {
    "subject": (
        (("organizationName", "Acme"),),
        (("organizationalUnitName", "traders"),),
        (("organizationalUnitName", "night"),),
        (("commonName", "ann"),),
    ),
    "subjectAltName": (("DNS", "ann.example.org"), ("URI", "spiffe://acme/ann"), ("email", "ann@example.org")),
    "notAfter": "Jan  2 00:00:00 2030 GMT",
    "serialNumber": "0A1F",
}
EXPIRES_S = 1893542400.0


@pytest.mark.parametrize(
    ("rule", "user"),
    [("cn", "ann"), ("san-dns", "ann.example.org"), ("san-uri", "spiffe://acme/ann"), ("san-email", "ann@example.org")],
)
def test_the_rule_says_which_name_counts(rule: CertificateUser, user: str) -> None:
    assert identity_of(SHOWN, rule) == Identity(user, how="certificate", expires_s=EXPIRES_S)


def test_organisational_units_are_groups_where_that_is_wanted() -> None:
    assert identity_of(SHOWN, "cn", units_are_groups=True).groups == ("traders", "night")
    assert identity_of(SHOWN, "cn").groups == ()


def test_the_map_of_the_users_file_comes_before_the_name() -> None:
    assert identity_of(SHOWN, "san-dns", users={"ann.example.org": "pricing"}).user == "pricing"
    assert identity_of(SHOWN, "cn", users={"bob": "pricing"}).user == "ann"


@pytest.mark.parametrize(
    "subject",
    [
        (),
        ((("commonName", "ann"),), (("commonName", "root"),)),
        ((("commonName", "_registrar"),),),
        ((("commonName", "anonymous"),),),
        ((("commonName", ""),),),
        ((("commonName", "ann\0.evil"),),),
        ((("commonName", "x" * 65),),),
    ],
)
def test_no_name_two_names_and_names_of_the_servers_own_are_nobody(subject: Any) -> None:
    with pytest.raises(NoIdentity):
        identity_of({"subject": subject}, "cn")


def test_too_many_units_are_refused() -> None:
    subject = ((("commonName", "ann"),), *((("organizationalUnitName", f"unit{number}"),) for number in range(65)))
    with pytest.raises(NoIdentity, match="organisational units"):
        identity_of({"subject": subject}, "cn", units_are_groups=True)


def test_the_serial_number_is_read_as_it_is_written() -> None:
    assert serial_of(SHOWN) == 0x0A1F
    assert serial_of({}) == 0


KINDS = st.sampled_from(["commonName", "organizationalUnitName", "countryName"])
SUBJECTS = st.lists(st.lists(st.tuples(KINDS, st.text(max_size=80)), max_size=3).map(tuple), max_size=4).map(tuple)
ALTERNATIVES = st.lists(
    st.tuples(st.sampled_from(["DNS", "URI", "email", "IP Address"]), st.text(max_size=80)), max_size=4
)


@given(SUBJECTS, ALTERNATIVES, st.sampled_from(["cn", "san-uri", "san-dns", "san-email"]), st.booleans())
def test_whatever_is_in_a_certificate_it_stands_for_one_possible_user_or_for_nobody(
    subject: Any, alternatives: Any, rule: CertificateUser, units: bool
) -> None:
    shown = {"subject": subject, "subjectAltName": tuple(alternatives)}
    try:
        found = identity_of(shown, rule, units_are_groups=units)
    except NoIdentity:
        return
    assert names_in(shown, rule) == [found.user]
    assert may_be_named(found.user)
    assert all(may_be_named(group) for group in found.groups)
