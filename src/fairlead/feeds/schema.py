"""What the bodies of a stream are made of: rows of a schema (docs/feeds.md, section 2), one at a time.

No Arrow is needed here, so that every client can read its messages; `rows.py` does the same with whole Arrow batches.
Days, timestamps and times are whole numbers in the unit of their column, since Python's own have no nanoseconds.
"""

from __future__ import annotations

import decimal
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias

import msgspec

from fairlead.errors import BadParameter, BadRow

__all__ = ["COLUMNS_MAX", "Column", "Schema", "Value", "column_of"]

Value: TypeAlias = bool | int | float | str | bytes | Decimal | None

COLUMNS_MAX: Final = 1024

_PLAIN: Final = {
    "bool": ("B", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uint8": ("B", 1),
    "uint16": ("H", 2),
    "uint32": ("I", 4),
    "uint64": ("Q", 8),
    "halffloat": ("e", 2),
    "float": ("f", 4),
    "double": ("d", 8),
    "date32[day]": ("i", 4),
    "string": ("I", 4),
    "binary": ("I", 4),
}
"""Of types without parameters: code of struct, bytes."""
_ALIASES: Final = {
    "boolean": "bool",
    "float16": "halffloat",
    "float32": "float",
    "float64": "double",
    "date32": "date32[day]",
    "utf8": "string",
}
_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns)(?:, ?tz=([\w/+:-]{1,64}))?\]")
_TIME: Final = re.compile(r"time64\[(us|ns)\]")
_DECIMAL: Final = re.compile(r"decimal(?:128)?\((\d{1,2}), ?(-?\d{1,2})\)")
_FIXED: Final = re.compile(r"fixed_size_binary\[(\d{1,7})\]")
_DAY: Final = {"us": 86_400_000_000, "ns": 86_400_000_000_000}
_FIXED_BYTES_MAX: Final = 1 << 20
_EXACT: Final = decimal.Context(prec=80)


class Column(NamedTuple):
    """One column. `kind` is the type without what is in its brackets."""

    name: str
    type: str  # as Arrow prints it
    kind: str
    code: str  # of struct
    width: int  # bytes in the fixed part
    unit: str = ""  # timestamp, time64
    zone: str = ""  # timestamp
    precision: int = 0  # decimal128
    scale: int = 0

    @property
    def is_variable(self) -> bool:
        return self.kind in ("string", "binary")


def column_of(name: str, type_name: str) -> Column:
    """A column by the name of its Arrow type; BadParameter."""
    known = _ALIASES.get(type_name, type_name)
    if known in _PLAIN:
        code, width = _PLAIN[known]
        return Column(name, known, known.partition("[")[0], code, width)
    if found := _TIMESTAMP.fullmatch(known):
        unit, zone = found[1], found[2] or ""
        printed = f"timestamp[{unit}, tz={zone}]" if zone else f"timestamp[{unit}]"
        return Column(name, printed, "timestamp", "q", 8, unit, zone)
    if found := _TIME.fullmatch(known):
        return Column(name, known, "time64", "q", 8, found[1])
    if found := _DECIMAL.fullmatch(known):
        precision, scale = int(found[1]), int(found[2])
        if 1 <= precision <= 38 and -38 <= scale <= 38:
            printed = f"decimal128({precision}, {scale})"
            return Column(name, printed, "decimal128", "16s", 16, precision=precision, scale=scale)
    if (found := _FIXED.fullmatch(known)) and 1 <= int(found[1]) <= _FIXED_BYTES_MAX:
        return Column(name, known, "fixed_size_binary", f"{found[1]}s", int(found[1]))
    raise BadParameter(
        f"Column {name!r} of a stream cannot be of type {type_name!r}: take bool, an integer, a float, date32[day], "
        "timestamp[UNIT], time64[UNIT], decimal128(PRECISION, SCALE), fixed_size_binary[BYTES], string or binary."
    )


class Schema:
    """The columns of a stream's rows; turns a body into values and back."""

    __slots__ = ("_checked", "_fixed", "_made", "_row", "_variable", "columns", "names")

    def __init__(self, columns: Iterable[Column]) -> None:
        self.columns: Final = tuple(columns)
        self.names: Final = tuple(column.name for column in self.columns)
        if not 1 <= len(self.columns) <= COLUMNS_MAX:
            raise BadParameter(f"A schema has 1 to {COLUMNS_MAX} columns, not {len(self.columns)}.")
        if len(set(self.names)) != len(self.names) or "" in self.names:
            raise BadParameter("The columns of a schema need names, each another one.")
        codes = "".join(column.code for column in self.columns)
        self._row: Final = struct.Struct(f"<{self.bitmap_bytes}s{codes}")
        self._fixed: Final = self._row.size
        self._variable: Final = [(i, c.kind == "string") for i, c in enumerate(self.columns) if c.is_variable]
        self._checked: Final = [(i, read) for i, c in enumerate(self.columns) if (read := _reader(c)) is not None]
        self._made: Final = [(c, _writer(c)) for c in self.columns]

    @classmethod
    def of(cls, columns: Mapping[str, str] | Iterable[tuple[str, str]]) -> Schema:
        """From names and Arrow types: `Schema.of({"symbol": "string", "price": "int64"})`."""
        pairs = columns.items() if isinstance(columns, Mapping) else columns
        return cls(column_of(name, kind) for name, kind in pairs)

    @classmethod
    def from_json(cls, text: str | bytes) -> Schema:
        """As it stands in a brokering; BadParameter."""
        try:
            pairs = msgspec.json.decode(text, type=list[tuple[str, str]])
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise BadParameter(f'A schema is written as [["NAME", "TYPE"], …]: {error}.') from None
        return cls.of(pairs)

    def to_json(self) -> str:
        return msgspec.json.encode([(column.name, column.type) for column in self.columns]).decode()

    @property
    def bitmap_bytes(self) -> int:
        return (len(self.columns) + 7) // 8

    @property
    def fixed_bytes(self) -> int:
        """Bytes of every row before those of its strings and binaries."""
        return self._fixed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.columns == other.columns

    def __hash__(self) -> int:
        return hash(self.columns)

    def __repr__(self) -> str:
        return f"Schema({self.to_json()})"

    def decode(self, body: bytes | memoryview) -> dict[str, Value]:
        """The row by the names of the columns; BadRow."""
        return dict(zip(self.names, self.decode_tuple(body), strict=True))

    def decode_tuple(self, body: bytes | memoryview) -> tuple[Value, ...]:
        """The row in the order of the columns; BadRow."""
        if len(body) < self._fixed:
            raise BadRow(f"{len(body)} bytes are not a row of this schema, which has at least {self._fixed}.")
        bitmap, *values = self._row.unpack_from(body)
        nulls = int.from_bytes(bitmap, "little")
        if nulls >> len(values):
            raise BadRow("A row has more nulls than its schema has columns.")
        at = self._fixed
        for index, is_text in self._variable:
            end = at + values[index]
            if end > len(body) or (end > at and nulls >> index & 1):
                raise BadRow(f"Column {self.names[index]} of a row does not lie within it.")
            piece = bytes(body[at:end])
            try:
                values[index] = piece.decode() if is_text else piece
            except UnicodeDecodeError:
                raise BadRow(f"Column {self.names[index]} of a row is not UTF-8.") from None
            at = end
        if at != len(body):
            raise BadRow(f"A row has {len(body) - at} bytes that belong to no column of its schema.")
        for index, read in self._checked:
            if not nulls >> index & 1:
                values[index] = read(values[index])
        if nulls:
            values = [None if nulls >> index & 1 else value for index, value in enumerate(values)]
        return tuple(values)

    def encode(self, row: Mapping[str, Value]) -> bytes:
        """A row from values by name; what is missing is null. BadParameter."""
        if row.keys() - set(self.names):
            raise BadParameter(f"The schema has no column {', '.join(sorted(row.keys() - set(self.names)))}.")
        nulls = 0
        fixed: list[int | float | bytes] = []
        tail: list[bytes] = []
        for index, (column, write) in enumerate(self._made):
            value = row.get(column.name)
            if value is None:
                nulls |= 1 << index
                fixed.append(bytes(column.width) if column.code[-1] == "s" else 0)
                continue
            try:
                made = write(value)
            except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
                raise BadParameter(
                    f"{value!r:.100} is no {column.type}, as column {column.name} needs: {error}."
                ) from None
            if column.is_variable and isinstance(made, bytes):
                tail.append(made)
                fixed.append(len(made))
            else:
                fixed.append(made)
        try:
            return b"".join((self._row.pack(nulls.to_bytes(self.bitmap_bytes, "little"), *fixed), *tail))
        except (struct.error, OverflowError) as error:
            raise BadParameter(f"A value does not fit its column: {error}.") from None


def _reader(column: Column) -> Callable[..., Value] | None:
    """What must be done to a value that is not what struct makes of it."""

    def read_bool(number: int) -> bool:
        if number > 1:
            raise BadRow(f"Column {column.name} of a row is neither true nor false.")
        return number == 1

    def read_time(number: int) -> int:
        if not 0 <= number < _DAY[column.unit]:
            raise BadRow(f"Column {column.name} of a row is no time of a day.")
        return number

    def read_decimal(data: bytes) -> Decimal:
        number = int.from_bytes(data, "little", signed=True)
        if abs(number) >= 10**column.precision:
            raise BadRow(f"Column {column.name} of a row has more than {column.precision} digits.")
        return _EXACT.scaleb(Decimal(number), -column.scale)

    special: dict[str, Callable[..., Value]] = {"bool": read_bool, "time64": read_time, "decimal128": read_decimal}
    return special.get(column.kind)


def _writer(column: Column) -> Callable[..., int | float | bytes]:
    """Makes of a value what struct takes, or raises TypeError or ValueError."""

    def write_bool(value: object) -> int:
        if not isinstance(value, bool):
            raise TypeError("it must be True or False")
        return int(value)

    def write_number(value: int | float) -> int | float:
        return value

    def write_time(value: int) -> int:
        if not 0 <= value < _DAY[column.unit]:
            raise ValueError("it is no time of a day")
        return value

    def write_decimal(value: Decimal | int) -> bytes:
        sign, digits, exponent = Decimal(value).as_tuple()
        if not isinstance(exponent, int):
            raise ValueError("it is not finite")
        shift = exponent + column.scale
        number: int = int("".join(map(str, digits)))
        if number and abs(shift) > 80:
            raise ValueError("it does not fit")
        scaled, rest = divmod(number, 10 ** max(-shift, 0)) if number else (0, 0)
        scaled *= 10 ** max(shift, 0) if number else 1
        if rest or scaled >= 10**column.precision:
            raise ValueError("it does not fit")
        return (-scaled if sign else scaled).to_bytes(16, "little", signed=True)

    def write_fixed(value: bytes) -> bytes:
        if len(value) != column.width:
            raise ValueError(f"it needs {column.width} bytes")
        return bytes(value)

    def write_text(value: str) -> bytes:
        return value.encode()

    def write_bytes(value: bytes | bytearray | memoryview) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError("it must be bytes")
        return bytes(value)

    special: dict[str, Callable[..., int | float | bytes]] = {
        "bool": write_bool,
        "time64": write_time,
        "decimal128": write_decimal,
        "fixed_size_binary": write_fixed,
        "string": write_text,
        "binary": write_bytes,
    }
    return special.get(column.kind, write_number)
