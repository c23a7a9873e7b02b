"""The kind of number an expression is, as far as that can be told for certain: sums are merged in the same type.

Spark adds up a decimal(p, s) into a decimal(p + 10, s), and sums of sums would be wider still. So that an answer has
the same columns whether or not a view was used, what a sum adds up has to be known. None: it is not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

PRECISION_MAX = 38
_SCALE_KEPT = 6
_DECIMAL = re.compile(r"decimal\d+\((\d+), (-?\d+)\)")
_DICTIONARY = re.compile(r"dictionary<values=([^,]+), .*>")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of up to so many digits."""

    digits: int


@dataclass(frozen=True, slots=True)
class Real:
    """A float or a double."""


@dataclass(frozen=True, slots=True)
class Decimal:
    precision: int
    scale: int


Kind = Whole | Real | Decimal

_ARROW: Mapping[str, Kind] = {
    "int8": Whole(3), "int16": Whole(5), "int32": Whole(10), "int64": Whole(20),
    "uint8": Whole(5), "uint16": Whole(10), "uint32": Whole(20), "uint64": Decimal(20, 0),
    "float": Real(), "double": Real(),
}  # fmt: skip
_CAST: Mapping[exp.DType, Kind] = {
    exp.DType.TINYINT: Whole(3),
    exp.DType.SMALLINT: Whole(5),
    exp.DType.INT: Whole(10),
    exp.DType.BIGINT: Whole(20),
    exp.DType.FLOAT: Real(),
    exp.DType.DOUBLE: Real(),
}
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)


def kind_of(tree: exp.Expr, columns: Mapping[str, str]) -> Kind | None:
    """`columns` are the table's: name and Arrow type."""
    tree = tree.unnest()
    if isinstance(tree, exp.Column):
        return _of_arrow(columns.get(tree.name, ""))
    if isinstance(tree, exp.Literal):
        return None if tree.is_string else _of_literal(tree.name)
    if isinstance(tree, exp.Cast):
        return _of_cast(tree)
    if isinstance(tree, _ARITHMETIC):
        left, right = kind_of(tree.this, columns), kind_of(tree.expression, columns)
        return None if left is None or right is None else _combined(tree, left, right)
    return _common([_branch_kind(branch, columns) for branch in _branches(tree)])


def _of_arrow(name: str) -> Kind | None:
    if match := _DICTIONARY.fullmatch(name):
        name = match[1]
    if match := _DECIMAL.fullmatch(name):
        return Decimal(int(match[1]), int(match[2]))
    return _ARROW.get(name)


def _of_literal(text: str) -> Kind | None:
    """A whole number in decimal arithmetic is as long as it is written."""
    if text.isdecimal():
        return Whole(len(text.lstrip("0") or "0")) if int(text) < 2**63 else None
    whole, point, fraction = text.partition(".")
    if not point or not (whole + fraction).isdecimal():
        return None
    digits = len((whole + fraction).lstrip("0") or "0")
    return Decimal(max(digits, len(fraction)), len(fraction))


def _of_cast(cast: exp.Cast) -> Kind | None:
    kind = cast.to.this
    if kind is exp.DType.DECIMAL:
        sizes = [int(size.name) for size in cast.to.expressions]
        return Decimal(*(sizes or [10]), *([0] if len(sizes) < 2 else []))
    return _CAST.get(kind) if isinstance(kind, exp.DType) else None


def _branches(tree: exp.Expr) -> list[exp.Expr]:
    """What an expression is one of."""
    if isinstance(tree, exp.Neg):
        return [tree.this]
    if not isinstance(tree, exp.Case | exp.If):
        return []
    whens = tree.args.get("ifs") or [tree]
    other = tree.args.get("default") or tree.args.get("false")
    values = [when.args["true"] for when in whens] + ([other] if other is not None else [])
    return [value for value in values if not isinstance(value.unnest(), exp.Null)]


def _branch_kind(branch: exp.Expr, columns: Mapping[str, str]) -> Kind | None:
    """A whole number that is one of several values has the size of its type, however short it is written."""
    kind = kind_of(branch, columns)
    is_written = isinstance(branch.unnest(), exp.Literal)
    return Whole(10 if kind.digits < 10 else 20) if is_written and isinstance(kind, Whole) else kind


def _common(kinds: list[Kind | None]) -> Kind | None:
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds):
        return None
    if any(isinstance(kind, Real) for kind in known):
        return Real()
    if all(isinstance(kind, Whole) for kind in known):
        return Whole(max(kind.digits for kind in known if isinstance(kind, Whole)))
    decimals = [_as_decimal(kind) for kind in known]
    scale = max(kind.scale for kind in decimals)
    precision = max(kind.precision - kind.scale for kind in decimals) + scale
    return Decimal(precision, scale) if precision <= PRECISION_MAX else None


def _combined(tree: exp.Expr, left: Kind, right: Kind) -> Kind | None:
    if isinstance(left, Real) or isinstance(right, Real):
        return Real()
    if isinstance(left, Whole) and isinstance(right, Whole):
        return Real() if isinstance(tree, exp.Div) else Whole(max(left.digits, right.digits))
    one, other = _as_decimal(left), _as_decimal(right)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    scale = max(one.scale, other.scale)
    if isinstance(tree, exp.Add | exp.Sub):
        return _bounded(whole + scale + 1, scale)
    if isinstance(tree, exp.Mul):
        return _bounded(one.precision + other.precision + 1, one.scale + other.scale)
    if isinstance(tree, exp.Div):
        return quotient(one, other)
    return None


def quotient(one: Decimal, other: Decimal) -> Decimal:
    scale = max(_SCALE_KEPT, one.scale + other.precision + 1)
    return _bounded(one.precision - one.scale + other.scale + scale, scale)


def _as_decimal(kind: Whole | Decimal | Real) -> Decimal:
    assert not isinstance(kind, Real), "a real number is none"
    return kind if isinstance(kind, Decimal) else Decimal(kind.digits, 0)


def _bounded(precision: int, scale: int) -> Decimal:
    """What does not fit loses digits behind the point first, as Spark does it."""
    if precision <= PRECISION_MAX:
        return Decimal(precision, scale)
    whole = precision - scale
    return Decimal(PRECISION_MAX, max(PRECISION_MAX - whole, min(scale, _SCALE_KEPT)))
