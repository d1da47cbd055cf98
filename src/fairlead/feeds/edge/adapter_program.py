"""The feed adapter as a program: source, machine, lines, link and administration on one loop.

The machine decides; here its actions are done, first to last. Nothing here waits for a program, for the backup or for
the administration (STR-3, STR-84).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from fairlead.broker.edge.tls import make_context
from fairlead.feeds import words
from fairlead.feeds.adapter import Adapter, Limits, actions
from fairlead.feeds.adapter.admission import Admission
from fairlead.feeds.edge.administration_link import AdministrationLink, dialler
from fairlead.feeds.edge.checking import password_of
from fairlead.feeds.edge.faults import Faults, FaultServer
from fairlead.feeds.edge.intake import Intake
from fairlead.feeds.edge.line_server import LineServer
from fairlead.feeds.edge.link import TLS_SCHEME, LinkDialler, Target
from fairlead.feeds.edge.topic_output import TopicOutput
from fairlead.feeds.making import maker
from fairlead.feeds.settings import FeedSettings
from fairlead.feeds.speech import LinkHears, ToldAdapter

__all__ = ["AdapterProgram"]

log = logging.getLogger("fairlead.feeds")

TICK_S: Final = (0.001, 0.05)
"""The shortest and the longest time between two looks at the clock."""
OURS: Final = ("counters", "admitted")
"""What this program adds to the machine's report."""
RIGHTS_S: Final = 1.0
RIGHTS_GRACE_S: Final = 5.0
"""An administration that has come back has so long to renew tokens before lines without one end (STR-82)."""


class AdapterProgram:
    """One adapter. `run` returns when `stop` was called."""

    def __init__(self, settings: FeedSettings, *, faults: Path | None = None) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._now_s = self._loop.time
        self._stopping = asyncio.Event()
        self._address = ""
        self._admission = Admission()
        self._registered_s = 0.0
        self._admitted = ""  # the newest token of a program we were told of
        self._is_echoing = False
        self._rights_s = self._reported_s = 0.0
        feed, convert = settings.feed, settings.convert
        self._maker = maker(convert.converter, convert.options, convert.keys if feed.snapshots else ())
        self.machine = Adapter(
            name=feed.name, stream=feed.stream, incarnation=time.time_ns(), limits=limits_of(settings)
        )
        self.faults = Faults() if faults is not None else None
        self._fault_server = FaultServer(faults, self._order) if faults is not None else None
        self.lines = LineServer(
            self.machine,
            self,
            self._admission,
            settings.listen,
            stream=feed.stream,
            heartbeat_s=feed.heartbeat_s,
            faults=self.faults,
        )
        self._link = LinkDialler(
            self._link_hello,
            up=lambda peer: self.do(self.machine.on_link_up(peer, self._now_s(), is_dialled=True)),
            heard=self.on_link_word,
            down=lambda peer: self.do(self.machine.on_link_down(peer, self._now_s(), is_dialled=True)),
            tls_ca=settings.listen.tls_ca,
            silent_s=5 * feed.heartbeat_s,
        )
        told = settings.administration
        self.administration = AdministrationLink(
            dialler(told.url, user=told.user, password=password_of(told, "administration"), tls_ca=told.tls_ca),
            register=self._register,
            hear=self._hear,
            url=told.url,
            retry_s=told.retry_s,
        )
        self._intake = Intake(
            list(settings.source), feed.stream, self._maker, self.machine, self.do, self.faults, convert.linger_s
        )
        self._output = self._make_output()

    # Its life.

    async def run(self, ready: Callable[[str], None] = lambda address: None) -> None:
        """Until `stop`; ConfigError if it cannot listen, Refused if the administration does not want it."""
        listen = self._settings.listen
        context = make_context(listen.tls_certificate, listen.tls_key) if listen.tls_certificate else None
        bound = await self.lines.listen(context)
        self._address = (TLS_SCHEME if context else "") + (listen.advertise or bound)
        if self._fault_server is not None:
            await self._fault_server.start()
        work: list[Coroutine[Any, Any, None]] = [
            self.administration.run(),
            self._link.run(),
            self._intake.run(),
            self._tick_all(),
        ]
        if self._output is not None:
            work.append(self._output.run())
        tasks = [asyncio.create_task(one) for one in work]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            ready(bound)
            done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            await self.lines.close("this adapter was stopped")
            for task in done - {stopping}:
                task.result()
        finally:
            stopping.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
            if self._fault_server is not None:
                await self._fault_server.close()

    def stop(self) -> None:
        self._stopping.set()

    async def _tick_all(self) -> None:
        heartbeat_s = self._settings.feed.heartbeat_s
        longest_s = min(TICK_S[1], heartbeat_s / 4)
        while True:
            wanted_s = self.machine.next_s
            pause_s = longest_s if wanted_s is None else max(wanted_s - self._now_s(), TICK_S[0])
            await asyncio.sleep(min(pause_s, longest_s))
            now_s = self._now_s()
            self.do(self.machine.on_tick(now_s))
            self.lines.beat()
            if now_s - self._reported_s >= heartbeat_s:
                self._report()
            if now_s - self._rights_s >= RIGHTS_S:
                self._rights_s = now_s
                self._admission.expire(now_s)
                self._intake.log_rejected()
                if self.administration.is_up and now_s - self._registered_s > RIGHTS_GRACE_S:
                    self.lines.end_without_right()

    # What the machine wants done.

    def do(self, wanted: Iterable[actions.Action]) -> None:
        """First to last."""
        for action in wanted:
            match action:
                case actions.Wake():
                    self.lines.supply.wake()
                    if self._output is not None:
                        self._output.wake()
                case actions.ToLink():
                    self._to_link(action.peer, action.word)
                case actions.ToAdministration():
                    self.administration.say(action.word)
                case actions.RoleChanged():
                    self._take_role(action)
                case actions.StopLines():
                    self.lines.supply.stop_after(action.last)
                case actions.Renumbered() | actions.BeatLines():
                    self.lines.beat_all()
                case actions.Log():
                    log.log(logging.getLevelNamesMapping()[action.level.upper()], "%s", action.text)

    def _to_link(self, peer: str, word: words.Word) -> None:
        if self._link.target is not None and self._link.target.name == peer:
            self._link.say(word)
        else:
            self.lines.say(peer, word)

    def _take_role(self, role: actions.RoleChanged) -> None:
        log.info("adapter %s is %s in epoch %d", self._settings.feed.name, role.role, role.epoch)
        if role.role == "active":
            self._link.aim(None)
            if self._output is not None:
                self._output.begin(self.machine.cursor(words.Start(at="new")))
        else:
            self.lines.cut_links()
            self._link.aim(Target(role.active, role.active_address, role.link_token) if role.active_address else None)
            if self._output is not None:
                self._output.stop()
        self.lines.beat_all()
        self._report()

    # What the administration says.

    def _register(self) -> words.Register:
        report = self.machine.report()
        feed = self._settings.feed
        return words.Register(
            stream=feed.stream,
            adapter=feed.name,
            incarnation=self.machine.incarnation,
            address=self._address,
            epoch=self.machine.epoch,
            role=self.machine.role,
            last=report.last,
            preference=feed.preference,
            threshold=feed.threshold,
            heartbeat_s=feed.heartbeat_s,
            sources=tuple(self.machine.sources.values()),
            schema=self._maker.schema,
            tokens=tuple(sorted({*self._admission.tokens(), *self.lines.tokens_in_use()})),
        )

    def _hear(self, word: ToldAdapter) -> None:
        now_s = self._now_s()
        match word:
            case words.Registered():
                self._registered_s, self._admitted = now_s, ""
            case words.Role():
                self.do(self.machine.on_role(word, now_s))
            case words.Admit():
                self._admit(word, now_s)
            case words.Revoke():
                self._admission.revoke(word.token)
                self.lines.revoke(word.token, word.why)
            case words.SendAdmin():
                self.do(self.machine.on_send_admin(word.admin, now_s))
            case words.Closing():
                log.info("the administration is closing: %s", word.why)

    def _admit(self, word: words.Admit, now_s: float) -> None:
        if not self._admission.admit(word, now_s):
            log.warning("%s is not admitted: there are %d tokens already", word.client, len(self._admission))
            return
        self.lines.on_admitted(word.token)
        if not word.link:  # the administration waits for this echo before it sends the program here
            if not self._is_echoing:
                self._is_echoing = True
                self._loop.call_soon(self._echo)
            self._admitted = word.token

    def _echo(self) -> None:
        self._is_echoing = False
        self._report()

    def _report(self) -> None:
        self._reported_s = self._now_s()
        if self.administration.is_up:
            report = self.machine.report()
            self.administration.say(
                words.Report(
                    **{name: getattr(report, name) for name in report.__struct_fields__ if name not in OURS},
                    counters=self.counters(),
                    admitted=self._admitted,
                )
            )

    def counters(self) -> dict[str, int]:
        """All there is to count (STR-83)."""
        found = {**self.machine.counters(), **self.lines.facts(), **self._intake.counters()}
        if self._output is not None:
            found |= self._output.counters
        return found

    # What lines and links bring.

    def on_epoch(self, epoch: int) -> None:
        """A program's word counts only while the administration, which decides, cannot be heard."""
        if not self.administration.is_up:
            self.do(self.machine.on_epoch(epoch, self._now_s()))

    def on_link_up(self, adapter: str, hello: words.LinkHello) -> None:
        now_s = self._now_s()
        self.do(self.machine.on_epoch(hello.epoch, now_s))
        self.do(self.machine.on_link_up(adapter, now_s, is_dialled=False))

    def on_link_word(self, adapter: str, word: LinkHears) -> None:
        if self.faults is not None and self.faults.is_shifted and isinstance(word, words.Anchor):
            return  # it would find its place again
        self.do(self.machine.on_link_word(adapter, word, self._now_s()))

    def on_link_down(self, adapter: str) -> None:
        self.do(self.machine.on_link_down(adapter, self._now_s(), is_dialled=False))

    def _link_hello(self, token: str) -> words.LinkHello:
        feed, machine = self._settings.feed, self.machine
        return words.LinkHello(
            stream=feed.stream, token=token, adapter=feed.name, incarnation=machine.incarnation, epoch=machine.epoch
        )

    # The rest.

    def _make_output(self) -> TopicOutput | None:
        output = self._settings.output
        if not output.topic:
            return None
        password = password_of(output, "output")
        dial = dialler(output.server, user=output.user, password=password, tls_ca=output.tls_ca)
        return TopicOutput(dial, output.topic, self._settings.feed.stream, self.machine)

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        """A fault that a test wants."""
        assert self.faults is not None
        match order.get("do"):
            case "counters":
                return {"counters": self.counters(), "last": self.machine.last, "epoch": self.machine.epoch}
            case "shift":
                self.faults.is_shifted = True
                self.do(self.machine.shift(int(order["by"]), self._now_s()))
            case "link":
                self._link.cut(not order["up"])
                self.lines.refuse_links(not order["up"])
            case "administration":
                self.administration.cut(not order["up"])
            case "decisions":
                return {"decisions": [str(one) for one in self.machine.decisions]}
            case _:
                if not self.faults.order(order):
                    raise ValueError(f"unknown order {order.get('do')!r}")
                if self.faults.delay_lines_s:
                    self.lines.supply.hold_back(self.faults.delay_lines_s)
        return {}


def limits_of(settings: FeedSettings) -> Limits:
    """What the machine is told of the settings."""
    feed, retain = settings.feed, settings.retain
    return Limits(
        threshold=feed.threshold,
        lead=feed.lead,
        revise_s=feed.revise_s,
        heartbeat_s=feed.heartbeat_s,
        lag_max=feed.lag_max,
        retained_messages=retain.messages,
        retained_s=retain.seconds,
        retained_bytes=retain.bytes,
        has_snapshots=feed.snapshots,
        is_merged=len(settings.source) > 1,
    )
