"""Keyrings for the tests: AX and AZ, who know each other's keys."""

from __future__ import annotations

from fairlead.sealing import Keyring, SharedKey, new_pair, new_shared


def two(*shared: str) -> tuple[Keyring, Keyring]:
    common: list[SharedKey] = [new_shared(name) for name in shared]
    ax, az = Keyring([new_pair("AX")], common), Keyring([new_pair("AZ")], common)
    ax.learn("AZ", az.public())
    az.learn("AX", ax.public())
    return ax, az
