"""The moment that an expression without columns stands for, in UTC as the session is.

    TIMESTAMP '2024-01-01 12:00'        CAST('2024-02-01' AS DATE) - INTERVAL 1 MONTH        date_trunc('DAY', ...)

Only what is known to mean the same to Spark, which does the comparing; here it is decided what need not be read. Of
anything else nothing is known.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta

from sqlglot import exp

DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?(?:Z|\+00:00)?)?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,9}", re.ASCII)
_FIXED_US = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": 3_600_000_000,
    "DAY": DAY_US, "WEEK": 7 * DAY_US,
}  # fmt: skip
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
UNITS_US: Mapping[str, int] = {
    **_FIXED_US,
    **{unit: months * 31 * DAY_US for unit, months in _MONTHS.items()},
    "DD": DAY_US, "MON": 31 * DAY_US, "MM": 31 * DAY_US, "YYYY": 12 * 31 * DAY_US, "YY": 12 * 31 * DAY_US,
}  # fmt: skip
"""Of date_trunc, as if every month had 31 days: so no unit is longer than this, and one divides another exactly if a
time cut to the one tells it cut to the other."""
_FIRST_MONDAY_US = 4 * DAY_US
_TO_TIME = ("timestamp", "to_timestamp")
TO_DAY = ("date", "to_date")
_SHIFTS_BY_UNIT = ("dateadd", "date_add", "timestampadd")
_Shift = Callable[[int], int]


def moment_us(tree: exp.Expr) -> int | None:
    """In microseconds since 1970."""
    try:
        return _moment(tree)
    except (ValueError, OverflowError):  # there is no such day, or no such year
        return None


def midnight_us(tree: exp.Expr) -> int | None:
    found = moment_us(tree)
    return found if found is not None and found % DAY_US == 0 else None


def _moment(tree: exp.Expr) -> int | None:
    tree = tree.unnest()
    if isinstance(tree, exp.Literal):
        return _written(tree.name) if tree.is_string else None
    if isinstance(tree, exp.Cast):
        inner = _moment(tree.this)
        if _is_day(tree):
            return None if inner is None else _day(inner)
        return inner if tree.to.is_type("timestamp", "timestamptz", "timestampltz", "timestampntz") else None
    if isinstance(tree, exp.Anonymous):
        return _called(tree.name.lower(), tree.expressions)
    return _shifted(tree) if isinstance(tree, exp.Add | exp.Sub) else None


def _written(text: str) -> int | None:
    match = _TIME.fullmatch(text.strip(" \t\r\n"))
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction = match.groups(default="0")
    whole = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    since = whole - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + int(fraction.ljust(6, "0"))


def _called(name: str, arguments: list[exp.Expr]) -> int | None:
    if len(arguments) == 1 and name in _TO_TIME + TO_DAY:
        inner = _moment(arguments[0])
        return inner if inner is None or name in _TO_TIME else _day(inner)
    if len(arguments) == 2 and name == "date_trunc" and isinstance(arguments[0], exp.Literal):
        return _then(_moment(arguments[1]), _cut_to(arguments[0].name.upper()))
    if len(arguments) == 2 and name in ("date_add", "dateadd", "date_sub"):
        days = _whole(arguments[1])
        moment = _moment(arguments[0])
        if days is None or moment is None:
            return None
        return _day(moment) + (-days if name == "date_sub" else days) * DAY_US
    if len(arguments) == 3 and name in _SHIFTS_BY_UNIT and isinstance(arguments[0], exp.Var):
        count = _whole(arguments[1])
        return None if count is None else _then(_moment(arguments[2]), _later(arguments[0].name.upper(), count))
    return None


def _shifted(tree: exp.Add | exp.Sub) -> int | None:
    """A moment and an interval, or a day and a number of days."""
    left, right = tree.this.unnest(), tree.expression.unnest()
    if isinstance(tree, exp.Add) and isinstance(left, exp.Interval):
        left, right = right, left
    sign = -1 if isinstance(tree, exp.Sub) else 1
    if isinstance(left, exp.Literal):
        return None  # text may become something else here than a time
    moment, days = _moment(left), _whole(right)
    if days is not None:
        return moment + sign * days * DAY_US if moment is not None and _is_day(left) else None
    spans = [_of_interval(part) for part in _intervals(right)]
    months, length_us = (sum(span[n] for span in spans if span is not None) for n in range(2))
    if moment is None or None in spans or (months and length_us):
        return None
    return _months_later(moment, sign * months) + sign * length_us


def _intervals(tree: exp.Expr) -> list[exp.Expr]:
    """INTERVAL 1 DAY 2 HOURS is a sum of two."""
    tree = tree.unnest()
    return [*_intervals(tree.this), *_intervals(tree.expression)] if isinstance(tree, exp.Add) else [tree]


def _of_interval(tree: exp.Expr) -> tuple[int, int] | None:
    """Months and microseconds: how long a month is depends on where it begins."""
    if (
        not isinstance(tree, exp.Interval)
        or not isinstance(tree.this, exp.Literal)
        or not isinstance(tree.unit, exp.Var)
    ):
        return None
    unit, text = tree.unit.name.upper().removesuffix("S"), tree.this.name
    if _WHOLE.fullmatch(text) is None or unit not in _FIXED_US.keys() | _MONTHS.keys():
        return None
    count = int(text)
    return count * _MONTHS.get(unit, 0), count * _FIXED_US.get(unit, 0)


def _then(moment: int | None, shift: _Shift | None) -> int | None:
    return None if moment is None or shift is None else shift(moment)


def _later(unit: str, count: int) -> _Shift | None:
    if (length := _FIXED_US.get(unit)) is not None:
        return lambda moment: moment + count * length
    if (months := _MONTHS.get(unit)) is not None:
        return lambda moment: _months_later(moment, count * months)
    return None


def _months_later(moment: int, months: int) -> int:
    """The same day of another month, or its last day if it has no such day."""
    day = _date(moment)
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    made = date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))
    return _midnight(made) + moment % DAY_US


def _cut_to(unit: str) -> _Shift | None:
    if unit == "WEEK":
        return lambda moment: (moment - _FIRST_MONDAY_US) // (7 * DAY_US) * 7 * DAY_US + _FIRST_MONDAY_US
    if (length := _FIXED_US.get(unit)) is not None:
        return lambda moment: moment // length * length
    if (months := _MONTHS.get(unit)) is not None:
        return lambda moment: _midnight(_first_of(_date(moment), months))
    return None


def _first_of(day: date, months: int) -> date:
    return day.replace(month=(day.month - 1) // months * months + 1, day=1)


def _whole(tree: exp.Expr) -> int | None:
    tree = tree.unnest()
    if isinstance(tree, exp.Neg):
        value = _whole(tree.this)
        return None if value is None else -value
    is_whole = isinstance(tree, exp.Literal) and not tree.is_string and _WHOLE.fullmatch(tree.name)
    return int(tree.name) if is_whole else None


def _is_day(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Cast) and tree.to.this is exp.DType.DATE


def _day(moment: int) -> int:
    return moment // DAY_US * DAY_US


def _date(moment: int) -> date:
    return _EPOCH + timedelta(days=moment // DAY_US)


def _midnight(day: date) -> int:
    return (day - _EPOCH).days * DAY_US
