"""Anything may happen to the administration, its adapters and clients; afterwards, and meanwhile, its laws hold.

- An epoch has one active adapter, of one life; epochs that are told only rise.
- An epoch is durable before it is told (`Scene` looks at each).
- When everything is quiet: one adapter is active, everybody knows it, clients have all living adapters in their offer,
  their tokens are good at all of them, and tokens that were revoked at none.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairlead.feeds.words import Revoked

from .administration_scene import Puppet, Scene, refusal

NAMES = st.sampled_from(["a", "b", "c"])
CLIENTS = st.sampled_from(["x", "y", "z"])
CRASH = st.one_of(st.none(), st.integers(0, 12))


class Upheaval(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.scene = self.make()
        self.lives: list[Puppet] = []
        self.away: dict[str, Puppet] = {}  # alive, without a conversation
        self.revoked: set[str] = set()
        self.dead_tokens: set[str] = set()
        self.start("a", 0)
        self.start("b", 1)

    def make(self) -> Scene:
        return Scene()

    def crashed(self, crash: int | None) -> bool:
        """The administration died in the middle of what it had to do."""
        if crash is None:
            return False
        self.restart(0.0, at_once=False)
        return True

    # --- Adapters -------------------------------------------------------------------------------------------------
    @rule(name=NAMES, preference=st.integers(0, 2), synchronised=st.booleans())
    def start(self, name: str, preference: int, synchronised: bool = True) -> None:
        if name not in self.scene.puppets and name not in self.away:
            self.lives.append(self.scene.adapter(name, preference=preference, synchronised=synchronised))

    @rule(name=NAMES)
    def kill(self, name: str) -> None:
        puppet = self.scene.puppets.pop(name, None)
        if puppet is not None and puppet.talk:
            self.scene.lose(puppet)
        self.away.pop(name, None)

    @rule(name=NAMES, crash=CRASH)
    def lose(self, name: str, crash: int | None) -> None:
        """It lives on, and cannot be reached."""
        puppet = self.scene.puppets.get(name)
        if puppet is None or not puppet.talk:
            return
        self.away[name] = self.scene.puppets.pop(name)
        self.scene.puppets[name] = puppet
        self.scene.lose(puppet, crash_after=crash)
        self.scene.puppets.pop(name, None)
        self.crashed(crash)

    @rule(name=NAMES, crash=CRASH)
    def come_back(self, name: str, crash: int | None) -> None:
        puppet = self.away.pop(name, None)
        if puppet is None:
            return
        self.scene.puppets[name] = puppet
        if crash is None:
            self.scene.connect(puppet)
        else:
            puppet.talk = next(self.scene.numbers)
            self.scene.say(puppet.talk, puppet.register(), crash_after=crash)
            self.crashed(crash)

    @rule(name=NAMES, obeys=st.booleans(), synchronised=st.booleans(), has_source=st.booleans())
    def change(self, name: str, obeys: bool, synchronised: bool, has_source: bool) -> None:
        puppet = self.scene.puppets.get(name)
        if puppet is not None:
            puppet.obeys_switches, puppet.synchronised, puppet.source_alive = obeys, synchronised, has_source
            self.scene.report(puppet)

    @rule(names=st.sets(NAMES), tenths=st.integers(1, 12))
    def freeze(self, names: set[str], tenths: int) -> None:
        frozen = tuple(self.scene.puppets[name] for name in names if name in self.scene.puppets)
        self.scene.tick(tenths / 10, silent=frozen)

    # --- The administration ---------------------------------------------------------------------------------------
    @rule(away_s=st.sampled_from([0.0, 1.0, 10.0]), at_once=st.booleans())
    def restart(self, away_s: float, at_once: bool) -> None:
        self.scene.restart(away_s=away_s)
        self.away |= self.scene.puppets
        self.scene.puppets.clear()
        for customer in self.scene.customers.values():
            if not customer.told(Revoked) or customer.client not in self.revoked:
                self.scene.client(customer.client)
        if at_once:
            self.all_back()

    def all_back(self) -> None:
        for name in list(self.away):
            self.come_back(name, None)

    @rule(seconds=st.sampled_from([0.1, 0.5, 4.0]))
    def wait(self, seconds: float) -> None:
        self.scene.tick(seconds)

    # --- Clients and operators ------------------------------------------------------------------------------------
    @rule(client=CLIENTS)
    def subscribe(self, client: str) -> None:
        self.scene.client(client)

    @rule(client=CLIENTS)
    def revoke(self, client: str) -> None:
        if not self.scene.machine.facts(0):
            return
        found = [one for group in self.scene.machine.kept(self.scene.now_s).groups for one in group.passes]
        self.dead_tokens |= {one.token for one in found if one.client == client}
        self.scene.order(do="revoke", client=client)
        self.revoked.add(client)

    @rule(client=CLIENTS)
    def permit(self, client: str) -> None:
        if self.scene.machine.facts(0):
            self.scene.order(do="permit", client=client)
            self.revoked.discard(client)

    @rule(adapter=st.sampled_from(["", "a", "b", "c"]))
    def switch(self, adapter: str) -> None:
        self.scene.order(do="switch", adapter=adapter)

    # --- Laws -----------------------------------------------------------------------------------------------------
    @invariant()
    def one_active_adapter_in_each_epoch(self) -> None:
        owners: dict[int, int] = {}
        for life in self.lives:
            for epoch in life.active_under:
                assert owners.setdefault(epoch, life.incarnation) == life.incarnation, f"two in epoch {epoch}"

    @invariant()
    def told_epochs_only_rise(self) -> None:
        epochs = [role.epoch for _, role in self.scene.told]
        assert epochs == sorted(epochs)

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            self.settle()

    def settle(self) -> None:
        scene = self.scene
        self.all_back()
        for puppet in scene.puppets.values():
            puppet.source_alive = True
        scene.tick(12)
        self.one_active_adapter_in_each_epoch()
        self.told_epochs_only_rise()
        living = {puppet.name: puppet for puppet in scene.puppets.values()}
        if not living:
            return
        assert all(puppet.talk for puppet in living.values())
        actives = [puppet.name for puppet in living.values() if puppet.role == "active"]
        assert actives == [scene.active], f"{actives} are active, {scene.active} should be"
        assert {puppet.epoch for puppet in living.values()} == {scene.epoch}
        for customer in scene.customers.values():
            assert not customer.talk or set(customer.lines) == set(living), "who is subscribed is kept informed"
        for name in ("x", "y", "z"):
            customer = scene.client(name)
            if name in self.revoked:
                assert refusal(customer.heard).code == "not-allowed"
                continue
            assert customer.lines[0] == scene.active
            assert set(customer.lines) == set(living)
            assert all(customer.token in puppet.tokens for puppet in living.values())
        for puppet in living.values():
            assert not self.dead_tokens & puppet.tokens.keys(), "what was revoked is good nowhere"
