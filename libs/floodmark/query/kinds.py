"""The type that Spark gives a number, to the letter, or None: sums are merged in the same type as they were made.

Spark adds up a decimal(p, s) into a decimal(p + 10, s), and sums of sums would be wider still. So that an answer has
the same columns whether or not a view was used, what a sum adds up has to be known. These are the rules of Spark's
`AnsiTypeCoercion` and `DecimalPrecision`, with `allowPrecisionLoss`; a test holds them against Spark's analyzer. Of
what is not listed here nothing is known, and the query goes to the base table.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from sqlglot import exp

PRECISION_MAX = 38
_SCALE_KEPT = 6
_DECIMAL = re.compile(r"decimal\d+\((\d+), (-?\d+)\)")
_DICTIONARY = re.compile(r"dictionary<values=([^,]+), .*>")
_NUMBER = re.compile(r"(\d*)(?:(\.)(\d*))?(E[+-]?\d+)?(L|S|Y|BD|D|F)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of up to so many digits, as Spark counts them where it meets a decimal."""

    digits: int

    def __str__(self) -> str:
        return {3: "tinyint", 5: "smallint", 10: "int", 20: "bigint"}[self.digits]


@dataclass(frozen=True, slots=True)
class Real:
    """A float or a double."""

    is_double: bool = True

    def __str__(self) -> str:
        return "double" if self.is_double else "float"


@dataclass(frozen=True, slots=True)
class Decimal:
    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


Kind = Whole | Real | Decimal
BYTE, SHORT, INT, LONG = Whole(3), Whole(5), Whole(10), Whole(20)
FLOAT, DOUBLE = Real(is_double=False), Real()

_ARROW: Mapping[str, Kind] = {
    "int8": BYTE, "int16": SHORT, "int32": INT, "int64": LONG,
    "uint8": SHORT, "uint16": INT, "uint32": LONG, "uint64": Decimal(20, 0),
    "float": FLOAT, "double": DOUBLE,
}  # fmt: skip
_CAST: Mapping[exp.DType, Kind] = {
    exp.DType.TINYINT: BYTE,
    exp.DType.SMALLINT: SHORT,
    exp.DType.INT: INT,
    exp.DType.BIGINT: LONG,
    exp.DType.FLOAT: FLOAT,
    exp.DType.DOUBLE: DOUBLE,
}
_SUFFIXES: Mapping[str, Kind] = {"L": LONG, "S": SHORT, "Y": BYTE, "F": FLOAT, "D": DOUBLE}
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv)
_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
_SHIFTS = (exp.BitwiseLeftShift, exp.BitwiseRightShift)
_OF_ANY: Mapping[str, Kind] = {
    **dict.fromkeys((
        "year", "quarter", "month", "day", "dayofmonth", "dayofweek", "dayofyear", "weekday", "weekofyear", "hour",
        "minute", "second", "length", "char_length", "character_length",
    ), INT),
    **dict.fromkeys(("unix_seconds", "unix_millis", "unix_micros"), LONG),
}  # fmt: skip
"""Functions that are of one type, whatever they are given."""


def kind_of(tree: exp.Expr, columns: Mapping[str, str]) -> Kind | None:
    """`columns` are the table's: name and Arrow type."""
    tree = tree.unnest()
    if (written := _written(tree)) is not None:
        return _of_literal(*written)
    return next((read(tree, columns) for forms, read in _FORMS if isinstance(tree, forms)), None)


# -- what is written, and what is kept ---------------------------------------------------------------------------------


def _of_column(tree: exp.Expr, columns: Mapping[str, str]) -> Kind | None:
    assert isinstance(tree, exp.Column), f"{tree} is no column"
    return _of_arrow(columns.get(tree.name, "")) if len(tree.parts) == 1 else None


def _of_arrow(name: str) -> Kind | None:
    if match := _DICTIONARY.fullmatch(name):
        name = match[1]
    if match := _DECIMAL.fullmatch(name):
        return _sized(int(match[1]), int(match[2]))
    return _ARROW.get(name)


def _sized(precision: int, scale: int) -> Decimal | None:
    return Decimal(precision, scale) if 0 <= scale <= precision <= PRECISION_MAX else None


def _written(tree: exp.Expr) -> tuple[str, int] | None:
    """A number as it stands there, and its sign: to Spark, -1 is one literal and -(1) is not."""
    sign, number = (-1, tree.this) if isinstance(tree, exp.Neg) else (1, tree)
    return (number.name, sign) if isinstance(number, exp.Literal) and not number.is_string else None


def _of_literal(text: str, sign: int) -> Kind | None:
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[1] or match[3]):
        return None
    whole, point, fraction, exponent, suffix = match.groups(default="")
    if suffix.upper() in _SUFFIXES:
        return _SUFFIXES[suffix.upper()]
    if exponent:
        return None if suffix else DOUBLE
    digits = len((whole + fraction).lstrip("0") or "0")
    if not point and not suffix:
        value = sign * int(whole)
        if -(2**31) <= value < 2**31:
            return INT
        return LONG if -(2**63) <= value < 2**63 else _sized(digits, 0)
    return _sized(max(digits, len(fraction)), len(fraction))


def _of_cast(cast: exp.Expr, _: Mapping[str, str]) -> Kind | None:
    assert isinstance(cast, exp.Cast), f"{cast} is no cast"
    kind = cast.to.this
    if kind is exp.DType.DECIMAL:
        sizes = [int(size.name) for size in cast.to.expressions]
        return _sized(*(sizes or [10]), *([0] if len(sizes) < 2 else []))
    return _CAST.get(kind) if isinstance(kind, exp.DType) else None


# -- calls -------------------------------------------------------------------------------------------------------------


def _of_call(tree: exp.Expr, columns: Mapping[str, str]) -> Kind | None:
    name, arguments = tree.name.lower(), tree.expressions
    if name in _OF_ANY:
        return _OF_ANY[name] if len(arguments) == 1 else None
    made = _CALLS.get(name)
    return None if made is None else made(arguments, columns)


def _same(arguments: Sequence[exp.Expr], columns: Mapping[str, str]) -> Kind | None:
    return kind_of(arguments[0], columns) if len(arguments) == 1 else None


def _rounded(arguments: Sequence[exp.Expr], columns: Mapping[str, str]) -> Kind | None:
    if len(arguments) not in (1, 2):
        return None
    kind = kind_of(arguments[0], columns)
    if not isinstance(kind, Decimal):
        return kind
    wanted = _places(arguments[1]) if len(arguments) == 2 else 0
    if wanted is None:
        return None
    before = kind.precision - kind.scale + 1  # 9.9 becomes 10
    if wanted < 0:
        return Decimal(min(max(before, 1 - wanted), PRECISION_MAX), 0)
    scale = min(kind.scale, wanted)
    return Decimal(min(before + scale, PRECISION_MAX), scale)


def _places(tree: exp.Expr) -> int | None:
    written = _written(tree.unnest())
    return None if written is None or not written[0].isdecimal() else int(written[0]) * written[1]


def _whole_part(arguments: Sequence[exp.Expr], columns: Mapping[str, str]) -> Kind | None:
    """Of ceil and floor."""
    kind = _same(arguments, columns)
    if not isinstance(kind, Decimal):
        return None if kind is None else LONG
    return kind if kind.scale == 0 else _bounded(kind.precision - kind.scale + 1, 0)


def _between(kind: type[exp.Expr]) -> "Callable[[Sequence[exp.Expr], Mapping[str, str]], Kind | None]":
    def made(arguments: Sequence[exp.Expr], columns: Mapping[str, str]) -> Kind | None:
        return _computed(kind, arguments[0], arguments[1], columns) if len(arguments) == 2 else None

    return made


def _common(arguments: Sequence[exp.Expr], columns: Mapping[str, str]) -> Kind | None:
    """Of values of which one is taken."""
    given = [argument for argument in arguments if not isinstance(argument.unnest(), exp.Null)]
    kinds = [kind_of(argument, columns) for argument in given]
    known = [kind for kind in kinds if kind is not None]
    return reduce(_wider, known) if known and len(known) == len(kinds) else None


_CALLS: Mapping[str, Callable[[Sequence[exp.Expr], Mapping[str, str]], Kind | None]] = {
    **dict.fromkeys(("abs", "negative", "positive"), _same),
    **dict.fromkeys(("round", "bround"), _rounded),
    **dict.fromkeys(("ceil", "ceiling", "floor"), _whole_part),
    **dict.fromkeys(("coalesce", "ifnull", "nvl", "greatest", "least"), _common),
    "nvl2": lambda arguments, columns: _common(arguments[1:], columns) if len(arguments) == 3 else None,
    "nullif": lambda arguments, columns: kind_of(arguments[0], columns) if len(arguments) == 2 else None,
    "mod": _between(exp.Mod),
    "div": _between(exp.IntDiv),
}


def branches(tree: exp.Expr) -> list[exp.Expr]:
    """What an expression is one of."""
    whens = tree.args.get("ifs") or [tree]
    other = tree.args.get("default") or tree.args.get("false")
    return [when.args["true"] for when in whens] + ([other] if other is not None else [])


# -- rules of two ------------------------------------------------------------------------------------------------------


def _wider(one: Kind, other: Kind) -> Kind:
    if one == other:
        return one
    if isinstance(one, Real) or isinstance(other, Real):
        return DOUBLE  # a float beside anything else would lose digits
    if isinstance(one, Whole) and isinstance(other, Whole):
        return max(one, other, key=lambda kind: kind.digits)
    left, right = _plain_decimal(one), _plain_decimal(other)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    scale = max(left.scale, right.scale)
    return Decimal(min(whole + scale, PRECISION_MAX), max(0, min(scale, PRECISION_MAX - whole)))


def _of_bits(tree: exp.Expr, columns: Mapping[str, str]) -> Kind | None:
    left, right = kind_of(tree.this, columns), kind_of(tree.expression, columns)
    if not isinstance(left, Whole) or not isinstance(right, Whole):
        return None
    return _wider(left, right) if isinstance(tree, _BITS) else _wider(left, INT)


def _of_inverse(tree: exp.Expr, columns: Mapping[str, str]) -> Kind | None:
    kind = kind_of(tree.this, columns)
    return kind if isinstance(kind, Whole) else None


def _computed(kind: type[exp.Expr], one: exp.Expr, other: exp.Expr, columns: Mapping[str, str]) -> Kind | None:
    left, right = kind_of(one, columns), kind_of(other, columns)
    if left is None or right is None:
        return None
    if isinstance(left, Real) or isinstance(right, Real):
        if issubclass(kind, exp.IntDiv):
            return None
        return DOUBLE if issubclass(kind, exp.Div) else _wider(left, right)
    if issubclass(kind, exp.IntDiv):
        return LONG
    if isinstance(left, Whole) and isinstance(right, Whole):
        return DOUBLE if issubclass(kind, exp.Div) else _wider(left, right)
    return _of_decimals(kind, _as_decimal(one, left), _as_decimal(other, right))


def _of_decimals(kind: type[exp.Expr], one: Decimal, other: Decimal) -> Decimal | None:
    scale = max(one.scale, other.scale)
    if issubclass(kind, exp.Add | exp.Sub):
        return _bounded(max(one.precision - one.scale, other.precision - other.scale) + scale + 1, scale)
    if issubclass(kind, exp.Mul):
        return _bounded(one.precision + other.precision + 1, one.scale + other.scale)
    if issubclass(kind, exp.Mod):
        return _bounded(min(one.precision - one.scale, other.precision - other.scale) + scale, scale)
    return quotient(one, other)


def quotient(one: Decimal, other: Decimal) -> Decimal:
    scale = max(_SCALE_KEPT, one.scale + other.precision + 1)
    return _bounded(one.precision - one.scale + other.scale + scale, scale)


def _as_decimal(tree: exp.Expr, kind: Whole | Decimal) -> Decimal:
    """A whole number that is written beside a decimal has as many digits as it is long; a byte has three."""
    written = _written(tree.unnest())
    if isinstance(kind, Whole) and kind != BYTE and written is not None:
        return Decimal(len(written[0].rstrip("LlSs").lstrip("0") or "0"), 0)
    return _plain_decimal(kind)


def _plain_decimal(kind: Kind) -> Decimal:
    assert not isinstance(kind, Real), "a real number is none"
    return kind if isinstance(kind, Decimal) else Decimal(kind.digits, 0)


def _bounded(precision: int, scale: int) -> Decimal:
    """What does not fit loses digits behind the point first, as Spark does it."""
    if precision <= PRECISION_MAX:
        return Decimal(precision, scale)
    whole = precision - scale
    return Decimal(PRECISION_MAX, max(PRECISION_MAX - whole, min(scale, _SCALE_KEPT)))


_FORMS: tuple[tuple[tuple[type[exp.Expr], ...], Callable[[exp.Expr, Mapping[str, str]], Kind | None]], ...] = (
    ((exp.Column,), _of_column),
    ((exp.Cast,), _of_cast),
    ((exp.Neg,), lambda tree, columns: kind_of(tree.this, columns)),
    ((exp.BitwiseNot,), _of_inverse),
    (_ARITHMETIC, lambda tree, columns: _computed(type(tree), tree.this, tree.expression, columns)),
    (_BITS + _SHIFTS, _of_bits),
    ((exp.Case, exp.If), lambda tree, columns: _common(branches(tree), columns)),
    ((exp.Anonymous,), _of_call),
)
