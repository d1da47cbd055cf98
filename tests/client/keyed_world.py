"""The client's road and the real message manager, without sockets, in any interleaving: who sees which key when.

Frames travel in order, each way, and wait under way as long as chance has it; so do turns of the application, of the
server and of its disk. The books know for each key what the application may see next: the lowest message it is not done
with, and nothing while it has one of that key in hand.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from pathlib import Path
from random import Random

from fairlead.client.durable.consumer import DurableConsumer
from fairlead.client.durable.content import content
from fairlead.client.durable.road import Road
from fairlead.cluster.parameters import Parameters
from fairlead.errors import from_wire
from fairlead.wire import durable, kinds
from fairlead.wire.durable import REJECT, RETURN
from fairlead.wire.entry_codec import Delivered
from fairlead.wire.frames import Parser, encode_frame
from tests.client.durable_server import Ticket, Way
from tests.cluster.core_rig import Got, Rig

QUEUE = "orders"


class Application:
    """One loop over one consumer: it takes some ahead and looks at one after the other."""

    def __init__(self, machine: DurableConsumer, chunk: int) -> None:
        self.machine = machine
        self.chunk = chunk
        self.ahead: deque[Delivered] = deque()
        self.epoch = 0

    def next(self) -> Delivered | None:
        if self.ahead and self.epoch != self.machine.epoch:
            self.ahead.clear()  # they come again
        self.epoch = self.machine.epoch
        if not self.ahead:
            self.ahead += self.machine.take(self.chunk)
        if not self.ahead:
            self.machine.asked()
            return None
        return self.ahead.popleft()


class KeyedWorld:
    """`seed` decides everything; each step is one method."""

    STEPS = ("produce", "say", "say", "hear", "hear", "turn", "turn", "sync", "time", *["look"] * 4, *["decide"] * 4)
    RARE = ("put_back", "cool", "lose")

    def __init__(self, folder: Path, seed: int, rare: tuple[str, ...] = ()) -> None:
        self.rare = rare
        self.chance = chance = Random(seed)
        self.rig = Rig(folder)
        self.uid = 7
        self.way = Way()
        self.road = Road(self.way, client_name="test", limit_s=60, now_ms=lambda: self.rig.now_ms,
                         later=lambda delay_s, action: None, wake=lambda: None, write=lambda: None)  # fmt: skip
        self.outward: deque[bytes] = deque()
        self.homeward: deque[Got] = deque()
        self.parser = Parser()
        self.rig.core.create(QUEUE, "queue", Parameters(hold_s=3600, delivery_limit=0))
        self.road.on_connected()
        self.keys = chance.randint(1, 4)
        self.retries = chance.choice((0.05, 0.2, 0.5))
        self.sent = 0
        self.left: dict[str, set[int]] = {f"k{n}": set() for n in range(self.keys)}  # not done with yet
        self.in_hand: list[tuple[DurableConsumer, Delivered, int]] = []  # and the epoch it came in
        sessions = [self.road.session("individual") for _ in range(chance.randint(1, 2))]
        self.producer = sessions[0].producer(QUEUE, "queue", create=True)
        self.rest()
        self.applications: list[Application] = []
        for _ in range(chance.randint(1, 4)):
            prefetch = chance.choice((1, 2, 4, 8, 20))
            session = chance.choice(sessions)
            machine = DurableConsumer(
                session.home, QUEUE, {"kind": "queue", "create": True}, prefetch=prefetch,
                prefetch_bytes=1 << 20, answered=True, one_by_one=True, wake=lambda: None,
            )  # fmt: skip
            machine.held = partial(self._held, machine)
            session.add_consumer(machine)
            self.applications.append(Application(machine, max(1, prefetch // 2)))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            rare = self.rare and self.chance.random() < 0.02
            getattr(self, self.chance.choice(self.rare if rare else self.STEPS))()
        self.finish()

    # ------------------------------------------------------------------ the application

    def produce(self) -> None:
        for _ in range(self.chance.randint(1, 8)):
            self.sent += 1
            key = f"k{self.chance.randrange(self.keys)}"
            self.left[key].add(self.sent)
            self.producer.add(b"%d" % self.sent, content(key=key), Ticket())

    def look(self) -> None:
        application = self.chance.choice(self.applications)
        message = application.next()
        if message is None:
            return
        key, number = message.key, int(message.body)
        assert key is not None
        others = [int(other.body) for _, other, _ in self.in_hand if other.key == key]
        assert not others, f"{number} of {key} is shown while the application has {others}"
        assert number in self.left[key], f"{number} of {key} is shown again"
        assert number == min(self.left[key]), f"{number} of {key} is shown before {min(self.left[key])}"
        self.in_hand.append((application.machine, message, application.epoch))

    def decide(self) -> None:
        if not self.in_hand:
            return
        machine, message, epoch = self.in_hand.pop(self.chance.randrange(len(self.in_hand)))
        what = self.chance.random()
        if what < self.retries and message.delivery_count < 8:
            machine.settle(message, RETURN, self.chance.choice((0, 0, 0, 50)), epoch)
            return
        assert message.key is not None
        self.left[message.key].remove(int(message.body))
        if what > 0.98:
            machine.settle(message, REJECT, 0, epoch)
        else:
            machine.acknowledge(message, epoch)

    def _held(self, machine: DurableConsumer) -> list[int]:
        return [message.order for holder, message, _ in self.in_hand if holder is machine]

    def put_back(self) -> None:
        """A loop that is paused gives its client back what it took ahead."""
        application = self.chance.choice(self.applications)
        if application.epoch == application.machine.epoch:
            application.machine.put_back(list(application.ahead), application.epoch)
            application.ahead.clear()

    # ------------------------------------------------------------------ frames under way

    def say(self) -> None:
        """The client's turn ends, and some of what it said arrives."""
        if self.chance.random() < 0.7:
            self._flush()
        for _ in range(self.chance.randint(0, len(self.outward))):
            self._arrive()

    def _flush(self) -> None:
        self.road.flush()
        self.outward += self.way.out
        self.way.out.clear()

    def _arrive(self) -> None:
        for message in self.parser.feed(self.outward.popleft()):
            self.rig.frame(self.uid, message.kind, number=message.number, correlation=message.correlation,
                           peer=message.sender, flags=message.flags, body=message.body)  # fmt: skip

    def hear(self) -> None:
        """Some of what the server said arrives."""
        for _ in range(self.chance.randint(0, min(len(self.homeward), 4))):
            self._hear_one()

    def _hear_one(self) -> None:
        got = self.homeward.popleft()
        if got.kind == kinds.KIND_ERROR:
            self.road.on_error(got.number, from_wire(got.headers["code"].decode(), got.body.decode()))
            return
        frame = encode_frame(got.kind, 0, got.number, got.correlation, got.peer, b"", b"", got.body)
        self.road.on_frames(Parser().feed(frame))

    def lose(self) -> None:
        """The line is cut, with all that was under way, and there is a new one."""
        if not self.producer.handle:
            return  # of sends that were said on many lines before, and answered on none, the server forgets the ids
        self.rig.frame(self.uid, durable.KIND_COMMAND, body=b'{"do":"gone"}')
        if self.chance.random() < 0.5:
            self.rig.turn()
        self.road.on_disconnected()
        self.outward.clear()
        self.way.out.clear()
        self.homeward.clear()
        self.rig.take(self.uid)
        self.uid += 1
        self.parser = Parser()
        self.road.on_connected()

    # ------------------------------------------------------------------ the server

    def turn(self) -> None:
        self.rig.turn()
        self.homeward += self.rig.take(self.uid)

    def sync(self) -> None:
        """Some of what was written is safe."""
        journal = self.rig.journal
        journal.safe = self.chance.randint(journal.safe, len(journal.records))
        self.rig.core.on_safe(journal.safe)
        self.warm()
        self.turn()

    def cool(self) -> None:
        """Nothing can be read at once, for a while."""
        self.rig.journal.cold = True

    def warm(self) -> None:
        self.rig.journal.cold = False
        asked, self.rig.journal.asked = self.rig.journal.asked, []
        self.rig.core.on_loaded(asked)

    def time(self) -> None:
        self.rig.now_ms += self.chance.randint(1, 30)

    # ------------------------------------------------------------------ the end

    def rest(self) -> None:
        """Everything under way arrives."""
        for _ in range(20):
            self._flush()
            while self.outward:
                self._arrive()
            self.rig.turn(sync=True)
            self.homeward += self.rig.take(self.uid)
            while self.homeward:
                self._hear_one()

    def finish(self) -> None:
        """Nothing is stuck, nothing is lost, nothing is left behind."""
        self.retries = 0
        for _ in range(50 + 10 * self.sent):
            if not any(self.left.values()):
                break
            for step in (self._flush, self.say, self.turn, self.sync, self.hear, self.time):
                step()
            for _ in range(2 * len(self.applications)):
                self.look()
                self.decide()
        assert not any(self.left.values()), f"stuck: {self.left}"
        self.rig.now_ms += 2000  # whatever had no room in the dead message queue is tried again
        self.rest()
        assert self.rig.core.faults == 0
        found = self.rig.core.find(QUEUE)
        assert found is not None
        facts = found.facts()
        assert (facts["depth"], facts["locked"], facts["ready"]) == (0, 0, 0), facts
        for application in self.applications:
            keys = application.machine._keys
            assert keys is None or not keys.given_back, "something is given back for ever"


__all__ = ["KeyedWorld"]
