"""Who a client says it is: program type and instance name."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import PurePath

from fairlead.errors import ConfigError
from fairlead.runtime.version import VERSION
from fairlead.wire.handshake import Connect, is_name

__all__ = ["hello"]


def hello(
    *,
    name: str | None,
    type: str | None,  # noqa: A002
    org: str,
    user: str,
    password: str,
    credit: int,
    keep_alive_s: float,
) -> Connect:
    """What CONNECT says. With type and name both are taken as they are; what is missing is made up."""
    program = type or name or _program()
    instance = name if type and name else f"{program[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
    for said in (program, instance):
        if not is_name(said):
            raise ConfigError(f"{said[:80]!a} is not 1 to 64 characters without control characters or '/'.")
    if not 0 <= credit < 1 << 32:
        raise ConfigError(f"A credit of {credit} is not between 0 and 2³² - 1.")
    return Connect(
        type=program,
        instance=instance,
        org=org,
        user=user,
        password=password,
        credit=credit,
        keep_alive_s=keep_alive_s,
        software=f"fairlead-python {VERSION}",
    )


def _program() -> str:
    stem = PurePath(sys.argv[0] if sys.argv else "").stem
    return stem if is_name(stem) else "python"
