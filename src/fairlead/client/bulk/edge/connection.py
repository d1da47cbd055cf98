"""The bulk client: a small blocking client for programs that move messages by the million.

One thread uses a connection. It is made when it is first needed, and made again whenever it is lost: whatever is asked
can be asked twice, a scan goes on behind its last whole batch, a stage repeats what is not safe.
"""

from __future__ import annotations

import itertools
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import msgspec

from fairlead.client.bulk.answers import Cursor, Plan, Position, Positions, Published, taken
from fairlead.client.bulk.attempts import Attempts, is_passing
from fairlead.client.bulk.edge.line import Line, dial
from fairlead.client.bulk.edge.scan import Scan
from fairlead.client.bulk.edge.stage import Stage
from fairlead.client.bulk.parts import parts_of
from fairlead.client.identity import hello
from fairlead.client.target import parse
from fairlead.errors import BadName, ConfigError, ConnectionLost, FairleadError, LocalProtocolError, RemoteProtocolError
from fairlead.wire.column_batch import Columns
from fairlead.wire.handshake import Connect

__all__ = ["BulkConnection", "Tls"]

KEEP_ALIVE_S = 86_400.0  # the server has the last word
CONNECT_S = 10.0  # for one address
AHEAD = 2

Tls: TypeAlias = ssl.SSLContext | Callable[[], ssl.SSLContext]
"""A context cannot be pickled, a function that makes one can."""

T = TypeVar("T")


class BulkConnection:
    """A context manager; what is pickled are its arguments.

    An answer is waited for up to `timeout_s`, and so is the next sign of anything under way. What fails in a way that
    may pass is tried again, at all addresses of the URL in turn, for up to `patience_s` without progress.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        user: str | None = None,
        password: str | None = None,
        token_file: str = "",
        tls: Tls | None = None,
        name: str = "pipeline",
        patience_s: float = 60.0,
        timeout_s: float = 30.0,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "url": url, "user": user, "password": password, "token_file": token_file, "tls": tls, "name": name,
            "patience_s": patience_s, "timeout_s": timeout_s,
        }  # fmt: skip
        self._target = target = parse(url)
        self._user = target.user if user is None else user
        self._password = target.password if password is None else password
        self._token_file = token_file
        self._tls = tls
        self._name = name
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._addresses = random.sample(target.addresses, len(target.addresses))
        self._context: ssl.SSLContext | None = None
        self._line: Line | None = None
        self._closed = False
        self._hello()  # a name that cannot be one is complained about now

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._arguments,)

    def __repr__(self) -> str:
        who = f" as {self._user!r}" if self._user else ""
        return f"<{type(self).__name__} {self._name!r} to {self._where}{who}>"

    def close(self) -> None:
        """It cannot be used any more. What was not finished is not waited for."""
        self._closed = True
        line, self._line = self._line, None
        if line is not None:
            line.goodbye()

    # Commands.

    def ask(self, do: str, /, **fields: Any) -> dict[str, Any]:
        """The server's answer to a COMMAND (docs/durable.md, sections 2 and 7), which must bear to be asked twice."""
        return self.trying(lambda line, attempts: self.command(line, do, fields, attempts))

    def positions(self, destination: str, ms: int | None = None) -> Positions:
        """What can be read of a destination, or of all a pattern matches; with `ms`, from where on since that time."""
        facts = self.ask("positions", destination=destination, **({} if ms is None else {"ms": ms}))
        found = facts.get("destinations")
        if not isinstance(found, list):
            raise RemoteProtocolError("An answer to `positions` names no destinations.")
        return Positions([taken(Position, one) for one in found], taken(int, facts.get("now_ms")))

    def plan(self, destination: str, first: int, *, messages: int = 0, bytes: int = 0) -> Plan:  # noqa: A002
        """How far to read from `first` on without going over a limit; 0: none."""
        return taken(Plan, self.ask("plan", destination=destination, first=first, messages=messages, bytes=bytes))

    def cursor_open(self, destination: str, name: str, *, start: Any = "first", create: bool = False) -> Cursor:
        """A named cursor, which lives until it is released."""
        return taken(Cursor, self.ask("cursor-open", destination=destination, name=name, start=start, create=create))

    def cursor_reserve(
        self,
        destination: str,
        name: str,
        start: int,
        *,
        messages: int = 0,
        bytes: int = 0,  # noqa: A002
    ) -> int:
        """Lock what is ready for this cursor, from position `start` on; one beyond the last position."""
        facts = self.ask(
            "cursor-reserve", destination=destination, name=name, start=start, messages=messages, bytes=bytes
        )
        return taken(int, facts.get("end"))

    def cursor_commit(self, destination: str, name: str, end: int) -> int:
        """Everything before `end` is done with; where the cursor is then."""
        return taken(int, self.ask("cursor-commit", destination=destination, name=name, end=end).get("at"))

    def cursor_release(self, destination: str, name: str) -> int:
        """The cursor ends, and what is reserved for it is given back; how much that was, unless the answer got lost."""
        tries = itertools.count()

        def release(line: Line, attempts: Attempts) -> int:
            asked_before = next(tries) > 0
            try:
                facts = self.command(line, "cursor-release", {"destination": destination, "name": name}, attempts)
            except BadName:
                if asked_before:  # and that was done
                    return 0
                raise
            return taken(int, facts.get("released"))

        return self.trying(release)

    def publish(self, query: str, batch: int, stages: Sequence[tuple[str, Mapping[str, int]]]) -> Published:
        """Make the rows of these stages visible, all at once, once per query and batch."""
        parts = parts_of(stages)

        def publish(line: Line, attempts: Attempts) -> Published:
            for number, part in enumerate(parts):
                last = number == len(parts) - 1
                told = {} if len(parts) == 1 else {"part": number, "more": not last}
                fields = {"query": query, "batch": batch, "stages": part, **told}
                answer = self.command(line, "publish", fields, attempts)
            return taken(Published, answer)

        return self.trying(publish)

    def abandon(self, query: str, batch: int) -> int:
        """Drop the stages of a batch that was not published; how many those were."""
        return taken(int, self.ask("abandon", query=query, batch=batch).get("dropped"))

    # In bulk.

    def scan(
        self,
        destination: str,
        first: int,
        beyond: int,
        *,
        columns: int,
        cursor: str = "",
        waiting: bool = False,
        where: Mapping[str, Any] | None = None,
        rows: int = 10_000,
        bytes: int = 4 << 20,  # noqa: A002
        jump: bool = False,
        ahead: int = AHEAD,
    ) -> Iterator[Columns]:
        """Read `[first, beyond)` batch by batch; `ahead` of them may be on their way while the program works on one."""
        fields: dict[str, Any] = {
            "destination": destination, "first": first, "beyond": beyond, "columns": columns, "cursor": cursor,
            "waiting": waiting, "where": dict(where or {}), "rows": rows, "bytes": bytes, "jump": jump,
        }  # fmt: skip
        return iter(Scan(self, fields, ahead=ahead))

    def stage(
        self, destination: str, stage: str, *, query: str, batch: int, kind: str = "", create: bool = False
    ) -> Stage:
        """A place for rows that nobody sees before `publish` names it."""
        made = Stage(
            self,
            {
                "destination": destination, "stage": stage, "query": query, "batch": batch, "kind": kind,
                "create": create,
            },
        )  # fmt: skip
        made.open()
        return made

    # For scans and stages.

    def trying(self, work: Callable[[Line, Attempts], T]) -> T:
        """Do it, on a line that is ready; again after whatever may pass."""
        attempts = Attempts(self._patience_s, time.monotonic(), random.random)
        while True:
            try:
                return work(self._ready(attempts), attempts)
            except (FairleadError, OSError) as error:
                pause_s = attempts.on_failed(error, time.monotonic())
            time.sleep(pause_s)

    def command(self, line: Line, do: str, fields: dict[str, Any], attempts: Attempts) -> dict[str, Any]:
        """One attempt to get an answer."""
        answers = line.protocol.answers
        number = line.protocol.command(do, fields)
        self.wait(line, lambda: number in answers, lambda: 0, attempts)
        answer = answers.pop(number)
        if isinstance(answer, FairleadError):
            raise answer
        return answer

    def wait(self, line: Line, done: Callable[[], bool], progress: Callable[[], int], attempts: Attempts) -> None:
        """Until it is so; RequestTimeout after a time without progress."""
        seen = progress()
        until_s = min(time.monotonic() + self._timeout_s, attempts.until_s)
        while not done():
            line.turn(until_s)
            if progress() != seen:
                seen = progress()
                until_s = time.monotonic() + self._timeout_s

    # Inside.

    def _ready(self, attempts: Attempts) -> Line:
        """The line there is, if it still is; else another one."""
        if self._closed:
            raise LocalProtocolError("The connection was closed by this program.")
        line = self._line
        if line is not None and not line.closed:
            try:
                line.push()  # what came while nobody looked: a PING, or the end
            except FairleadError:
                pass
            if line.protocol.moving and not line.protocol.is_busy:
                line.goodbye()
            if not line.closed:
                return line
        self._line = None
        self._line = self._dial(attempts)
        return self._line

    def _dial(self, attempts: Attempts) -> Line:
        """All addresses in turn, the one that was good last first."""
        last: Exception = ConnectionLost("There is no address to try.")
        for _ in range(len(self._addresses)):
            until_s = min(time.monotonic() + min(self._timeout_s, CONNECT_S), attempts.until_s)
            try:
                return dial(self._addresses[0], self._security(), self._hello(), until_s, self._target.tunnel)
            except FairleadError as error:
                if not is_passing(error):
                    raise
                last = error
                self._addresses.append(self._addresses.pop(0))
        raise last

    def _hello(self) -> Connect:
        said = hello(
            name=self._name, type=None, org="", user=self._user, password=self._password, credit=0,
            keep_alive_s=KEEP_ALIVE_S,
        )  # fmt: skip
        return msgspec.structs.replace(said, token=self._token()) if self._token_file else said

    def _token(self) -> str:
        """Read for every connection: whoever renews it need not know of us."""
        try:
            text = Path(self._token_file).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"The token in {self._token_file!r} cannot be read: {error}") from None
        return text.partition("\n")[0].strip()

    def _security(self) -> ssl.SSLContext | None:
        if self._context is None:
            if self._tls is None:
                is_native = self._target.tls and self._target.tunnel is None  # a tunnel makes its own
                self._context = ssl.create_default_context() if is_native else None
            else:
                self._context = self._tls if isinstance(self._tls, ssl.SSLContext) else self._tls()
        return self._context

    @property
    def _where(self) -> str:
        return ", ".join(str(address) for address in self._target.addresses)


def _again(arguments: dict[str, Any]) -> BulkConnection:
    return BulkConnection(**arguments)
