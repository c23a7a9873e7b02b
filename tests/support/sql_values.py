"""Random expressions with the value that Spark gives them for each of a few rows, which are all about what looks equal.

    made = Values(random.Random(seed)).of(Kind.TEXT)
    made.text            CAST(array(fare) || reverse(fares) AS STRING)
    made.value(row)      "[-0.0, 0.0]"

Zeros have two signs, maps two orders, and times are text with a zone. `GROUP BY` makes one group of some of these. A
test holds the values against Spark itself.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from enum import Enum
from typing import Any

COLUMNS: Mapping[str, str] = {
    "t": "timestamp[us, tz=UTC]",
    "seen": "timestamp[us, tz=UTC]",
    "zone": "string",
    "code": "string",
    "n": "int64",
    "fare": "double",
    "fares": "list<item: double>",
    "price": "decimal128(12, 2)",
    "tags": "map<string, int64>",
}
Row = Mapping[str, Any]
ROWS: Sequence[Row] = [
    {"t": datetime(2024, 1, 1, tzinfo=UTC), "seen": datetime(2024, 1, 1, 23 * n // 2, 30, tzinfo=UTC), "zone": zone,
     "code": code, "n": n, "fare": fare, "fares": fares, "price": Decimal("1.50"), "tags": tags}
    for zone in ("2024-01-01 23:00:00-05:00", "2024-01-02 01:30:00+03:00", "2024-01-01 08:00:00+00:00",
                 "2024-02-01 00:30:00+02:00")
    for n, code, fare, fares, tags in (
        (0, "-0.0", -0.0, (0.0, -0.0), (("a", 1), ("b", 2))),
        (0, "0.0", 0.0, (0.0, 0.0), (("b", 2), ("a", 1))),
        (0, "0.0", -0.0, (-0.0, 0.5), (("a", 1), ("b", 2))),
        (1, "-0.0", 0.5, (0.0, 0.5), (("a", 2), ("b", 2))),
        (2, "1.5", -1.5, (0.5, -1.5), (("b", 2), ("a", 1))),
    )
]  # fmt: skip
"""None of them is NULL: what NULL does is another matter."""


class Kind(Enum):
    """What Spark has, and what stands for it here."""

    REAL = float
    ARRAY = tuple
    STRUCT = frozenset
    """A tuple too, of a double and a text."""
    MAP = dict
    """Pairs, in their order."""
    DECIMAL = Decimal
    WHOLE = int
    TEXT = str
    WHEN = "text that is a time with a zone"
    INSTANT = datetime
    DAY = date
    TRUTH = bool


@dataclass(frozen=True, slots=True)
class Made:
    text: str
    kind: Kind
    value: Callable[[Row], Any]


def grouped(made: Made, row: Row) -> Any:
    """What is the same for rows of one group. Python too takes zeros for one."""
    value = made.value(row)
    return frozenset(value) if made.kind is Kind.MAP else value


def exactly(made: Made, row: Row) -> str:
    """What is the same for rows of which nobody can tell one from the other."""
    return repr(made.value(row))


def spelled(value: Any) -> str:
    """As text, in Spark."""
    if isinstance(value, tuple):
        return f"[{', '.join(spelled(part) for part in value)}]"
    return repr(value) if isinstance(value, float) else str(value)


def _struct(value: Any) -> str:
    return f"{{{', '.join(spelled(part) for part in value)}}}"


def _map(value: Any) -> str:
    return f"{{{', '.join(f'{key} -> {number}' for key, number in value)}}}"


def _day(text: str) -> date:
    """A date is what stands there first, whatever zone comes after it."""
    return date.fromisoformat(text[:10])


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _cut(unit: str, instant: datetime) -> datetime:
    parts = {"HOUR": 4, "DAY": 3, "MONTH": 2, "YEAR": 1}[unit]
    return datetime(*(*instant.timetuple()[:parts], 1, 1)[: max(parts, 3)], tzinfo=UTC)


def _cents(real: float) -> Decimal:
    return Decimal(repr(real)).quantize(Decimal("0.01"), ROUND_HALF_UP) + 0  # no -0.00


_COLUMNS = {
    "fare": Kind.REAL, "fares": Kind.ARRAY, "tags": Kind.MAP, "price": Kind.DECIMAL, "n": Kind.WHOLE, "code": Kind.TEXT,
    "zone": Kind.WHEN, "seen": Kind.INSTANT,
}  # fmt: skip
_SOURCES = {
    Kind.STRUCT: "named_struct('x', fare, 'y', code)",
    Kind.DAY: "CAST(zone AS DATE)",
    Kind.TRUTH: "fare > 0",
}
_VALUES: Mapping[Kind, Callable[[Row], Any]] = {
    Kind.STRUCT: lambda row: (row["fare"], row["code"]),
    Kind.DAY: lambda row: _day(row["zone"]),
    Kind.TRUTH: lambda row: row["fare"] > 0,
}
_Form = tuple[str, tuple[Kind, ...], Callable[..., Any]]
R, A, P, M, C, N, S, W, T, D, B = Kind
FORMS: Mapping[Kind, Sequence[_Form]] = {
    R: (
        ("-{}", (R,), lambda x: -x),
        ("{} + 1", (R,), lambda x: x + 1),
        ("{} * 2", (R,), lambda x: x * 2),
        ("{} * 0", (R,), lambda x: x * 0.0),
        ("abs({})", (R,), abs),
        ("coalesce({}, 1)", (R,), lambda x: x),
        ("coalesce({}, {})", (S, C), lambda text, _: float(text)),
        ("CASE WHEN {} THEN {} ELSE {} END", (B, S, C), lambda so, text, number: float(text if so else number)),
        ("CASE WHEN {} THEN {} ELSE {} END", (B, R, R), lambda so, one, other: one if so else other),
        ("{}[0]", (A,), lambda values: values[0]),
        ("element_at({}, 1)", (A,), lambda values: values[0]),
        ("{}.x", (P,), lambda pair: pair[0]),
        ("CAST({} AS DOUBLE)", (S,), float),
    ),
    A: (
        ("array({})", (R,), lambda x: (x,)),
        ("array({}, {})", (R, R), lambda x, y: (x, y)),
        ("{} || {}", (A, A), lambda one, other: one + other),
        ("concat({}, {})", (A, A), lambda one, other: one + other),
        ("reverse({})", (A,), lambda values: values[::-1]),
        ("slice({}, 1, 1)", (A,), lambda values: values[:1]),
        ("coalesce({}, {})", (A, A), lambda one, _: one),
        ("IF({}, {}, {})", (B, A, A), lambda so, one, other: one if so else other),
        ("array({}, {})", (S, C), lambda text, number: (float(text), float(number))),
    ),
    P: (
        ("named_struct('x', {}, 'y', {})", (R, S), lambda x, y: (x, y)),
        ("coalesce({}, {})", (P, P), lambda one, _: one),
    ),
    M: (
        ("coalesce({}, {})", (M, M), lambda one, _: one),
        ("IF({}, {}, {})", (B, M, M), lambda so, one, other: one if so else other),
    ),
    C: (("CAST({} AS DECIMAL(5, 2))", (R,), _cents), ("coalesce({}, {})", (C, C), lambda one, _: one)),
    N: (
        ("CAST({} AS INT)", (R,), int),
        ("floor({})", (R,), math.floor),
        ("ceil({})", (R,), math.ceil),
        ("cardinality({})", (M,), len),
        ("size({})", (A,), len),
        ("size({})", (M,), len),
        ("length({})", (S,), len),
        ("year({})", (W,), lambda text: _day(text).year),
        ("month({})", (W,), lambda text: _day(text).month),
        ("day({})", (W,), lambda text: _day(text).day),
        ("hour({})", (W,), lambda text: _instant(text).hour),
        ("EXTRACT(DAY FROM {})", (W,), lambda text: _day(text).day),
        ("EXTRACT(HOUR FROM {})", (W,), lambda text: _instant(text).hour),
        ("date_part('HOUR', {})", (W,), lambda text: _instant(text).hour),
        ("day({})", (T,), lambda instant: instant.day),
        ("hour({})", (T,), lambda instant: instant.hour),
        ("month({})", (D,), lambda day: day.month),
        ("day({})", (D,), lambda day: day.day),
        ("coalesce({}, 1)", (N,), lambda number: number),
    ),
    S: (
        ("CAST({} AS STRING)", (R,), spelled),
        ("CAST({} AS STRING)", (A,), spelled),
        ("CAST({} AS STRING)", (P,), _struct),
        ("CAST({} AS STRING)", (M,), _map),
        ("CAST({} AS STRING)", (C,), spelled),
        ("CAST({} AS STRING)", (N,), spelled),
        ("CAST({} AS STRING)", (D,), spelled),
        ("{} || '!'", (R,), lambda x: f"{x!r}!"),
        ("{} || {}", (R, R), lambda x, y: f"{x!r}{y!r}"),
        ("{} || {}", (N, S), lambda x, y: f"{x}{y}"),
        ("concat({}, {})", (S, C), lambda x, y: f"{x}{y}"),
        ("reverse({})", (R,), lambda x: repr(x)[::-1]),
        ("reverse({})", (S,), lambda text: text[::-1]),
        ("upper({})", (S,), str.upper),
        ("coalesce({}, 'none')", (S,), lambda text: text),
        ("array_join({}, ' ')", (A,), lambda values: " ".join(map(repr, values))),
        ("array_join(map_keys({}), ' ')", (M,), lambda pairs: " ".join(key for key, _ in pairs)),
        ("{}.y", (P,), lambda pair: pair[1]),
        ("CASE WHEN {} THEN 'plus' ELSE 'minus' END", (B,), lambda so: "plus" if so else "minus"),
    ),
    W: (("coalesce({}, {})", (W, W), lambda one, _: one), ("concat({}, '')", (W,), lambda text: text)),
    T: (
        ("CAST({} AS TIMESTAMP)", (W,), _instant),
        ("CAST({} AS TIMESTAMP)", (D,), _midnight),
        *((f"date_trunc('{unit}', {{}})", (W,), lambda text, unit=unit: _cut(unit, _instant(text)))
          for unit in ("HOUR", "DAY", "MONTH")),
        *((f"date_trunc('{unit}', {{}})", (T,), lambda instant, unit=unit: _cut(unit, instant))
          for unit in ("HOUR", "DAY", "YEAR")),
        *((f"date_trunc('{unit}', {{}})", (D,), lambda day, unit=unit: _cut(unit, _midnight(day)))
          for unit in ("DAY", "MONTH")),
    ),
    D: (
        ("CAST({} AS DATE)", (W,), _day),
        ("to_date({})", (W,), _day),
        ("date({})", (W,), _day),
        ("trunc({}, 'MONTH')", (W,), lambda text: _day(text).replace(day=1)),
        ("CAST({} AS DATE)", (T,), lambda instant: instant.date()),
        ("to_date({})", (T,), lambda instant: instant.date()),
        ("trunc({}, 'MONTH')", (D,), lambda day: day.replace(day=1)),
    ),
    B: (
        ("{} > 0", (R,), lambda x: x > 0),
        ("{} = 0", (R,), lambda x: x == 0),
        ("{} IN (0, 1)", (R,), lambda x: x in (0, 1)),
        ("{} BETWEEN 0 AND 1", (R,), lambda x: 0 <= x <= 1),
        ("{} <=> {}", (R, R), lambda one, other: one == other),
        ("isnan({})", (R,), lambda _: False),
        ("{} = '0.0'", (S,), lambda text: text == "0.0"),
        ("{} LIKE '-%'", (S,), lambda text: text.startswith("-")),
        ("{} LIKE '%-0.0%'", (S,), lambda text: "-0.0" in text),
        ("{} = {}", (A, A), lambda one, other: one == other),
        ("{} IS NULL", (M,), lambda _: False),
        ("{} > 1", (N,), lambda x: x > 1),
        ("NOT {}", (B,), lambda so: not so),
    ),
}  # fmt: skip
_NUMERALS = ("code", "coalesce(code, '0.0')", "reverse(reverse(code))")
"""Text that is certain to be a number."""


class Values:
    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def any(self, depth: int = 2) -> Made:
        return self.of(self._dice.choice(list(Kind)), depth)

    def of_time(self) -> Made:
        """Of one text that is a time: it takes two of these that differ in little to see what differs."""
        kind = self._dice.choice((N, T, D))
        forms = [form for form in FORMS[kind] if form[1] in ((W,), (T,), (D,))]
        form, (of,), compute = self._dice.choice(forms)
        part = Made("zone", W, lambda row: row["zone"])
        if of is not W:
            through = "CAST(zone AS TIMESTAMP)" if of is T else "CAST(zone AS DATE)"
            part = Made(through, of, lambda row: (_instant if of is T else _day)(row["zone"]))
        return Made(form.format(part.text), kind, lambda row: compute(part.value(row)))

    def of(self, kind: Kind, depth: int = 2, kept: Made | None = None) -> Made:
        """`kept` stands in it wherever that is possible, as often as not."""
        dice = self._dice
        if kept is not None and kept.kind is kind and dice.random() < 0.7:
            return Made(f"({kept.text})", kind, kept.value)
        if depth <= 0:
            return self._leaf(kind)
        forms = FORMS[kind]
        if kept is not None and (of_kept := [form for form in forms if kept.kind in form[1]]):
            forms = of_kept
        form, kinds, compute = dice.choice(forms)
        is_number = kind in (R, A)  # then so is text
        parts = [self._numeral() if is_number and each is S else self.of(each, depth - 1, kept) for each in kinds]
        text = form.format(*(_operand(part.text) for part in parts))
        return Made(text, kind, lambda row: compute(*(part.value(row) for part in parts)))

    def _numeral(self) -> Made:
        return Made(self._dice.choice(_NUMERALS), S, lambda row: row["code"])

    def _leaf(self, kind: Kind) -> Made:
        name = next((name for name, of in _COLUMNS.items() if of is kind), None)
        if name is None:
            return Made(_SOURCES[kind], kind, _VALUES[kind])
        return Made(name, kind, lambda row: row[name])


def _operand(text: str) -> str:
    is_whole = text.replace("_", "").isalnum() or (text.startswith("(") and text.endswith(")") and text.count("(") == 1)
    return text if is_whole else f"({text})"
