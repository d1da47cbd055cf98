"""A certificate authority for tests: it signs, lets expire and revokes as it is told, in a directory of its own."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

UTC = datetime.UTC


class Pair(NamedTuple):
    """Files of a certificate and its key."""

    certificate: Path
    key: Path

    @property
    def pem(self) -> str:
        return str(self.certificate)


class Authority:
    """`ca` is the file to trust, `crl` the list of those it has revoked."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._revoked: list[int] = []
        self._serials: dict[Path, int] = {}
        now = datetime.datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._subject)
            .issuer_name(self._subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=400))
            .not_valid_after(now + datetime.timedelta(days=400))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
                    key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.crl = folder / f"{name}.crl"
        self.revoke()

    def sign(
        self,
        cn: str | tuple[str, ...],
        *,
        file: str = "",
        dns: tuple[str, ...] = (),
        uri: tuple[str, ...] = (),
        email: tuple[str, ...] = (),
        units: tuple[str, ...] = (),
        loopback: bool = False,
        days: float = 100,
        seconds: float | None = None,
    ) -> Pair:
        """A certificate for whoever that is; negative days are over."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(UTC)
        end = now + (datetime.timedelta(days=days) if seconds is None else datetime.timedelta(seconds=seconds))
        names = (cn,) if isinstance(cn, str) else cn
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, one) for one in names]
        subject += [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
        other: list[x509.GeneralName] = [x509.DNSName(one) for one in dns]
        other += [x509.UniformResourceIdentifier(one) for one in uri]
        other += [x509.RFC822Name(one) for one in email]
        if loopback:
            other += [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        serial = x509.random_serial_number()
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(now - datetime.timedelta(days=300))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )  # fmt: skip
        if other:
            builder = builder.add_extension(x509.SubjectAlternativeName(other), critical=False)
        stem = file or (names[0] if names else "nobody")
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        pair.certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )  # fmt: skip
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        pair.key.chmod(0o600)
        self._serials[pair.certificate] = serial
        return pair

    def revoke(self, *pairs: Pair) -> None:
        """Put them on the list too, and write it."""
        self._revoked += [self._serials[pair.certificate] for pair in pairs]
        now = datetime.datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._subject)
            .last_update(now - datetime.timedelta(days=1))
            .next_update(now + datetime.timedelta(days=30))
        )
        for serial in self._revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        self.crl.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
