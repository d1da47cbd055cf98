"""Numbers of connections: a machine that only picks, fails and opens, at brokers that are all available."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead.directory.rules import ALL_RULES, Rules

from .laws import APPS, BROKERS, apps, brokers
from .rig import Rig


class Even(RuleBasedStateMachine):
    """All brokers available, none closing: who is picked has the fewest of those the request could take (DIR-52)."""

    switches: ClassVar[Rules] = ALL_RULES

    @initialize(number=st.integers(2, 4))
    def begin(self, number: int) -> None:
        self.rig = Rig(rules=self.switches, lease_s=1000, suspect_s=1)
        self.names = BROKERS[:number]
        for name in self.names:
            self.rig.broker(name, "c")
        self.held: dict[str, Counter[str]] = {app: Counter(dict.fromkeys(self.names, 0)) for app in APPS}
        self.open: dict[str, tuple[str, str]] = {}  # reservation: application, broker
        self.lapsed: dict[str, tuple[str, str]] = {}
        self.limited = False  # did a request leave somebody out, or an attempt come to nothing?

    @rule(app=apps, exclude=st.sets(brokers, max_size=2))
    def pick(self, app: str, exclude: set[str]) -> None:
        able = [name for name in self.names if name not in exclude]
        if not able:
            return
        self.limited |= bool(exclude & set(self.names))
        held = self.held[app]
        fewest = min(held[name] for name in able)
        broker, reservation = self.rig.pick(app, exclude=sorted(exclude))
        assert held[broker] == fewest, f"{broker} has more than another one that was free: {dict(held)}"
        held[broker] += 1
        self.open[reservation] = (app, broker)
        assert self.limited or max(held.values()) - min(held.values()) <= 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def opened(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(sorted(self.open)))
        app, broker = self.open.pop(reservation)
        self.rig.open(broker, f"of {reservation}", app, reservation=reservation)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def failed(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(sorted(self.open)))
        app, broker = self.open.pop(reservation)
        client = "the only one"
        self.rig.say("report_failure", app=app, broker=broker, client=client, reason="", reservation=reservation)
        self.held[app][broker] -= 1
        self.limited = True

    @rule()
    def lapse(self) -> None:
        self.rig.time(10)
        for reservation, (app, broker) in self.open.items():
            self.held[app][broker] -= 1
            self.limited = True
            self.lapsed[reservation] = (app, broker)
        self.open.clear()

    @precondition(lambda self: self.lapsed)
    @rule(data=st.data())
    def comes_after_all(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(sorted(self.lapsed)))
        app, broker = self.lapsed.pop(reservation)
        self.rig.open(broker, f"of {reservation}", app, reservation=reservation)
        self.held[app][broker] += 1

    @rule()
    def fail_over(self) -> None:
        self.rig.fail_over()

    @invariant()
    def the_directory_counts_alike(self) -> None:
        if self.switches.count_reserved:
            rows = self.rig.brokers()
            for name in self.names:
                held = sum(counts[name] for counts in self.held.values())
                assert rows[name].get("connections", 0) + rows[name].get("reserved", 0) == held
