"""Which meaning a query has: a number that grows when a new version of this library makes other rows of the same text.

A view's hash includes it. So what was built under an earlier meaning has another hash than the view has today: it is
not read, and is built again (`catalog/renewal.py`). No version can say what an earlier one made of a text. So a change
concerns every text except those whose rows it certainly left as they were.

    0    the meaning of texts that no change concerns
    1    parameters of lambdas, operators, signs, numbers with suffixes, quotes and comments as Spark reads them; fields
         of structs under the names that were written; distinct counts as sketches of hashes

To add one, raise `MEANING` and say in `_CHANGES` which texts it may concern. The others keep their hash.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from sqlglot import exp

from floodmark.core.errors import InvalidInput
from floodmark.core.tables import MEANING, ViewDefinition
from floodmark.sql.parsing import bounded_depth, parse_select

TEXTS_KNOWN_MAX = 1_024

_ODD_TEXT = re.compile(r"""--(?![^\\'"`\n]*(?:\n|$))|/\*|\\|"|''|``|\$|[^\x00-\x7f]""")
"""Comments, except the simplest, escapes, doubled quotes and variables were found by other rules."""
_PLAIN_NODES = (
    exp.Select, exp.From, exp.Where, exp.Group, exp.Filter, exp.Alias, exp.Star, exp.And,
)  # fmt: skip
_PLAIN_CALLS = frozenset({
    "sum", "count", "min", "max", "avg", "mean", "hll_sketch_agg", "theta_sketch_agg", "kll_sketch_agg_bigint",
    "kll_sketch_agg_double", "kll_sketch_agg_float", "date_trunc", "year", "quarter", "month", "day", "hour", "minute",
    "dayofweek", "lower", "upper", "abs",
})  # fmt: skip
_PLAIN_IF: Mapping[type[exp.Expr] | tuple[type[exp.Expr], ...], Callable[[exp.Expr], bool]] = {
    exp.Column: lambda node: not node.args.get("table"),
    exp.Table: lambda node: not node.args.get("db") and not node.alias,
    exp.Identifier: lambda node: node.name.lower() != "all",  # GROUP BY could mean it
    exp.Literal: lambda node: bool(node.args["is_string"]) or node.name.isdecimal(),
    exp.Anonymous: lambda node: node.name.lower() in _PLAIN_CALLS and bool(node.expressions),
    (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE): lambda node: (
        isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Column | exp.Literal)
    ),
}


@lru_cache(maxsize=TEXTS_KNOWN_MAX)
def meaning_of(select: str) -> int:
    """The meaning of a query. Raises InvalidInput for what is no query."""
    with bounded_depth():
        tree = parse_select(select)
        return max((meaning for meaning, concerns in _CHANGES if concerns(select, tree)), default=0)


def is_outdated(view: ViewDefinition) -> bool:
    """Whether the view's hash is of an earlier meaning. A query that is not read any more has none to compare with."""
    try:
        return view.meaning < meaning_of(view.select)
    except InvalidInput:
        return False


def _may_have_been_read_otherwise(select: str, tree: exp.Expr) -> bool:
    """Meaning 1. Names, calls of them, and comparisons of a name with a value always were what they are."""
    if _ODD_TEXT.search(select):
        return True
    return not all(_is_plain(node) for node in tree.walk())


def _is_plain(node: exp.Expr) -> bool:
    for kind, condition in _PLAIN_IF.items():
        if isinstance(node, kind):
            return condition(node)
    return isinstance(node, _PLAIN_NODES)


_CHANGES: Sequence[tuple[int, Callable[[str, exp.Expr], bool]]] = ((1, _may_have_been_read_otherwise),)
assert _CHANGES[-1][0] == MEANING, "a meaning that no text can have, or one that readers refuse"
