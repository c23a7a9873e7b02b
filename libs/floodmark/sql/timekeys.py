"""Keys made of the time column. A key may not be coarser than a bucket, or it would stand in several of them."""

from sqlglot import exp

from floodmark.sql.parsing import render
from floodmark.sql.rules import Rule, refused, shown

_DAY_MS = 86_400_000
_UNITS_MS: dict[str, float] = {
    "MICROSECOND": 0.001, "MILLISECOND": 1, "SECOND": 1_000, "MINUTE": 60_000, "HOUR": 3_600_000,
    "DAY": _DAY_MS, "DD": _DAY_MS,
}  # fmt: skip
_UNEVEN = {
    "WEEK": "weeks begin on a Monday, buckets are counted from 1970-01-01, a Thursday",
    **dict.fromkeys(("MONTH", "MON", "MM"), "a bucket has a fixed width, months have not"),
    "QUARTER": "a bucket has a fixed width, quarters have not",
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "a bucket has a fixed width, years have not"),
}
_TO_DAYS = {"date", "to_date", "try_to_date", "date_add", "date_sub"}
_TO_MONTHS = {"last_day", "add_months", "trunc"}
_INSTANTS = {"timestamp", "to_timestamp", "timestamp_seconds", "timestamp_millis", "timestamp_micros"}
_WINDOWS = {"window", "session_window", "window_time", "time_bucket"}
_INSTEAD = "write date_trunc with a unit that divides the bucket, and truncate further what you read from the view"


def check_time_key(key: exp.Expr, *, time_column: str, bucket_ms: int) -> None:
    """Any scalar of the row can be a key; one that truncates time has to fit the buckets."""
    for node in key.find_all(exp.Cast, exp.Anonymous):
        if not any(column.name == time_column for column in node.find_all(exp.Column)):
            continue
        if isinstance(node, exp.Cast) and node.to.this is exp.DType.DATE:
            _check_unit(node, "DAY", node.this, time_column, bucket_ms)
        elif isinstance(node, exp.Anonymous):
            _check_call(node, time_column, bucket_ms)


def _check_call(call: exp.Anonymous, time_column: str, bucket_ms: int) -> None:
    name, arguments = call.name.lower(), call.expressions
    if name in _WINDOWS:
        raise refused(Rule.TIME_KEY, f"{shown(render(call))} makes windows of its own; {_INSTEAD}")
    if name in _TO_MONTHS:
        raise refused(Rule.TIME_KEY, f"{shown(render(call))} is coarser than a bucket of fixed width; {_INSTEAD}")
    if name in _TO_DAYS and len(arguments) < 3:
        _check_unit(call, "DAY", arguments[0], time_column, bucket_ms)
    elif name == "date_trunc" and len(arguments) == 2:
        unit = arguments[0]
        if not isinstance(unit, exp.Literal) or not unit.is_string:
            raise refused(
                Rule.TIME_KEY, f"{shown(render(call))} must have its unit as text; write date_trunc('HOUR', t)"
            )
        _check_unit(call, unit.name.upper(), arguments[1], time_column, bucket_ms)


def _check_unit(node: exp.Expr, unit: str, argument: exp.Expr, time_column: str, bucket_ms: int) -> None:
    text = shown(render(node))
    if reason := _UNEVEN.get(unit):
        raise refused(Rule.TIME_KEY, f"{text} does not fit buckets: {reason}; {_INSTEAD}")
    if unit not in _UNITS_MS:
        raise refused(Rule.TIME_KEY, f"{text} has no unit that Spark knows; there are {', '.join(_UNITS_MS)}")
    if bucket_ms % _UNITS_MS[unit] and unit not in ("MICROSECOND", "MILLISECOND"):
        raise refused(
            Rule.TIME_KEY,
            f"{text} is a {unit.lower()}, which does not divide the bucket of {bucket_ms} ms: "
            f"one key would stand in several buckets; {_INSTEAD}",
        )
    if not _is_instant(argument, time_column):
        raise refused(Rule.TIME_KEY, f"{text} truncates a time that was shifted; truncate {time_column} itself")


def _is_instant(node: exp.Expr, time_column: str) -> bool:
    """The time column itself, or that same instant as a timestamp."""
    node = node.unnest()
    if isinstance(node, exp.Cast):
        return node.to.is_type("timestamp", "timestamptz", "timestampltz", "timestampntz") and _is_instant(
            node.this, time_column
        )
    if isinstance(node, exp.Anonymous):
        only = node.expressions[0] if len(node.expressions) == 1 else None
        return node.name.lower() in _INSTANTS and only is not None and _is_instant(only, time_column)
    return isinstance(node, exp.Column) and node.name == time_column
