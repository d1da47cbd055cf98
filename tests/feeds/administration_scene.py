"""A stream administration without a network: puppets for adapters, clients and operators, and a store."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.feeds.administration import Administration, Effect, Keep, Options, Say, Tell
from fairlead.feeds.administration.kept import Kept
from fairlead.feeds.words import (
    Admit,
    Brokered,
    Notice,
    Order,
    Refusal,
    Register,
    Report,
    Revoke,
    Role,
    SendAdmin,
    Source,
    Subscribe,
    Word,
)

STREAM = "prices.emea"


def everything(user: str, action: str, name: str) -> bool:
    return True


@dataclass(eq=False)
class Puppet:
    """An adapter that does what it is told."""

    name: str
    incarnation: int
    stream: str = STREAM
    preference: int = 100
    talk: int = 0  # 0: none
    user: str = ""
    role: str = "backup"
    epoch: int = 0
    last: int = 0
    synchronised: bool = True
    source_alive: bool = True
    sources: tuple[Source, ...] = (Source(id="line"),)
    tokens: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    heard: list[Word] = field(default_factory=list)
    obeys_switches: bool = True
    answers: bool = True  # reports at once that it knows of a client
    active_under: set[int] = field(default_factory=set)
    admitted: str = ""  # the newest token
    has_news: bool = False  # and nobody has heard so

    @property
    def address(self) -> str:
        return f"127.0.0.1:{10_000 + self.incarnation}"

    def register(self, **facts: Any) -> Register:
        said = {
            "stream": self.stream,
            "adapter": self.name,
            "incarnation": self.incarnation,
            "address": self.address,
            "epoch": self.epoch,
            "role": self.role,
            "last": self.last,
            "preference": self.preference,
            "sources": self.sources,
            "tokens": (*self.tokens, *self.links),
        }
        return Register(**(said | facts))  # type: ignore[arg-type]

    def report(self) -> Report:
        return Report(
            epoch=self.epoch,
            role=self.role,  # type: ignore[arg-type]
            incarnation=self.incarnation,
            last=self.last,
            positions={"line": (self.last, 1, 1)},
            synchronised=self.synchronised,
            source_alive=self.source_alive,
            admitted=self.admitted,
        )

    def hear(self, word: Word) -> None:
        self.heard.append(word)
        match word:
            case Role() if word.epoch >= self.epoch:
                self.be(word.role, word.epoch)
            case Admit(link=True):
                self.links[word.token] = word.client
            case Admit():
                self.tokens[word.token] = word.client
                self.admitted, self.has_news = word.token, True
            case Revoke():
                self.tokens.pop(word.token, None)
                self.links.pop(word.token, None)

    def be(self, role: str, epoch: int) -> None:
        self.role, self.epoch = role, epoch
        if role == "active":
            self.active_under.add(epoch)

    def told(self, kind: type[Word]) -> list[Any]:
        return [word for word in self.heard if isinstance(word, kind)]


@dataclass(eq=False)
class Customer:
    """A client; it remembers what it was told."""

    client: str
    user: str = ""
    stream: str = STREAM
    talk: int = 0
    heard: list[Word] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return [line.adapter for line in self.offer.lines]

    @property
    def offer(self) -> Brokered | Notice:
        return next(word for word in reversed(self.heard) if isinstance(word, Brokered | Notice))

    @property
    def token(self) -> str:
        return self.offer.lines[0].token

    def told(self, kind: type[Word]) -> list[Any]:
        return [word for word in self.heard if isinstance(word, kind)]


class Scene:
    """`tick` moves the time; everything said is delivered at once, after what has to be kept is kept."""

    def __init__(self, allows: Callable[[str, str, str], bool] = everything, **options: Any) -> None:
        self.allows = allows
        self.options = Options(**options)
        self.now_s = 1000.0
        self.numbers = itertools.count(1)
        self.incarnations = itertools.count(1)
        self.bytes_drawn = itertools.count(1)
        self.puppets: dict[str, Puppet] = {}
        self.customers: dict[str, Customer] = {}
        self.others: dict[int, list[Word]] = {}
        self.ended: set[int] = set()
        self.log: list[Say] = []
        self.keeps = 0
        self.durable: bytes | None = None
        self.told: list[tuple[str, Role]] = []  # of all times
        self.machine = self._make()

    def _make(self, *, damaged: bool = False) -> Administration:
        kept = None if self.durable is None else msgspec.json.decode(self.durable, type=Kept)
        return Administration(
            self.allows,
            kept=kept,
            damaged=damaged,
            now_s=self.now_s,
            wall_s=self.now_s + 5_000_000,
            random=lambda count: next(self.bytes_drawn).to_bytes(count, "big"),
            options=self.options,
        )

    # --- The administration itself --------------------------------------------------------------------------------
    def restart(self, *, damaged: bool = False, away_s: float = 0.0) -> None:
        """Killed, and started again from what it kept; all conversations are gone."""
        self.now_s += away_s
        if damaged:
            self.durable = None
        for puppet in self.puppets.values():
            puppet.talk = 0
        for customer in self.customers.values():
            customer.talk = 0
        self.machine = self._make(damaged=damaged)

    @property
    def kept(self) -> Kept:
        assert self.durable is not None
        return msgspec.json.decode(self.durable, type=Kept)

    def do(self, effects: list[Effect], *, crash_after: int | None = None) -> None:
        """`crash_after` so many effects the process is dead: the rest never happens."""
        for number, effect in enumerate(effects):
            if crash_after is not None and number >= crash_after:
                return
            match effect:
                case Keep():
                    self.keeps += 1
                    self.durable = msgspec.json.encode(self.machine.kept(self.now_s))
                case Say():
                    self.log.append(effect)
                case Tell():
                    self._deliver(effect)
        for puppet in list(self.puppets.values()):
            if puppet.has_news and puppet.answers:
                puppet.has_news = False
                self.report(puppet)

    def _deliver(self, tell: Tell) -> None:
        puppet = next((one for one in self.puppets.values() if one.talk == tell.talk), None)
        customer = next((one for one in self.customers.values() if one.talk == tell.talk), None)
        if isinstance(tell.word, Role):
            assert puppet is not None
            self.told.append((f"{puppet.name}/{puppet.incarnation}", tell.word))
            highest = max((group.highest for group in self.kept.groups if group.stream == puppet.stream), default=0)
            assert tell.word.epoch <= highest, "an epoch is durable before it is told"
        if isinstance(tell.word, SendAdmin) and puppet is not None and tell.word.admin.kind == "switch":
            puppet.heard.append(tell.word)
            if puppet.obeys_switches:
                self._switch(puppet, tell.word)
        elif puppet is not None:
            puppet.hear(tell.word)
        elif customer is not None:
            customer.heard.append(tell.word)
        else:
            self.others.setdefault(tell.talk, []).append(tell.word)
        if tell.last:
            self.ended.add(tell.talk)
            for one in (puppet, customer):
                if one is not None:
                    one.talk = 0

    def _switch(self, active: Puppet, word: SendAdmin) -> None:
        """As adapters do it: the active one stops, the other goes on under the new epoch."""
        target = self.puppets.get(word.admin.to)
        if target is not None and active.role == "active" and active.epoch < word.admin.epoch:
            active.be("backup", word.admin.epoch)
            target.be("active", word.admin.epoch)

    def say(self, talk: int, word: Word, user: str = "", *, crash_after: int | None = None) -> list[Effect]:
        effects = self.machine.on_word(talk, user, word, self.now_s)
        self.do(effects, crash_after=crash_after)
        return effects

    # --- Adapters -------------------------------------------------------------------------------------------------
    def adapter(self, name: str, **facts: Any) -> Puppet:
        """A new process under this name."""
        puppet = Puppet(name, next(self.incarnations), **facts)
        self.puppets[name] = puppet
        self.connect(puppet)
        return puppet

    def connect(self, puppet: Puppet, *, crash_after: int | None = None, **facts: Any) -> None:
        """It begins a conversation, or another one."""
        puppet.talk = next(self.numbers)
        self.say(puppet.talk, puppet.register(**facts), puppet.user, crash_after=crash_after)
        self.report(puppet)

    def report(self, puppet: Puppet) -> None:
        if puppet.talk:
            self.say(puppet.talk, puppet.report(), puppet.user)

    def lose(self, one: Puppet | Customer, *, crash_after: int | None = None) -> None:
        """Its conversation ends."""
        talk, one.talk = one.talk, 0
        self.do(self.machine.on_lost(talk, self.now_s), crash_after=crash_after)

    def kill(self, puppet: Puppet) -> None:
        del self.puppets[puppet.name]
        self.lose(puppet)

    # --- Clients and operators ------------------------------------------------------------------------------------
    def client(self, name: str, user: str = "", **facts: Any) -> Customer:
        customer = self.customers.setdefault(name, Customer(name, user))
        customer.talk = next(self.numbers)
        self.say(customer.talk, Subscribe(stream=customer.stream, client=name, **facts), user)
        return customer

    def order(self, by: str = "", **facts: Any) -> list[Word]:
        """All that was answered so far."""
        talk = next(self.numbers)
        self.say(talk, Order(**({"stream": STREAM} | facts)), by)
        return self.others.setdefault(talk, [])

    # --- Time -----------------------------------------------------------------------------------------------------
    def tick(self, seconds: float = 0.1, *, silent: tuple[Puppet, ...] = ()) -> None:
        """Adapters report meanwhile."""
        for _ in range(max(round(seconds / 0.1), 1)):
            self.now_s += 0.1
            for puppet in list(self.puppets.values()):
                if puppet not in silent:
                    self.report(puppet)
            self.do(self.machine.on_tick(self.now_s))

    # --- Looking --------------------------------------------------------------------------------------------------
    def facts(self, stream: str = STREAM) -> dict[str, Any]:
        return next(dict(one) for one in self.machine.facts(self.now_s) if one["name"] == stream)

    @property
    def epoch(self) -> int:
        return int(self.facts()["epoch"])

    @property
    def active(self) -> str:
        return str(self.facts()["active"])


def refusal(words: list[Word]) -> Refusal:
    found = words[-1]
    assert isinstance(found, Refusal), found
    return found
