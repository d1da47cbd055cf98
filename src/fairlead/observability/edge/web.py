"""`/metrics`, `/health/live` and `/health/ready` as Starlette routes, for whatever serves HTTP here.

Asking takes a few milliseconds of waiting for other processes, so it is done in a thread; what was asked less than
`FRESH_S` ago is told again, so that many who ask cost no more than one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlead.errors import FairleadError
from fairlead.observability.edge.scrape import ANSWER_S, gather
from fairlead.observability.facts import Facts
from fairlead.observability.health import Verdict, alive, ready
from fairlead.observability.metrics import render
from fairlead.runtime.admin import answer_of

FRESH_S: Final = 0.5
NO_STORE: Final = {"cache-control": "no-store"}


class Pages:
    """`gather` asks the server, `status` only for its report; both wait and may raise a FairleadError.

    Each method takes a request and gives a response, so that it can stand behind other doors as well.
    """

    def __init__(self, gather: Callable[[], Facts], status: Callable[[], dict[str, Any]]) -> None:
        self._gather, self._status = gather, status
        self._lock = asyncio.Lock()
        self._facts: Facts | None = None
        self._asked_s = 0.0

    @classmethod
    def of(cls, run: Path) -> Self:
        """Of the server whose sockets are there."""
        return cls(lambda: gather(run), lambda: report_of(run))

    async def metrics(self, request: Request) -> Response:
        async with self._lock:
            if self._facts is None or time.monotonic() - self._asked_s > FRESH_S:
                try:
                    self._facts = await asyncio.to_thread(self._gather)
                except FairleadError as error:
                    return Response(f"{error}\n", 503, NO_STORE, "text/plain; charset=utf-8")
                self._asked_s = time.monotonic()
            facts = self._facts
        body, content_type = render(facts, request.headers.get("accept", ""))
        return Response(body, headers=NO_STORE | {"content-type": content_type})

    async def live(self, request: Request) -> Response:
        return told(alive(await self._report()))

    async def ready(self, request: Request) -> Response:
        return told(ready(await self._report()))

    async def _report(self) -> dict[str, Any] | None:
        try:
            return await asyncio.to_thread(self._status)
        except FairleadError:
            return None

    def routes(self) -> list[Route]:
        return [
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/health/live", self.live, methods=["GET"]),
            Route("/health/ready", self.ready, methods=["GET"]),
        ]


def report_of(run: Path) -> dict[str, Any]:
    status: dict[str, Any] = answer_of(run, "status", timeout_s=ANSWER_S, brief=True)["status"]
    return status


def told(verdict: Verdict) -> Response:
    return Response(msgspec.json.encode(verdict), 200 if verdict.ok else 503, NO_STORE, "application/json")
