"""A request as handlers see it: who asks, the operation, and its values, checked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from fairlead.console.edge.doorman import Caller
from fairlead.console.operations import Operation
from fairlead.console.problems import Denied

BODY_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Request:
    operation: Operation
    caller: Caller
    values: dict[str, str]  # of the path
    query: Any
    body: Any
    http: HttpRequest

    @property
    def name(self) -> str:
        """The destination it is about."""
        return self.values.get("name", "")

    @property
    def order(self) -> int:
        return number(self.values["order"], "An order number")


def number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) >= 2**63:
        raise Denied(422, f"{what} has decimal digits only.", code="bad-parameter")
    return int(text)


async def read_body(http: HttpRequest, kind: type[Struct], most: int) -> Struct:
    """The body, checked. An empty one stands for `{}`."""
    raw = await read_bytes(http, most)
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Denied(422, f"{error}.", code="bad-parameter") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Denied(400, f"The body is not JSON: {error}.") from None
    except RecursionError:
        raise Denied(400, "The body is nested too deeply.") from None


async def read_bytes(http: HttpRequest, most: int) -> bytes:
    length = http.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > most:
        raise Denied(413, f"The body may have {most} bytes at most.", code="body-too-large")
    pieces = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in http.stream():
                pieces += piece
                if len(pieces) > most:
                    raise Denied(413, f"The body may have {most} bytes at most.", code="body-too-large")
    except TimeoutError:
        raise Denied(408, "The body did not arrive in time.", code="timeout") from None
    except ClientDisconnect:
        raise Denied(400, "The connection ended inside the body.") from None
    return bytes(pieces)
