"""Keys of which one group has several values: GROUP BY makes 0.0 of -0.0, and sorts the entries of a map.

A view that keeps groups by a float, a double or a map has one value for rows of several. Whoever compares it sees
nothing of that; the text and the sign of a zero, its largest value, the first entry of a map and its text would be
others than those of the table's rows.
"""

from collections.abc import Mapping, Sequence

from sqlglot import exp

from floodmark.query.kinds import Real, branches, kind_of
from floodmark.sql.functions import OF_TIMES

_EXACT = {
    exp.DType.BOOLEAN, exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.DECIMAL,
}  # fmt: skip
_REAL = {exp.DType.FLOAT, exp.DType.DOUBLE}
_OF_ONE_VALUE = (
    *_EXACT, exp.DType.TEXT, exp.DType.BINARY, exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ,
    exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ,
)  # fmt: skip
_TEXT_FUNCTIONS = frozenset({
    "upper", "lower", "ucase", "lcase", "initcap", "trim", "ltrim", "rtrim", "btrim", "substr", "substring", "left",
    "right", "replace", "translate", "regexp_replace", "regexp_extract", "split_part", "md5", "sha1", "sha2", "reverse",
    "concat_ws", "string",
})  # fmt: skip
_OTHER_FUNCTIONS = (OF_TIMES - {"months_between"}) | _TEXT_FUNCTIONS
_CHOICES = frozenset({"coalesce", "ifnull", "nvl", "greatest", "least"})
_PREDICATES = (
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is, exp.In, exp.Between,
)  # fmt: skip
_OTHER_FORMS = (
    *_PREDICATES, exp.And, exp.Or, exp.Not, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Boolean, exp.Null,
    exp.DPipe, exp.Concat, exp.Substring, exp.Trim, exp.Overlay, exp.StrPosition, exp.Extract,
)  # fmt: skip
"""Text, whole numbers and truth."""
_STILL_EQUAL = (exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul)
_BLIND_FUNCTIONS = frozenset({
    "abs", "floor", "ceil", "ceiling", "isnull", "isnotnull", "isnan", "size", "cardinality",
})  # fmt: skip
_SEVERAL = ("float", "double", "map<")
"""Arrow types, perhaps inside others, of which values that are not the same are one group."""


def has_several_values(tree: exp.Expr, columns: Mapping[str, str]) -> bool:
    """Whether a value may be a float or a map, or have one inside. `columns` are the table's: name and Arrow type."""
    tree = tree.unnest()
    if (kind := kind_of(tree, columns)) is not None:
        return isinstance(kind, Real)
    if (values := _values(tree)) is not None:
        return any(has_several_values(value, columns) for value in values)
    if isinstance(tree, exp.Column):
        arrow = columns.get(tree.name, "")
        is_other = bool(arrow) and not any(kind in arrow for kind in _SEVERAL)
    elif isinstance(tree, exp.Dot | exp.Bracket):
        is_other = not has_several_values(tree.this, columns)
    elif isinstance(tree, exp.Cast):
        is_other = tree.to.this in _OF_ONE_VALUE
    elif isinstance(tree, exp.Anonymous):
        is_other = tree.name.lower() in _OTHER_FUNCTIONS
    else:
        is_other = isinstance(tree, _OTHER_FORMS) or bool(tree.is_string)
    return not is_other


def _values(tree: exp.Expr) -> Sequence[exp.Expr] | None:
    """What an expression is one of, if it is one of several."""
    if isinstance(tree, exp.Case | exp.If):
        return branches(tree)
    return tree.expressions if isinstance(tree, exp.Anonymous) and tree.name.lower() in _CHOICES else None


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
