"""The shape of a definition: one SELECT from one table, and only constructs that mean the same for each bucket."""

from collections.abc import Iterable

from sqlglot import exp

from floodmark.sql.functions import AGGREGATES, GENERATORS, GROUPING, NONDETERMINISTIC, WINDOW
from floodmark.sql.parsing import render
from floodmark.sql.rules import Rule, refused, shown

_SELECT_PARTS = {"expressions", "from_", "where", "group"}
_TABLE_PARTS = {"this", "alias"}
_ONE_TABLE = "a view reads one table: write FROM with nothing but its name"
_ORDER = "a view has no order: leave it out, and order what you read from the view"

_CLAUSES = {
    "with_": (Rule.ONE_TABLE, "WITH", _ONE_TABLE),
    "joins": (Rule.ONE_TABLE, "a second table", _ONE_TABLE),
    "laterals": (Rule.ONE_TABLE, "LATERAL", _ONE_TABLE),
    "distinct": (Rule.DISTINCT, "SELECT DISTINCT", "write GROUP BY with the columns"),
    "having": (Rule.HAVING, "HAVING", "a bucket holds only a part of a group: filter what you read from the view"),
    "order": (Rule.ORDER_BY, "ORDER BY", _ORDER),
    "sort": (Rule.ORDER_BY, "SORT BY", _ORDER),
    "cluster": (Rule.ORDER_BY, "CLUSTER BY", _ORDER),
    "distribute": (Rule.ORDER_BY, "DISTRIBUTE BY", _ORDER),
    "limit": (Rule.LIMIT, "LIMIT", "a bucket has all its rows: limit what you read from the view"),
    "offset": (Rule.OFFSET, "OFFSET", "a bucket has all its rows: skip rows of what you read from the view"),
    "windows": (Rule.WINDOW_FUNCTION, "WINDOW", "a window reaches over buckets: compute it from the view"),
    "qualify": (Rule.WINDOW_FUNCTION, "QUALIFY", "a window reaches over buckets: compute it from the view"),
    "hint": (Rule.HINT, "a hint", "leave it out"),
    "hints": (Rule.HINT, "a hint", "leave it out"),
    "sample": (Rule.SAMPLING, "TABLESAMPLE", "a sample is another one each time: leave it out"),
    "pivots": (Rule.PIVOT, "PIVOT", "write an aggregate with FILTER (WHERE ...) for each column"),
}

SCALAR_NODES: tuple[type[exp.Expr], ...] = (
    exp.Column, exp.Identifier, exp.Dot, exp.Bracket, exp.Literal, exp.HexString, exp.RawString, exp.Boolean, exp.Null,
    exp.Paren, exp.Tuple, exp.And, exp.Or, exp.Not, exp.Neg, exp.BitwiseNot,
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is, exp.Between, exp.In,
    exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Any, exp.All, exp.Collate,
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.DPipe, exp.Concat,
    exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift,
    exp.Case, exp.If, exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.IntervalSpan,
    exp.Interval, exp.Var, exp.Extract, exp.Trim, exp.Substring, exp.Overlay, exp.StrPosition,
    exp.Anonymous, exp.Lambda, exp.Alias, exp.Kwarg, exp.Filter, exp.Where,
)  # fmt: skip
"""What is known to come back from Spark as it was written. Whatever else sqlglot can read is refused."""

TYPES = {
    exp.DType.BOOLEAN, exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.FLOAT,
    exp.DType.DOUBLE, exp.DType.DECIMAL, exp.DType.TEXT, exp.DType.BINARY, exp.DType.DATE, exp.DType.TIMESTAMP,
    exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ, exp.DType.VARIANT, exp.DType.ARRAY,
    exp.DType.MAP, exp.DType.STRUCT,
}  # fmt: skip
"""Types that Spark and sqlglot mean the same by. TIME, for one, would come back as TIMESTAMP."""

_SPECIFIC: tuple[tuple[tuple[type[exp.Expr], ...], Rule, str], ...] = (
    ((exp.Query, exp.Exists), Rule.ONE_TABLE, f"is a subquery; {_ONE_TABLE}"),
    (
        (exp.Cube, exp.Rollup, exp.GroupingSets),
        Rule.GROUPING_SETS,
        "groups in several ways; write a view for each GROUP BY",
    ),
    ((exp.Window,), Rule.WINDOW_FUNCTION, "reaches over buckets; compute it from what you read from the view"),
    ((exp.Star,), Rule.SELECT_STAR, "is all columns; name the columns that the view is to have"),
    ((exp.Distinct,), Rule.DISTINCT, "cannot be merged over buckets; write approx_count_distinct(...) or GROUP BY"),
    (
        (exp.Placeholder, exp.Parameter, exp.SessionParameter),
        Rule.PARAMETER,
        "has no value here; write the value itself",
    ),
    (
        (exp.Order, exp.Ordered, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls),
        Rule.AGGREGATE_UNSUPPORTED,
        "depends on the order of rows, which a bucket does not keep; leave it out",
    ),
)


def check_shape(select: exp.Select, *, table: str) -> str:
    """Refuse what a view cannot be. Returns the name by which the columns may be qualified."""
    _check_clauses(select, _SELECT_PARTS)
    source = select.args.get("from_")
    named = source.this if source is not None else None
    if named is None:
        raise refused(Rule.WRONG_TABLE, f"there is no FROM; write FROM {table}")
    if not isinstance(named, exp.Table) or not isinstance(named.this, exp.Identifier):
        raise refused(Rule.ONE_TABLE, f"FROM {shown(render(named))} is not a table; {_ONE_TABLE}")
    _check_clauses(named, _TABLE_PARTS, qualified=True)
    if len(named.parts) > 1 or named.name.lower() != table:
        raise refused(Rule.WRONG_TABLE, f"FROM {shown(render(named))} must be FROM {table}, the table of the view")
    alias = named.args.get("alias")
    if alias is not None and alias.columns:
        raise refused(Rule.UNSUPPORTED_SYNTAX, f"{shown(render(alias))} names columns anew; use the table's own names")
    return str(named.alias_or_name)


def _check_clauses(node: exp.Expr, allowed: Iterable[str], *, qualified: bool = False) -> None:
    for part, value in node.args.items():
        if part in allowed or not value or (qualified and part in ("db", "catalog")):
            continue
        default = (Rule.UNSUPPORTED_SYNTAX, part.strip("_").upper(), "leave it out")
        rule, words, advice = _CLAUSES.get(part, default)
        raise refused(rule, f"{words} cannot be in a definition; {advice}")


def check_expression(root: exp.Expr) -> None:
    """Refuse what no key, measure or condition may contain."""
    for node in root.walk():
        if is_row_count(node):
            continue
        for kinds, rule, reason in _SPECIFIC:
            if isinstance(node, kinds):
                raise refused(rule, f"{shown(render(node))} {reason}")
        if not isinstance(node, SCALAR_NODES):
            raise refused(Rule.UNSUPPORTED_SYNTAX, f"{shown(render(node))} is not understood; write it another way")
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            raise refused(
                Rule.UNSUPPORTED_SYNTAX, f"{shown(render(node))} is a function of a schema; write its name alone"
            )
        if isinstance(node, exp.DataType) and isinstance(node.this, exp.DType) and node.this not in TYPES:
            raise refused(Rule.UNSUPPORTED_SYNTAX, f"type {node.this.value} is not supported; use another type")
        if isinstance(node, exp.Filter) and not _is_aggregate(node.this):
            raise refused(
                Rule.UNSUPPORTED_SYNTAX, f"{shown(render(node))} filters what is no aggregate; write CASE WHEN"
            )
        if isinstance(node, exp.Anonymous):
            _check_function(node)


def is_row_count(node: exp.Expr) -> bool:
    """The star of count(*)."""
    call = node.parent
    return isinstance(node, exp.Star) and isinstance(call, exp.Anonymous) and call.name.lower() == "count"


def _is_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in AGGREGATES


def _check_function(call: exp.Anonymous) -> None:
    name, text = call.name.lower(), shown(render(call))
    if name in NONDETERMINISTIC or (name == "unix_timestamp" and not call.expressions):
        raise refused(
            Rule.NONDETERMINISTIC, f"{text} has another value each time a bucket is built; store it in a column instead"
        )
    if name in WINDOW:
        raise refused(Rule.WINDOW_FUNCTION, f"{text} reaches over buckets; compute it from what you read from the view")
    if name in GENERATORS:
        raise refused(Rule.GENERATOR, f"{text} makes several rows of one; store the rows in the table instead")
    if name in GROUPING:
        raise refused(Rule.GROUPING_SETS, f"{text} belongs to grouping sets; write a view for each GROUP BY")
    if name == "identifier":
        raise refused(Rule.PARAMETER, f"{text} hides a name; write the name itself")
