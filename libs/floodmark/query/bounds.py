"""What a condition says about time: where rows can satisfy it, and where all rows do.

    t >= '12:00:00.0005'    rows from 12:00:00.000 on may satisfy it, and those from 12:00:00.001 on do

Times are compared by Spark in microseconds and buckets lie on milliseconds, so the two differ at the edges. The outer
bounds say what need not be read; the inner ones which buckets may be taken from a view as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from floodmark.core.bounds import TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.column_types import MILLISECONDS, TimeUnit
from floodmark.core.intervals import Interval
from floodmark.query.moments import DAY_US, TO_DAY, UNITS_US, midnight_us, moment_us
from floodmark.sql.parsing import render

_NS_PER_US, _NS_PER_MS = 1_000, 1_000_000
EVER = Interval(TIME_MIN_MS, TIME_MAX_MS)
_TURNED = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE, exp.EQ: exp.EQ}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of rows, by their time in whole milliseconds. A range that is empty is None."""

    outer: Interval | None = EVER
    inner: Interval | None = EVER

    def and_(self, other: "Bounds") -> "Bounds":
        return Bounds(_both(self.outer, other.outer), _both(self.inner, other.inner))


def _both(one: Interval | None, other: Interval | None) -> Interval | None:
    if one is None or other is None:
        return None
    return _interval(max(one.start_ms, other.start_ms), min(one.end_ms, other.end_ms))


def _interval(start_ms: int, end_ms: int) -> Interval | None:
    start_ms, end_ms = max(start_ms, TIME_MIN_MS), min(end_ms, TIME_MAX_MS)
    return Interval(start_ms, end_ms) if start_ms < end_ms else None


@dataclass(frozen=True, slots=True)
class TimeColumn:
    name: str
    kind: str
    """Its Arrow type; empty when it is not known."""
    unit: TimeUnit = MILLISECONDS
    """What it counts when it is a whole number."""

    def bounds(self, condition: exp.Expr) -> Bounds | None:
        """Of a condition that compares the column itself with fixed times, and nothing else."""
        condition = condition.unnest()
        if isinstance(condition, exp.Not) and isinstance(condition.this.unnest(), exp.Is):
            test = condition.this.unnest()
            return Bounds() if self._is_column(test.this) and isinstance(test.expression, exp.Null) else None
        return _each(condition, self._is_column, self._value_ns, self._compared)

    def outer(self, condition: exp.Expr) -> Interval | None:
        """Where rows can satisfy a condition on the column cut to a unit. EVER when nothing is known."""
        for unit_us, cut in self._cuts(condition):
            text = render(cut)

            def is_cut(tree: exp.Expr, text: str = text) -> bool:
                return render(tree.unnest()) == text

            def compared(op: type[exp.Expr], value_us: int, unit_us: int = unit_us) -> Bounds:
                return _bounds(op, value_us * _NS_PER_US, step_ns=_NS_PER_US, reach_ns=unit_us * _NS_PER_US)

            # Text compared with a date is cut to a day first, a timestamp is not: only what both agree on is used.
            value = moment_us if isinstance(cut, exp.Anonymous) and cut.name.lower() == "date_trunc" else midnight_us
            found = _each(condition.unnest(), is_cut, value, compared)
            if found is not None:
                return found.outer
        return EVER

    def _cuts(self, condition: exp.Expr) -> list[tuple[int, exp.Expr]]:
        found: list[tuple[int, exp.Expr]] = []
        for node in condition.find_all(exp.Anonymous, exp.Cast):
            if isinstance(node, exp.Cast):
                if node.to.this is exp.DType.DATE and self._is_column(node.this):
                    found.append((DAY_US, node))
            elif node.name.lower() in TO_DAY and len(node.expressions) == 1 and self._is_column(node.expressions[0]):
                found.append((DAY_US, node))
            elif node.name.lower() == "date_trunc" and len(node.expressions) == 2:
                unit, argument = node.expressions
                length_us = UNITS_US.get(unit.name.upper()) if isinstance(unit, exp.Literal) else None
                if length_us is not None and self._is_column(argument):
                    found.append((length_us, node))
        return found

    def _is_column(self, tree: exp.Expr) -> bool:
        tree = tree.unnest()
        return isinstance(tree, exp.Column) and tree.name == self.name

    def _compared(self, op: type[exp.Expr], value_ns: int) -> Bounds:
        is_day, is_whole = self.kind.startswith("date"), self.kind == "int64"
        step_ns = DAY_US * _NS_PER_US if is_day else self.unit.ns if is_whole else _NS_PER_US
        return _bounds(op, value_ns, step_ns=step_ns, reach_ns=0)

    def _value_ns(self, tree: exp.Expr) -> int | None:
        if self.kind == "int64":
            count = _whole(tree)
            return None if count is None else count * self.unit.ns
        read = moment_us if self.kind.startswith("timestamp") else midnight_us
        time_us = read(tree) if self.kind.startswith(("timestamp", "date")) else None
        return None if time_us is None else time_us * _NS_PER_US


def _each(
    condition: exp.Expr,
    is_time: Callable[[exp.Expr], bool],
    value_of: Callable[[exp.Expr], int | None],
    compared: Callable[[type[exp.Expr], int], Bounds],
) -> Bounds | None:
    """Take a comparison apart, whichever side the time is on."""
    if isinstance(condition, exp.Between):
        low, high = value_of(condition.args["low"]), value_of(condition.args["high"])
        if not is_time(condition.this) or low is None or high is None or condition.args.get("symmetric"):
            return None
        return compared(exp.GTE, low).and_(compared(exp.LTE, high))
    op = type(condition)
    if op not in _TURNED:
        return None
    left, right = condition.this, condition.expression
    if not is_time(left):
        left, right, op = right, left, _TURNED[op]
    value = value_of(right) if is_time(left) else None
    return None if value is None else compared(op, value)


def _bounds(op: type[exp.Expr], value_ns: int, *, step_ns: int, reach_ns: int) -> Bounds:
    """Times are multiples of a step; one cut to a unit stands for times up to a reach after it."""
    if op is exp.EQ:
        low = _bounds(exp.GTE, value_ns, step_ns=step_ns, reach_ns=reach_ns)
        return low.and_(_bounds(exp.LTE, value_ns, step_ns=step_ns, reach_ns=reach_ns))
    if op in (exp.GT, exp.LTE):
        value_ns += step_ns  # later than a time is from the next one on
    if op in (exp.GT, exp.GTE):
        return Bounds(_interval(_ms_before(value_ns), TIME_MAX_MS), _interval(_ms_after(value_ns), TIME_MAX_MS))
    end_ns = value_ns + reach_ns
    return Bounds(_interval(TIME_MIN_MS, _ms_after(end_ns)), _interval(TIME_MIN_MS, _ms_before(value_ns)))


def _ms_before(value_ns: int) -> int:
    return value_ns // _NS_PER_MS


def _ms_after(value_ns: int) -> int:
    return -(-value_ns // _NS_PER_MS)


def _whole(tree: exp.Expr) -> int | None:
    tree = tree.unnest()
    if isinstance(tree, exp.Neg):
        value = _whole(tree.this)
        return None if value is None else -value
    if isinstance(tree, exp.Cast) and tree.to.this is exp.DType.BIGINT:
        return _whole(tree.this)
    if not isinstance(tree, exp.Literal) or tree.is_string:
        return None
    digits = tree.name.removesuffix("L").removesuffix("l")
    return int(digits) if digits.isdecimal() else None
