"""A made-up trading day in the `itch` format: every message follows from the seed and its own sequence number alone.

So two adapters, or an adapter and a test, make the same messages wherever they begin. Orders are named by the sequence
of the message that added them; executions, cancellations and deletions look back for one that was.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import ConfigError
from fairlead.feeds.formats.layouts import LAYOUTS
from fairlead.feeds.sources.runs import Run

__all__ = ["TradingDay"]

U64 = NDArray[np.uint64]
_OPEN_NS: Final = 34_200 * 10**9
_OPEN_FOR_NS: Final = 23_400 * 10**9
_LOOK_BACK: Final = 500  # messages
_TRIES: Final = 6
_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)
_NOTICE: Final = b"N quiet please, this is a made-up day"
# Of 100 messages; the kinds that need an order become quotes where they find none.
_MIX: Final = ((b"A", 30), (b"E", 12), (b"X", 5), (b"D", 8), (b"U", 3), (b"C", 1), (b"P", 6), (b"N", 1), (b"Q", 34))
_ROLES: Final = np.frombuffer(b"".join(kind * share for kind, share in _MIX), np.uint8)


class TradingDay:
    """`messages` of a day; `malformed` of 10,000 are broken on purpose, the same ones every time."""

    def __init__(self, *, seed: int = 1, messages: int = 1_000_000, symbols: int = 100, malformed: int = 0) -> None:
        if not 4 <= messages <= 10**12:
            raise ConfigError(f"A trading day has 4 to 10**12 messages, not {messages}.")
        if not 1 <= symbols <= 17_576:
            raise ConfigError(f"A trading day has 1 to 17,576 symbols, not {symbols}.")
        if not 0 <= malformed <= 10_000:
            raise ConfigError(f"malformed is of 10,000 messages: 0 to 10,000, not {malformed}.")
        self.messages = messages
        self.symbols = symbols
        self.malformed = malformed
        self._seed = np.uint64(seed % (1 << 64))

    def run(self, first: int, count: int) -> Run:
        """Messages from `first` on; fewer at the end of the day."""
        last = min(first + count - 1, self.messages)
        if first < 1 or last < first:
            return Run(max(first, 1), b"", b"")
        sequences = np.arange(first, last + 1, dtype=np.uint64)
        kinds, orders, others = self._kinds(sequences)
        breaks = self._draw(sequences, 9) % np.uint64(10_000) < self.malformed
        sizes = np.full(len(sequences), len(_NOTICE), np.int32)
        for kind, layout in LAYOUTS.items():
            sizes[kinds == kind[0]] = layout.itemsize
        sizes[breaks] -= 1  # a byte is missing, which no kind forgives
        ends = np.cumsum(sizes, dtype=np.int64)
        data = np.zeros(int(ends[-1]) + 1, np.uint8)
        for kind, layout in LAYOUTS.items():
            (at,) = np.nonzero(kinds == kind[0])
            if len(at):
                made = np.zeros(len(at), layout)
                made["kind"] = kind
                self._fill(made, kind, sequences[at], orders[at], others[at])
                _scatter(data, ends, sizes, at, made.view(np.uint8).reshape(len(at), layout.itemsize))
        (at,) = np.nonzero(kinds == ord("N"))
        if len(at):
            _scatter(data, ends, sizes, at, np.tile(np.frombuffer(_NOTICE, np.uint8), (len(at), 1)))
        data[(ends - sizes)[breaks & (kinds == ord("N"))]] = ord("?")  # a notice may have any length
        return Run(first, sizes.tobytes(), data[:-1].tobytes())

    def _draw(self, sequences: U64, purpose: int) -> U64:
        """A number for each sequence and purpose, as if drawn at random (the finishing steps of splitmix64)."""
        with np.errstate(over="ignore"):
            x = (sequences * np.uint64(16) + np.uint64(purpose)) * np.uint64(0x9E3779B97F4A7C15) + self._seed
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        made: U64 = x ^ (x >> np.uint64(31))
        return made

    def _role(self, sequences: U64) -> NDArray[np.uint8]:
        roles: NDArray[np.uint8] = _ROLES[(self._draw(sequences, 0) % np.uint64(100)).astype(np.int64)]
        return roles

    def _kinds(self, sequences: U64) -> tuple[NDArray[np.uint8], U64, U64]:
        """What each message is, and the orders it speaks of."""
        kinds = self._role(sequences).copy()
        orders = np.where(kinds == ord("A"), sequences, np.uint64(0))
        others = np.zeros_like(orders)
        (needy,) = np.nonzero(np.isin(kinds, np.frombuffer(b"EXDUC", np.uint8)))
        orders[needy] = self._order_before(sequences[needy], 1)
        (crossed,) = np.nonzero(kinds == ord("C"))
        others[crossed] = self._order_before(sequences[crossed], 2)
        missing = np.zeros(len(kinds), bool)
        missing[needy] = orders[needy] == 0
        missing[crossed] |= others[crossed] == 0
        kinds[missing] = ord("Q")
        special = (sequences <= np.uint64(2)) | (sequences >= np.uint64(self.messages - 1))
        kinds[special] = ord("S")
        return kinds, orders, others

    def _order_before(self, sequences: U64, purpose: int) -> U64:
        """The sequence of a message before each that added an order; 0 where a few looks found none."""
        found = np.zeros_like(sequences)
        back = self._draw(sequences, purpose)
        for turn in range(_TRIES):
            distance = (back >> np.uint64(9 * turn)) % np.uint64(_LOOK_BACK) + np.uint64(1)
            looked = np.where(sequences > distance + np.uint64(2), sequences - distance, np.uint64(0))
            good = (found == 0) & (looked > 0) & (self._role(looked) == ord("A"))
            found[good] = looked[good]
        return found

    def _fill(self, made: NDArray[Any], kind: bytes, sequences: U64, orders: U64, others: U64) -> None:
        spacing = max(_OPEN_FOR_NS // self.messages, 1)
        made["time"] = np.uint64(_OPEN_NS) + sequences * np.uint64(spacing)
        if kind == b"S":
            made["symbol"] = ord(" ")
            last = np.uint64(self.messages)
            made["event"] = np.select(
                [sequences == 1, sequences == 2, sequences == last], [ord("O"), ord("Q"), ord("C")], ord("M")
            )
            return
        about = np.where(orders > 0, orders, sequences)  # all that happens to an order has its symbol and side
        symbols = self._draw(about, 3) % np.uint64(self.symbols)
        made["symbol"] = self._names(symbols)
        price = self._price(symbols, sequences)
        quantity = (self._draw(sequences, 4) % np.uint64(50) + np.uint64(1)) * np.uint64(100)
        side = np.where(self._draw(about, 5) & np.uint64(1), ord("B"), ord("S"))
        fields = made.dtype.names or ()
        if kind == b"Q":
            made["bid"] = price - np.uint64(100)
            made["ask"] = price + np.uint64(100)
            made["bid_quantity"] = quantity
            made["ask_quantity"] = quantity + np.uint64(100)
            return
        values = {"price": price, "quantity": quantity, "side": side, "match": sequences, "order": orders}
        if kind == b"U":
            values |= {"old_order": orders, "order": sequences}
        if kind == b"C":
            values |= {"buy_order": orders, "sell_order": others}
        for name, value in values.items():
            if name in fields:
                made[name] = value

    def _names(self, symbols: U64) -> NDArray[np.uint8]:
        """Three letters for each symbol, padded with spaces."""
        number = symbols.astype(np.int64)
        names = np.full((len(symbols), 8), ord(" "), np.uint8)
        for place, divisor in enumerate((676, 26, 1)):
            names[:, place] = _LETTERS[number // divisor % 26]
        return names

    def _price(self, symbols: U64, sequences: U64) -> U64:
        """Two waves of whole numbers about the symbol's own level, in steps of a cent."""
        cents = symbols * np.uint64(137) % np.uint64(50_000) + np.uint64(2_000)
        for period, height in ((40_000, 400), (3_000, 60)):
            at = (sequences + symbols * np.uint64(997)) % np.uint64(2 * period)
            distance = np.where(at > period, at - np.uint64(period), np.uint64(period) - at)
            cents = cents + distance * np.uint64(height) // np.uint64(period)
        priced: U64 = cents * np.uint64(100)
        return priced


def _scatter(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    sizes: NDArray[np.int32],
    at: NDArray[np.int64],
    bodies: NDArray[np.uint8],
) -> None:
    """Put bodies where they belong; the last byte of a broken one is overwritten by what follows it, or cut off."""
    width = bodies.shape[1]
    starts = (ends - sizes)[at]
    whole = sizes[at] == width
    data[starts[whole, None] + np.arange(width)] = bodies[whole]
    data[starts[~whole, None] + np.arange(width - 1)] = bodies[~whole, : width - 1]
