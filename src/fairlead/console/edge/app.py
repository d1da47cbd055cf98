"""The HTTP application of the console: finds the operation, asks who is there and whether he may, and answers.

In this order, each step before the next: is the Host ours, is there such an operation, does the request come from our
own page, who is asking, may he, is the body what it should be; then the handler. What changed something is written to
the event log, whatever became of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fairlead.console import authority, queries
from fairlead.console.edge.around_handlers import AroundHandlers
from fairlead.console.edge.doorman import COOKIE, Caller
from fairlead.console.edge.message_handlers import MessageHandlers
from fairlead.console.edge.request import Request, read_body, read_bytes
from fairlead.console.edge.static import Static
from fairlead.console.gatekeeping import HEADERS, Gate, check_csrf, check_json
from fairlead.console.live import Hub, Listener, encoded, topics_of
from fairlead.console.openapi import document
from fairlead.console.operations import Operation, Routes, WrongMethod
from fairlead.console.problems import Denied, problem_of
from fairlead.console.shapes import Done, Me
from fairlead.console.shapes_time import Health
from fairlead.errors import BadCredentials, FairleadError, NotAllowed
from fairlead.runtime.version import VERSION
from fairlead.security.throttling import is_local, source_of

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
NO_STORE: Final = {"Cache-Control": "no-store"}
BEAT_S: Final = 15.0  # a sign of life on a live stream, and how often it is looked whether the login still lasts
URL_BYTES_MAX: Final = 32 << 10
DESCRIPTION: Final = "/api/openapi.json"
METRICS: Final = "/metrics"

log = logging.getLogger("fairlead.console")

Audit = Callable[[str, str, str, str], Awaitable[None]]
"""Who, what, about what, and what became of it."""
Metrics = Callable[[HttpRequest], Awaitable[Response]]


class AllHandlers(MessageHandlers, AroundHandlers):
    """A method for each name in the table of operations."""


class ConsoleApp:
    """An ASGI application."""

    def __init__(
        self,
        handlers: AllHandlers,
        hub: Hub,
        gate: Gate,
        audit: Audit,
        *,
        secure: Callable[[Scope], bool],
        metrics: Metrics | None = None,
        open_metrics: bool = False,
        plain_passwords: str = "local",
        static: Static | None = None,
    ) -> None:
        self._handlers, self._hub, self._gate, self._audit = handlers, hub, gate, audit
        self._doorman = handlers.doorman
        self._secure, self._metrics, self._open_metrics = secure, metrics, open_metrics
        self._plain = plain_passwords
        self._static = static or Static()
        self._routes = Routes()
        self._description = msgspec.json.encode(document(VERSION))
        self._signals: dict[Listener, asyncio.Event] = {}
        self.closing = asyncio.Event()

    def wake(self, listeners: Iterable[Listener]) -> None:
        """Something waits for these."""
        for one in listeners:
            if (signal := self._signals.get(one)) is not None:
                signal.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nobody here speaks anything else
        http = HttpRequest(scope, receive)
        try:
            answer = await self._answer(http, scope)
        except FairleadError as error:
            answer = refusal(error)
        except Exception:
            log.exception("an operation failed")
            answer = refusal(FairleadError("The console met a fault of its own; its log says more.", code="internal"))
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        await answer(scope, receive, send)

    async def _answer(self, http: HttpRequest, scope: Scope) -> Response:
        headers, method = http.headers, http.method
        raw_path = scope["raw_path"].partition(b"?")[0].decode("latin-1")
        if len(raw_path) + len(scope["query_string"]) > URL_BYTES_MAX:
            raise Denied(414, "The address is too long.")
        if not raw_path.startswith("/health/"):  # whoever asks these may not know our name, and learns nothing
            self._gate.check_host(headers)
        page = self._static.answer(method, raw_path, headers)
        if page is not None:
            return page
        self._gate.check_origin(method, headers)
        if raw_path == DESCRIPTION:
            return self._only_get(method, self._description, JSON)
        if raw_path == METRICS:
            return await self._tell_metrics(http)
        operation, values = self._routes.find(method, raw_path)
        caller = await self._who(http, operation)
        return await self._serve(http, operation, values, caller)

    def _only_get(self, method: str, content: bytes, kind: str) -> Response:
        if method != "GET":
            raise WrongMethod(["GET"])
        return Response(content, headers={"Content-Type": kind, "Cache-Control": "no-cache"})

    async def _tell_metrics(self, http: HttpRequest) -> Response:
        if http.method != "GET":
            raise WrongMethod(["GET"])
        if self._metrics is None:
            raise Denied(404, "This version has no metrics.")
        if not self._open_metrics:
            caller = await self._caller(http)
            self._check_known(caller)
            authority.check_metrics(self._doorman.rules, caller.user)
        return await self._metrics(http)

    async def _who(self, http: HttpRequest, operation: Operation) -> Caller:
        if operation.name == "login":
            return Caller("", self._doorman.is_open, bare=True)  # whatever else is shown does not count
        if operation.right == "anybody" and operation.name != "me" and not operation.changes:
            return Caller("", False)
        return await self._caller(http)

    async def _caller(self, http: HttpRequest) -> Caller:
        if http.headers.get("authorization", "") and not self._doorman.is_open:
            self._check_line(http)
        return await self._doorman.who(http.headers, cookies_of(http), source(http))

    def _check_line(self, http: HttpRequest) -> None:
        """May secrets come over this line? As `[security] plain_passwords` has it for clients."""
        near = source(http) == "unix" or is_local(f"[{source(http)}]:0")
        if self._secure(http.scope) or self._plain == "allow" or (self._plain == "local" and near):
            return
        raise Denied(
            403, "This server takes passwords over TLS only: open the console with https://.", code="not-allowed"
        )

    def _check_known(self, caller: Caller) -> None:
        if not caller.known:
            raise BadCredentials("Log in first: POST /api/v1/login, or Authorization: Basic.")

    async def _serve(self, http: HttpRequest, operation: Operation, values: dict[str, str], caller: Caller) -> Response:
        rules = self._doorman.rules
        if operation.right != "anybody":
            self._check_known(caller)
        if operation.changes and caller.bare:
            check_csrf(http.headers, None if operation.name == "login" else caller.csrf)
        try:
            authority.check(rules, caller.user, operation.right, values.get("name", ""))
        except NotAllowed:
            if operation.changes:
                await self._audit(caller.user, operation.name, about(operation, values), "not-allowed")
            raise
        query = queries.read(operation.query, parse_qsl(http.url.query, keep_blank_values=True))
        body: Any = None
        if operation.body is not None:
            check_json(http.headers)
            body = await read_body(http, operation.body, operation.body_bytes_max)
        elif operation.changes:
            await read_bytes(http, operation.body_bytes_max)
        asked = Request(operation, caller, values, query, body, http)
        if operation.name == "live":
            return self._look_on(asked)
        if operation.name == "login":
            return await self._log_in(asked)
        if operation.name == "logout":
            return self._log_out(asked)
        if not operation.changes:
            return told(await getattr(self._handlers, operation.name)(asked))
        try:
            result = await getattr(self._handlers, operation.name)(asked)
        except FairleadError as error:
            await self._audit(caller.user, operation.name, about(operation, values, body), error.code)
            raise
        self._handlers.watcher.changed()
        await self._audit(caller.user, operation.name, about(operation, values, body), "done")
        return told(result)

    # --- Logging in -----------------------------------------------------------------------------------------------
    async def _log_in(self, asked: Request) -> Response:
        doorman, user = self._doorman, asked.body.user
        self._check_line(asked.http)
        if doorman.is_open:
            raise Denied(409, "This server has no users: nobody has to log in.", code="refused")
        try:
            await doorman.verify(user, asked.body.password, source(asked.http))
        except FairleadError as error:
            await self._audit(user, "login", source(asked.http), error.code)
            raise
        token, login = doorman.begin(user)
        await self._audit(user, "login", source(asked.http), "done")
        caller = Caller(user, True, csrf=login.csrf, bare=True, login=login)
        me: Me = self._handlers.describe(Request(asked.operation, caller, {}, None, None, asked.http))
        answer = told(me)
        answer.set_cookie(
            COOKIE, token, path="/", httponly=True, samesite="strict", secure=self._secure(asked.http.scope)
        )
        return answer

    def _log_out(self, asked: Request) -> Response:
        self._doorman.end(cookies_of(asked.http), asked.http.headers)
        answer = told(Done())
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=self._secure(asked.http.scope))
        answer.headers["Clear-Site-Data"] = '"cache"'
        return answer

    # --- Looking on -----------------------------------------------------------------------------------------------
    def _look_on(self, asked: Request) -> Response:
        last_id = asked.http.headers.get("last-event-id", "")
        listener = self._hub.join(topics_of(asked.query.topics), admin=True, last_id=last_id)
        signal = self._signals[listener] = asyncio.Event()
        signal.set()

        async def stream() -> Any:
            try:
                yield b"retry: 2000\n\n"
                while not self.closing.is_set() and self._lasts(asked.caller):
                    signal.clear()
                    for one in listener.take():
                        yield encoded(one)
                    try:
                        async with asyncio.timeout(BEAT_S):
                            await signal.wait()
                    except TimeoutError:
                        yield b": still here\n\n"
            finally:
                self._signals.pop(listener, None)
                self._hub.leave(listener)

        return StreamingResponse(
            stream(), headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", **NO_STORE}
        )

    def _lasts(self, caller: Caller) -> bool:
        """May he still look on?"""
        doorman = self._doorman
        if caller.login is not None and not doorman.lasts(caller.login):
            return False
        if not caller.user and not doorman.is_open:
            return False  # the first users have come
        return authority.is_admin(doorman.rules, caller.user)

    def close(self) -> None:
        """Streams end; their pages ask again."""
        self.closing.set()
        self.wake(list(self._signals))


def told(answer: msgspec.Struct) -> Response:
    status = 503 if isinstance(answer, Health) and not answer.ok else 200
    return Response(msgspec.json.encode(answer), status, headers={"Content-Type": JSON, **NO_STORE})


def refusal(error: FairleadError) -> Response:
    problem = problem_of(error)
    headers = {"Content-Type": PROBLEM, **NO_STORE}
    if problem.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="fairlead"'  # not Basic: browsers would ask with a window of theirs
    if isinstance(error, WrongMethod):
        headers["Allow"] = ", ".join(error.allowed)
    if isinstance(error, Denied) and error.retry_s:
        headers["Retry-After"] = str(int(error.retry_s))
    return Response(msgspec.json.encode(problem), problem.status, headers=headers)


def about(operation: Operation, values: dict[str, str], body: Any = None) -> str:
    """What a change is about, in a word for the log."""
    if operation.name == "update" and body is not None:
        return str(body.component)
    if operation.name == "redrive" and body is not None:
        return f"{body.queue}{' (dry run)' if body.dry_run else ''}"
    if operation.name == "move" and body is not None:
        return f"{values['name']} to {body.to}{' (dry run)' if body.dry_run else ''}"
    return "/".join(values.values())


def cookies_of(http: HttpRequest) -> dict[str, str]:
    """Only ours; what cannot be read is none."""
    try:
        found = SimpleCookie(http.headers.get("cookie", ""))
    except CookieError:
        return {}
    return {COOKIE: found[COOKIE].value} if COOKIE in found else {}


def source(http: HttpRequest) -> str:
    return source_of(f"[{http.client.host}]:0" if http.client else "unix")
