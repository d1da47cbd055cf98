"""The books themselves: each thing that must not happen is noticed, and what may happen is not called a fault."""

from __future__ import annotations

import pytest

from tests.processes.durable.books import Bank, Faults, Ledger, Reading, write_body


@pytest.fixture
def ledger() -> Ledger:
    return Ledger("q", Faults())


def sent(ledger: Ledger, count: int = 1, **times: int) -> list[bytes]:
    bodies = []
    for _ in range(count):
        number = ledger.send(7)
        ledger.confirmed(7, number, number + 100)
        bodies.append(write_body(7, number, 1000, fill=10, **times))
    return bodies


def come(
    reading: Reading, body: bytes, order: int, *, again: bool = False, lane: str = "a", now_ms: int = 2000
) -> None:
    reading.came(body, order=order, redelivered=again, lane=lane, now_ms=now_ms)


def test_an_orderly_life_has_no_faults(ledger: Ledger) -> None:
    reading = ledger.reading()
    bodies = sent(ledger, 3)
    assert len(reading.missing()) == 3
    for order, body in enumerate(bodies):
        stamp = reading.came(body, order=order, redelivered=False, lane="a", now_ms=2000)
        assert stamp is not None
        reading.asked(stamp)
        come(reading, body, order, again=True)  # its acknowledgement was lost: it may come again, marked
        reading.safe(stamp)
    assert not ledger.faults
    assert reading.missing() == []


def test_lost(ledger: Ledger) -> None:
    ledger.failed(7, ledger.send(7))
    sent(ledger)
    assert ledger.reading().missing() == [(7, 1)]


@pytest.mark.parametrize(
    ("fault", "deliveries"),
    [
        ("delivered again without the mark", [(0, 5, False), (0, 5, False)]),
        ("delivered again without the mark", [(0, 5, True), (0, 5, False), (0, 5, False)]),  # the first is a late one
        ("stored twice", [(0, 5, False), (0, 6, False)]),
        ("out of order", [(1, 6, False), (0, 5, False)]),
    ],
)
def test_faults_of_delivery(ledger: Ledger, fault: str, deliveries: list[tuple[int, int, bool]]) -> None:
    bodies = sent(ledger, 2)
    for number, order, again in deliveries:
        come(ledger.reading(), bodies[number], order, again=again)
    assert fault in ledger.faults.counts


def test_back_after_its_acknowledgement(ledger: Ledger) -> None:
    reading = ledger.reading()
    (body,) = sent(ledger)
    stamp = reading.came(body, order=1, redelivered=False, lane="a", now_ms=2000)
    assert stamp is not None
    reading.safe(stamp)
    come(reading, body, 1, again=True)
    assert list(ledger.faults.counts) == ["came back after its acknowledgement"]


def test_too_early_too_late_changed_and_never_sent(ledger: Ledger) -> None:
    reading = ledger.reading()
    (early,) = sent(ledger, due_ms=5000)
    come(reading, early, 1, now_ms=4000)
    (late,) = sent(ledger, expires_ms=5000)
    come(reading, late, 2, now_ms=9000)
    come(reading, early[:-1] + b"?", 3)
    come(reading, write_body(8, 0, 0), 4)
    assert list(ledger.faults.counts) == ["too early", "expired", "changed on the way", "never sent"]


def test_a_bank_counts_its_coins() -> None:
    bank = Bank(2, Faults())
    moved, undone, unknown, under_way = (bank.begin() for _ in range(4))
    bank.set(moved, Bank.COMMITTED)
    bank.set(undone, Bank.ROLLED_BACK)
    bank.set(unknown, Bank.UNKNOWN)
    bank.hops[0], bank.maybe[1] = 1, 1
    bank.saw(moved, "a")
    bank.saw(unknown, "a")
    bank.balance({0: [("a", 1)], 1: [("b", 0)]})
    bank.balance({0: [("a", 1)], 1: [("b", 1)]})
    assert not bank.faults
    bank.saw(undone, "a")
    bank.saw(under_way, "a")
    bank.balance({0: [("a", 0)], 1: []})
    bank.balance({0: [("a", 1), ("b", 1)], 1: [("a", 0)]})
    assert set(bank.faults.counts) == {
        "visible though rolled back",
        "visible before its commit",
        "transaction torn",
        "coin lost",
        "coin doubled",
    }
