"""Logging in at a forward proxy: Digest (RFC 7616) where it is offered, else Basic.

Nothing is said before the proxy asks: a password that Digest would have kept secret must not have gone out before.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b64encode

from fairlead.tunnel.edge.http.proxies import Proxy

__all__ = ["Login"]

HASHES = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256, "SHA-512-256": lambda data: hashlib.new("sha512_256", data)}
SCHEME = re.compile(r"(?:^|,)\s*([A-Za-z]+)(?:\s+(?=[\w-]+=)|\s*(?=,|$))")
FIELD = re.compile(r'([\w-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')


class Login:
    """The value of Proxy-Authorization for each request; the lanes of a tunnel share it, and are asked once."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._fields: dict[str, str] = {}
        self._count = 0
        self.is_basic = False

    def header(self, method: str, target: str) -> str:
        """Empty: none."""
        user, password = self._proxy.user, self._proxy.password
        if user is None:
            return ""
        if self._fields:
            return self._digest(user, password, method, target)
        return "Basic " + b64encode(f"{user}:{password}".encode()).decode() if self.is_basic else ""

    def on_asked(self, challenge: str) -> bool:
        """The proxy said 407 with this Proxy-Authenticate. Is it worth another try?"""
        if self._proxy.user is None or self.is_basic:
            return False
        for fields in _digests(challenge):
            is_new = fields["nonce"] != self._fields.get("nonce")
            if is_new and (not self._fields or fields.get("stale", "").lower() == "true"):
                self._fields, self._count = fields, 0
                return True
        if self._fields:
            return False
        self.is_basic = "basic" in (match[1].lower() for match in SCHEME.finditer(challenge))
        return self.is_basic

    def _digest(self, user: str, password: str, method: str, target: str) -> str:
        fields = self._fields
        self._count += 1
        name = fields.get("algorithm", "MD5")
        base = name.upper().removesuffix("-SESS")

        def h(text: str) -> str:
            return HASHES[base](text.encode()).hexdigest()

        cnonce, count = secrets.token_hex(8), f"{self._count:08x}"
        realm, nonce = fields.get("realm", ""), fields["nonce"]
        secret = h(f"{user}:{realm}:{password}")
        if name.upper().endswith("-SESS"):
            secret = h(f"{secret}:{nonce}:{cnonce}")
        action = h(f"{method}:{target}")
        said = {"username": user, "realm": realm, "nonce": nonce, "uri": target}
        plain = {"algorithm": name}
        if "qop" in fields:
            said |= {"response": h(f"{secret}:{nonce}:{count}:{cnonce}:auth:{action}"), "cnonce": cnonce}
            plain |= {"qop": "auth", "nc": count}
        else:
            said["response"] = h(f"{secret}:{nonce}:{action}")
        if "opaque" in fields:
            said["opaque"] = fields["opaque"]
        quoted = [f'{key}="{_quoted(value)}"' for key, value in said.items()]
        return "Digest " + ", ".join(quoted + [f"{key}={value}" for key, value in plain.items()])


def _digests(challenge: str) -> list[dict[str, str]]:
    """The Digest challenges we can answer, in the proxy's order."""
    starts = [(match.start(1), match.end(), match[1].lower()) for match in SCHEME.finditer(challenge)]
    found = []
    for index, (_, end, scheme) in enumerate(starts):
        until = starts[index + 1][0] if index + 1 < len(starts) else len(challenge)
        if scheme != "digest":
            continue
        fields = {
            match[1].lower(): re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
            for match in FIELD.finditer(challenge[end:until])
        }
        known = fields.get("algorithm", "MD5").upper().removesuffix("-SESS") in HASHES
        ways = [way.strip().lower() for way in fields.get("qop", "auth").split(",")]
        if known and fields.get("nonce") and "auth" in ways:
            found.append(fields)
    return found


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
