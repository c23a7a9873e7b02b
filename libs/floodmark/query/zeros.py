"""Two zeros that are one group: GROUP BY makes 0.0 of -0.0, and everything that was grouped has lost the difference.

A view that keeps groups by a float or a double has 0.0 for rows of both. Whoever compares it sees nothing of that; its
text, its sign and its largest value would be others than those of the table's rows.
"""

from collections.abc import Mapping, Sequence

from sqlglot import exp

from floodmark.query.kinds import Real, branches, kind_of
from floodmark.sql.functions import OF_TIMES

_EXACT = {
    exp.DType.BOOLEAN, exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.DECIMAL,
}  # fmt: skip
_REAL = {exp.DType.FLOAT, exp.DType.DOUBLE}
_WITHOUT_FLOATS = (
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
_BLIND_FUNCTIONS = frozenset({"abs", "floor", "ceil", "ceiling", "isnull", "isnotnull", "isnan"})


def has_two_zeros(tree: exp.Expr, columns: Mapping[str, str]) -> bool:
    """Whether a value may be a float or have one inside. `columns` are the table's, with their Arrow types."""
    tree = tree.unnest()
    if (kind := kind_of(tree, columns)) is not None:
        return isinstance(kind, Real)
    if (values := _values(tree)) is not None:
        return any(has_two_zeros(value, columns) for value in values)
    if isinstance(tree, exp.Column):
        arrow = columns.get(tree.name, "")
        is_other = bool(arrow) and "float" not in arrow and "double" not in arrow
    elif isinstance(tree, exp.Dot | exp.Bracket):
        is_other = not has_two_zeros(tree.this, columns)
    elif isinstance(tree, exp.Cast):
        is_other = tree.to.this in _WITHOUT_FLOATS
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


def tells_zeros_apart(tree: exp.Expr, keys: frozenset[str], *, exactly: bool) -> bool:
    """Whether an expression over such keys may have another value for -0.0 than for 0.0.

    A value that is equal for both is a group as good as the other, unless it must be exactly the one of the rows.
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
