"""Chance over two groups: a client sends, consumes and transfers; frames are slow, groups fail over, lines break.

`seed` decides everything. The books know what was confirmed, what was shown and what was told of each transfer; at the
end, when everything has come to rest, nothing is missing, nothing is there twice, and each destination kept its order.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from fairlead.client.durable.consumer import DurableConsumer
from fairlead.client.durable.content import PLAIN
from fairlead.client.durable.session import DurableSession
from fairlead.client.durable.transaction import DurableTransaction
from fairlead.errors import TransactionAborted
from tests.client.cluster_world import ClusterWorld, send
from tests.client.durable_server import Ticket

FLOWS = ("left", "right")
BANK = ("old", "left.2")  # in group b and a
TOKENS = 4


class Flow:
    """One queue: what was sent to it, and what one consumer saw of it."""

    def __init__(self, name: str, consumer: DurableConsumer) -> None:
        self.name = name
        self.consumer = consumer
        self.tickets: list[Ticket] = []
        self.shown: list[int] = []  # the first time each
        self.done: dict[int, Ticket] = {}  # acknowledgements by number

    def show(self, number: int, *, redelivered: bool) -> None:
        if number in self.shown:
            assert redelivered, f"{self.name}: {number} is shown twice without a mark"
            ticket = self.done.get(number)
            assert ticket is None or not ticket.done() or ticket.error, f"{self.name}: {number} was safely acknowledged"
        else:
            assert not self.shown or number > self.shown[-1], f"{self.name}: {number} after {self.shown[-1]}"
            self.shown.append(number)


class ChanceWorld(ClusterWorld):
    STEPS = (
        *("send", "look", "look", "clock"),
        *("transfer", "go") * 4,
        *("say", "travel", "bus", "work", "home") * 2,
    )
    RARE = ("lose", "fail_over_one", "stay_away", "crash")

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = Random(seed)
        super().__init__(folder)
        self.sender = self.session()
        reader = self.session()
        self.flows = {name: Flow(name, self.consumer(reader, name, prefetch=4)) for name in FLOWS}
        for token in range(TOKENS):
            send(self.sender.producer(BANK[0], "queue", create=True), b"%d" % token)
        send(self.sender.producer(BANK[1], "queue", create=True))
        self.pump()
        self.away: set[str] = set()
        self.transfers = 0
        self.told: list[Ticket] = []
        self.teller: DurableSession | None = None
        self.moving: tuple[DurableConsumer, DurableTransaction | None, Ticket | None] | None = None
        self.direction = 0
        self.token = 0
        self.where = dict.fromkeys(range(TOKENS), 0)  # the bank of each token, by what was told

    def run(self, steps: int) -> None:
        for _ in range(steps):
            committing = self.moving is not None and self.moving[2] is not None
            rare = self.chance.random() < (0.08 if committing else 0.02)
            getattr(self, self.chance.choice(self.RARE if rare else self.STEPS))()
        self.finish()

    # --- The application ------------------------------------------------------------------------------------------
    def send(self) -> None:
        flow = self.flows[self.chance.choice(FLOWS)]
        producer = self.sender.producer(flow.name, "queue", create=True)
        for _ in range(self.chance.randint(1, 5)):
            flow.tickets += send(producer, b"%d" % len(flow.tickets))

    def look(self) -> None:
        flow = self.flows[self.chance.choice(FLOWS)]
        for message in flow.consumer.take(self.chance.randint(1, 3)):
            number = int(message.body)
            flow.show(number, redelivered=message.redelivered)
            flow.consumer.acknowledge(message, flow.consumer.epoch)
            flow.done[number] = told = Ticket()
            flow.consumer.ask_settled(message, flow.consumer.epoch, told)

    def transfer(self) -> None:
        """One transaction after another takes a token from one group to the other."""
        if self.moving is None:
            self.teller = session = self.session("transacted")
            self.direction = self.chance.randrange(2)
            self.moving = (self.consumer(session, BANK[self.direction], prefetch=1), None, None)
            return
        consumer, transaction, told = self.moving
        assert self.teller is not None
        if transaction is None:
            taken = consumer.take(1)
            if taken:
                transaction = DurableTransaction(self.teller)
                transaction.took(consumer, taken)
                self.token = int(taken[0].body)
                assert self.where[self.token] == self.direction, f"token {self.token} is not where it was told to be"
                producer = self.teller.producer(BANK[1 - self.direction], "queue", create=True)
                transaction.send(producer, taken[0].body, PLAIN)
                self.moving = (consumer, transaction, None)
            elif self.chance.random() < 0.3:
                self._leave()
        elif told is None:
            if transaction.error is not None:
                self._leave()  # undone before its commit
                return
            told = Ticket()
            self.told.append(told)
            transaction.commit(told.reply)
            self.moving = (consumer, transaction, told)
        elif told.done():
            assert told.times == 1
            assert told.error is None or isinstance(told.error, TransactionAborted), told.error
            if told.error is None:
                self.transfers += 1
                self.where[self.token] = 1 - self.direction
            self._leave()

    def _leave(self) -> None:
        assert self.teller is not None
        if self.teller.transaction is not None:
            self.teller.transaction.rollback(Ticket().reply)
        self.teller.end(Ticket().reply)
        self.moving = None

    # --- What travels ---------------------------------------------------------------------------------------------
    def go(self) -> None:
        """Everything goes one way further."""
        self.say()
        while self.outward:
            self.arrive()
        while self.site.net.deliver():
            pass
        for member in list(self.site.members.values()):
            member.turn()
        while self.site.net.deliver():
            pass
        self.collect()
        while self.homeward:
            self.hear()

    def travel(self) -> None:
        for _ in range(self.chance.randint(0, min(len(self.outward), 5))):
            self.arrive()

    def bus(self) -> None:
        for _ in range(self.chance.randint(0, min(len(self.site.net.queue), 4))):
            self.site.net.deliver()

    def work(self) -> None:
        """Some group works; what it wrote becomes safe at once, or later."""
        if not self.site.members:
            return
        member = self.site.members[self.chance.choice(sorted(self.site.members))]
        if self.chance.random() < 0.6:
            member.turn()
        else:
            member.core.run()
            member.core.finish()
            member.links.send()

    def home(self) -> None:
        self.collect()
        for _ in range(self.chance.randint(0, min(len(self.homeward), 5))):
            self.hear()

    def clock(self) -> None:
        self._pass(self.chance.choice((0.05, 0.3, 1.5)))

    def _pass(self, seconds: float) -> None:
        until_s = self.site.now_s + seconds
        while self.timers and self.timers[0][0] <= until_s:
            self.site.now_s, _, action = self.timers.pop(0)
            action()
        self.site.now_s = self.site.agent.now_s = until_s
        for member in self.site.members.values():
            member.core.now_ms = int(until_s * 1000) + 900_000
        self.site.agent.tick()

    # --- What goes wrong ------------------------------------------------------------------------------------------
    def lose(self) -> None:
        self.cut()

    def fail_over_one(self) -> None:
        group = self.chance.choice(sorted(self.site.members) or [""])
        if group:
            self.fail_over(group)

    def stay_away(self) -> None:
        """A group is lost, and somebody leads it some time later."""
        if self.away:
            self.lead(self.away.pop())
        else:
            group = self.chance.choice(sorted(self.site.members))
            self.site.kill(group)
            self.away.add(group)

    def crash(self) -> None:
        """Both at once."""
        for group in sorted(self.site.members):
            self.fail_over(group)

    # --- The end --------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        for group in sorted(self.away):
            self.lead(group)
        self.away.clear()
        for _ in range(60):
            self._pass(1.0)
            self.pump()
            for flow in self.flows.values():
                self.chance.random()
                for message in flow.consumer.take(100):
                    flow.show(int(message.body), redelivered=message.redelivered)
                    flow.consumer.acknowledge(message, flow.consumer.epoch)
            if self.moving is not None:
                self.transfer()
        self.pump()
        self.check()

    def check(self) -> None:
        for flow in self.flows.values():
            assert all(ticket.times == 1 and ticket.error is None for ticket in flow.tickets), (
                f"{flow.name}: open sends"
            )
            assert flow.shown == list(range(len(flow.tickets))), f"{flow.name}: not all, in order, once"
            facts = self.find(flow.name).facts() if flow.tickets else {"depth": 0, "locked": 0}
            assert (facts["depth"], facts["locked"]) == (0, 0), f"{flow.name}: {facts}"
        if self.moving is not None:
            self._leave()
            self.pump()
            self._pass(15.0)
            self.pump()
        assert all(ticket.done() for ticket in self.told)
        reader = self.session()
        for bank, name in enumerate(BANK):
            consumer = self.consumer(reader, name, prefetch=50)
            self.pump()
            found = sorted(int(message.body) for message in consumer.take(50))
            told = sorted(token for token, where in self.where.items() if where == bank)
            assert found == told, f"{name} has {found}, and what was told is {told}"
        for member in self.site.members.values():
            assert member.core.faults == 0
