"""The types of a table's columns, as the text its definition holds: what Parquet stores, in Arrow's words.

What a writer left in a footer for Arrow makes no difference: text is `string`, whether it was written from a
`string_view`, a `large_string` or a dictionary. Tables defined by earlier versions hold such names as well.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

INT96 = "timestamp[int96]"
"""Spark reads it as an instant, and just as well as what a clock on the wall shows."""
INSTANT, WALL_CLOCK = "timestamp[us, tz=UTC]", "timestamp[us]"
NANOS = {True: "timestamp[ns, int64, tz=UTC]", False: "timestamp[ns, int64]"}
"""64-bit nanoseconds, by whether they are adjusted to UTC. `timestamp[ns]` alone is what earlier versions called INT96,
which Spark reads by itself; these it reads as whole numbers only."""

_IN_MICROS: Mapping[str, str] = {NANOS[True]: INSTANT, NANOS[False]: WALL_CLOCK}

_SAME: Mapping[str, str] = {
    "large_string": "string", "string_view": "string", "extension<arrow.json>": "string",
    "large_binary": "binary", "binary_view": "binary", "extension<arrow.uuid>": "binary",
    "date64[ms]": "date32[day]", "null": "int32",
}  # fmt: skip
_DICTIONARY = re.compile(r"dictionary<values=([^,]+), indices=[^>]*>")
_TIMESTAMP = re.compile(r"timestamp\[(?:s|ms|us|ns)(, tz=[^\]]+)?\]")
_DECIMAL = re.compile(r"decimal\d+\((\d+), (-?\d+)\)")
_LEAF = re.compile(r"(decimal\d+\(\d+, -?\d+\)|\w+(?:\[[^\]]*\])?)")
_NULL = re.compile(r"(?:^|<|: |, )null(?=$|[>,])")
_FIXED = re.compile(r"fixed_size_binary\[\d+\]")
_WIDER: Mapping[str, frozenset[str]] = {
    "int8": frozenset({"int16", "int32", "int64"}),
    "int16": frozenset({"int32", "int64"}),
    "int32": frozenset({"int64", "double"}),
    "float": frozenset({"double"}),
}


_PLAIN = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double", "string"}
    | {"binary", "date32[day]", INSTANT, WALL_CLOCK}
)
_PRECISION_MAX = 38


@dataclass(frozen=True, slots=True)
class Digits:
    """A decimal's precision and scale."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class ListOf:
    element: "Readable"


@dataclass(frozen=True, slots=True)
class MapOf:
    key: "Readable"
    value: "Readable"


@dataclass(frozen=True, slots=True)
class StructOf:
    fields: tuple[tuple[str, "Readable"], ...]


Readable = str | Digits | ListOf | MapOf | StructOf
"""A type that Spark reads; text is one of the plain ones."""


def canonical(kind: str) -> str:
    """One name for what Spark reads as one type."""
    kind = _DICTIONARY.sub(r"\1", kind).replace(" not null", "")
    if kind == INT96:
        return INSTANT
    if kind in NANOS.values():
        return kind
    if match := _TIMESTAMP.fullmatch(kind):
        return INSTANT if match[1] else WALL_CLOCK
    if match := _DECIMAL.fullmatch(kind):
        return f"decimal128({match[1]}, {match[2]})"
    if kind.startswith("duration["):
        return "int64"
    return "binary" if _FIXED.fullmatch(kind) else _SAME.get(kind, kind)


def decimal_digits(kind: str) -> Digits | None:
    match = _DECIMAL.fullmatch(kind)
    return Digits(int(match[1]), int(match[2])) if match else None


def fits(kind: str, *, found: str) -> bool:
    """Whether a column of a file can stand under a column of the table: of the same type, or one Spark widens."""
    wanted, has = canonical(kind), canonical(found)
    if wanted == has or wanted in _WIDER.get(has, ()):
        return True
    if found == INT96:
        return wanted == WALL_CLOCK
    if "<" in wanted:
        return readable(wanted) is not None and readable(wanted) == readable(has)
    one, other = decimal_digits(wanted), decimal_digits(has)
    if one is None or other is None:
        return False
    return one.scale >= other.scale and one.precision - one.scale >= other.precision - other.scale


def stored_as(kind: str, *, found: str) -> str:
    """The type of a table's column, as a file stores it: no type of SQL says whether its times are in nanoseconds."""
    in_micros = _IN_MICROS.get(kind, kind)
    if _IN_MICROS.get(found) == canonical(in_micros):
        return found
    return in_micros if fits(in_micros, found=found) else kind


def has_type(kind: str) -> bool:
    """Whether a type says what its values are. Writers give `null` to columns that have none, as pandas to all None."""
    return _NULL.search(kind) is None


def readable(kind: str) -> Readable | None:
    """What Spark reads a column as; None when it cannot."""
    kind = canonical(kind)
    if kind in NANOS.values():
        return kind
    try:
        found, rest = _parsed(kind)
    except ValueError:
        return None
    return None if rest else found


def _parsed(text: str) -> tuple[Readable, str]:
    """The type a text begins with, and what comes after it. ValueError when Spark has no such type."""
    name, opening, inside = text.partition("<")
    if opening and name in ("list", "large_list", "list_view", "large_list_view", "fixed_size_list"):
        element, rest = _parsed(re.sub(r"^\w+: ", "", inside))
        return ListOf(element), re.sub(r"^\[\d+\]", "", _after(rest, ">"))
    if opening and name == "map":
        key, rest = _parsed(inside)
        value, rest = _parsed(_after(rest, ", "))
        return MapOf(key, value), _after(re.sub(r"^ \('[^']*'\)", "", rest), ">")
    if opening and name == "struct":
        return _fields(inside)
    if match := _LEAF.match(text):
        return _leaf(match[1]), text[match.end() :]
    raise ValueError(text)


def _fields(text: str) -> tuple[Readable, str]:
    fields: list[tuple[str, Readable]] = []
    while True:
        name, text = _member(text)
        kind, text = _parsed(text)
        fields.append((name, kind))
        if not text.startswith(", "):
            break
        text = text[2:]
    if len({name.lower() for name, _ in fields}) < len(fields):
        raise ValueError("Spark does not tell fields apart by case")
    return StructOf(tuple(fields)), _after(text, ">")


def _member(text: str) -> tuple[str, str]:
    match = re.match(r"([^:<>,\[\]()]+): ", text)
    if match is None:
        raise ValueError(text)
    return match[1], text[match.end() :]


def _after(text: str, expected: str) -> str:
    if not text.startswith(expected):
        raise ValueError(text)
    return text[len(expected) :]


def _leaf(text: str) -> Readable:
    kind = canonical(text)
    digits = decimal_digits(kind)
    if digits is not None and 0 <= digits.scale <= digits.precision <= _PRECISION_MAX:
        return digits
    # Nanoseconds inside of another type would have to be taken out of it and put back.
    if kind not in _PLAIN or text.startswith("timestamp[ns"):
        raise ValueError(text)
    return kind


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """What a whole number in a time column counts."""

    name: str
    ns: int
    assumed: bool = False
    """Nobody declared it."""

    def floor_ms(self, value: int) -> int:
        return value * self.ns // 1_000_000


TIME_UNITS: Mapping[str, TimeUnit] = {
    name: TimeUnit(name, ns) for name, ns in (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
}
MILLISECONDS = TIME_UNITS["ms"]
UNDECLARED = TimeUnit("ms", 10**6, assumed=True)
"""Milliseconds, unless the numbers look otherwise."""
