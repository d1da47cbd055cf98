from __future__ import annotations

from fairlead.directory.registrar.lookups import Lookups
from fairlead.directory.rows import Application, Broker

APP = Application(name="AZ", kind="static", broker="C")
ROWS = (Broker(name="C", ip="127.0.0.1", port=1),)


def test_fresh_for_a_while_and_then_only_old() -> None:
    lookups = Lookups(fresh_s=1)
    known = lookups.remember("AZ", APP, ROWS, 10)
    assert lookups.fresh("AZ", 10.9) is known
    assert lookups.fresh("AZ", 11) is None
    assert lookups.old("AZ") is known


def test_that_somebody_is_unknown_is_not_remembered() -> None:
    lookups = Lookups()
    lookups.remember("AZ", APP, ROWS, 0)
    assert lookups.remember("AZ", None, (), 1).app is None
    assert lookups.old("AZ") is None


def test_the_oldest_is_forgotten_when_there_are_too_many() -> None:
    lookups = Lookups(kept_max=2)
    for name in ("a", "b", "a", "c"):
        lookups.remember(name, APP, ROWS, 0)
    assert len(lookups) == 2
    assert lookups.old("b") is None
