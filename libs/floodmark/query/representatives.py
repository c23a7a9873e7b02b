"""Keys of which one group has several values: GROUP BY makes 0.0 of -0.0, and sorts the entries of a map.

A view that keeps groups by a float, a double or a map has one value for rows of several. Whoever compares it sees
nothing of that; the text and the sign of a zero, its largest value, the first entry of a map and its text would be
others than those of the table's rows.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from sqlglot import exp

from floodmark.query.kinds import Real, branches, kind_of
from floodmark.sql.functions import OF_TIMES


class _Family(Enum):
    """What a value is for certain. Of these, GROUP BY makes nothing else, and Spark no float if it mixes equal ones."""

    NUMBER = "a whole number or a decimal"
    TEXT = "text, or bytes"
    TRUTH = "true or false"
    TIME = "a date or a timestamp"
    NOTHING = "NULL"
    PART = "a part of something that has neither floats nor maps"


_Known = _Family | str
"""A family, or the Arrow type of a list or a struct."""
_EXACT = {
    exp.DType.BOOLEAN, exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.DECIMAL,
}  # fmt: skip
_REAL = {exp.DType.FLOAT, exp.DType.DOUBLE}
_CAST: Mapping[exp.DType, _Family] = {
    **dict.fromkeys(_EXACT - {exp.DType.BOOLEAN}, _Family.NUMBER),
    **dict.fromkeys((exp.DType.TEXT, exp.DType.BINARY), _Family.TEXT),
    **dict.fromkeys((
        exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ,
    ), _Family.TIME),
    exp.DType.BOOLEAN: _Family.TRUTH,
}  # fmt: skip
_TEXT_FUNCTIONS = frozenset({
    "upper", "lower", "ucase", "lcase", "initcap", "trim", "ltrim", "rtrim", "btrim", "substr", "substring", "left",
    "right", "replace", "translate", "regexp_replace", "regexp_extract", "split_part", "md5", "sha1", "sha2",
    "concat_ws", "string", "date_format", "dayname", "monthname",
})  # fmt: skip
_NUMBER_FUNCTIONS = frozenset({
    "date_diff", "date_part", "datediff", "datepart", "day", "dayofmonth", "dayofweek", "dayofyear", "hour", "minute",
    "month", "quarter", "second", "timediff", "timestampdiff", "to_unix_timestamp", "unix_date", "unix_micros",
    "unix_millis", "unix_seconds", "unix_timestamp", "weekday", "weekofyear", "year",
})  # fmt: skip
_TIME_FUNCTIONS = OF_TIMES - _TEXT_FUNCTIONS - _NUMBER_FUNCTIONS - {"months_between"}
_FUNCTIONS: Mapping[str, _Family] = {
    **dict.fromkeys(_TEXT_FUNCTIONS, _Family.TEXT),
    **dict.fromkeys(_NUMBER_FUNCTIONS, _Family.NUMBER),
    **dict.fromkeys(_TIME_FUNCTIONS, _Family.TIME),
}
"""What these are of does not depend on what they are given. Of a function that is not here nothing is known."""
_CHOICES = frozenset({"coalesce", "ifnull", "nvl", "greatest", "least"})
_JOINED = frozenset({"concat", "reverse"})
"""Text of anything but arrays, which stay arrays."""
_PREDICATES = (
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is, exp.In, exp.Between,
)  # fmt: skip
_FORMS: Mapping[type[exp.Expr], _Family] = {
    **dict.fromkeys((
        *_PREDICATES, exp.And, exp.Or, exp.Not, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Boolean,
    ), _Family.TRUTH),
    **dict.fromkeys((exp.Substring, exp.Trim, exp.Overlay), _Family.TEXT),
    **dict.fromkeys((exp.StrPosition, exp.Extract), _Family.NUMBER),
    exp.Null: _Family.NOTHING,
}  # fmt: skip
_STILL_EQUAL = (exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul)
_BLIND_FUNCTIONS = frozenset({
    "abs", "floor", "ceil", "ceiling", "isnull", "isnotnull", "isnan", "size", "cardinality",
})  # fmt: skip
_SEVERAL = ("float", "double", "map<")
"""Arrow types, perhaps inside others, of which values that are not the same are one group."""
_ARROW = (
    (("int", "uint", "decimal"), _Family.NUMBER),
    (("string", "large_string", "binary", "large_binary", "fixed_size_binary"), _Family.TEXT),
    (("date", "timestamp"), _Family.TIME),
    (("bool",), _Family.TRUTH),
)


def has_several_values(tree: exp.Expr, columns: Mapping[str, str]) -> bool:
    """Whether a value may be a float or a map, or have one inside. `columns` are the table's: name and Arrow type."""
    return _known(tree, columns) is None


def _known(tree: exp.Expr, columns: Mapping[str, str]) -> _Known | None:
    """What a value is, if it is certain that no group has several of it. What is not understood is not certain."""
    tree = tree.unnest()
    if (kind := kind_of(tree, columns)) is not None:
        return None if isinstance(kind, Real) else _Family.NUMBER
    if (read := next((read for forms, read in _READERS if isinstance(tree, forms)), None)) is not None:
        return read(tree, columns)
    return _Family.TEXT if tree.is_string else _FORMS.get(type(tree))


def _of_arrow(name: str) -> _Known | None:
    if not name or any(kind in name for kind in _SEVERAL):
        return None
    name = name.removeprefix("dictionary<values=")
    return next((family for begins, family in _ARROW if name.startswith(begins)), name)


def _of_cast(tree: exp.Expr, _: Mapping[str, str]) -> _Known | None:
    assert isinstance(tree, exp.Cast), f"{tree} is no cast"
    return _CAST.get(tree.to.this) if isinstance(tree.to.this, exp.DType) else None


def _of_call(tree: exp.Expr, columns: Mapping[str, str]) -> _Known | None:
    name = tree.name.lower()
    if name in _CHOICES:
        return _one_of(tree.expressions, columns)
    return _joined(tree.expressions, columns) if name in _JOINED else _FUNCTIONS.get(name)


def _one_of(values: Iterable[exp.Expr], columns: Mapping[str, str]) -> _Known | None:
    """Of text beside a decimal, Spark makes a double: only what is of one family stays what it was."""
    families = {_known(value, columns) for value in values} - {_Family.NOTHING}
    if len(families) > 1 or families == {_Family.PART}:
        return None
    return families.pop() if families else _Family.NOTHING


def _joined(values: Iterable[exp.Expr], columns: Mapping[str, str]) -> _Known | None:
    """`a || b`: text, whatever single values are joined, or the array that arrays of one type make."""
    families = {_joinable(value, columns) for value in values}
    if families <= {*_Family} - {_Family.PART}:
        return _Family.TEXT
    return families.pop() if len(families) == 1 and families != {_Family.PART} else None


def _joinable(value: exp.Expr, columns: Mapping[str, str]) -> _Known | None:
    return _Family.NUMBER if isinstance(kind_of(value, columns), Real) else _known(value, columns)


_READERS: tuple[tuple[tuple[type[exp.Expr], ...], Callable[[exp.Expr, Mapping[str, str]], _Known | None]], ...] = (
    ((exp.Column,), lambda tree, columns: _of_arrow(columns.get(tree.name, ""))),
    ((exp.Dot, exp.Bracket), lambda tree, columns: _Family.PART if _known(tree.this, columns) else None),
    ((exp.Cast,), _of_cast),
    ((exp.Case, exp.If), lambda tree, columns: _one_of(branches(tree), columns)),
    ((exp.DPipe,), lambda tree, columns: _joined((tree.this, tree.expression), columns)),
    ((exp.Concat,), lambda tree, columns: _joined(tree.expressions, columns)),
    ((exp.Anonymous,), _of_call),
)


def tells_values_apart(tree: exp.Expr, keys: frozenset[str], *, exactly: bool) -> bool:
    """Whether an expression over such keys may not be the same for all values of one group.

    A value that is equal for all is a group as good as any other, unless it must be exactly the one of the rows.
    """
    return any(_is_seen(found, exactly=exactly) for found in tree.find_all(exp.Column) if found.name in keys)


def _is_seen(node: exp.Expr, *, exactly: bool) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, _PREDICATES) or _is_blind(parent):
            return False
        if not isinstance(parent, _STILL_EQUAL) and not (isinstance(parent, exp.Cast) and parent.to.this in _REAL):
            return True
        parent = parent.parent
    return exactly


def _is_blind(node: exp.Expr) -> bool:
    if isinstance(node, exp.Cast):
        return node.to.this in _EXACT
    return isinstance(node, exp.Anonymous) and node.name.lower() in _BLIND_FUNCTIONS
