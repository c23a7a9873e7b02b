"""A query that asks for the time gets it here, once, so that it can be routed by it.

    WHERE t >= now() - INTERVAL 1 DAY    -->    WHERE t >= CAST('2024-05-01 12:30:00.250' AS TIMESTAMP) - INTERVAL 1 DAY

Spark would ask its clock once as well, a little later. Both parts of a plan have to go by the same time.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from sqlglot import exp

from floodmark.query.asked import output_name
from floodmark.query.shapes import expression

_NOW = ("now", "current_timestamp")
_TODAY = ("current_date", "curdate")
_WITHOUT_PARENTHESES = frozenset({"current_timestamp", "current_date"})


def asks_for_the_time(tree: exp.Query) -> bool:
    return next(_clocks(tree, frozenset()), None) is not None


def with_the_time(tree: exp.Query, now_ms: int, *, columns: frozenset[str] | None) -> exp.Query:
    """The same query without the clock. `columns` are names of columns, in lower case; None: not all are known."""
    taken = _WITHOUT_PARENTHESES if columns is None else columns | _given_names(tree)
    tree = tree.copy()
    for select in tree.find_all(exp.Select):
        for item in select.expressions:
            if not isinstance(item, exp.Alias) and next(_clocks(item, taken), None) is not None:
                item.replace(exp.alias_(item.copy(), output_name(item), quoted=True))
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    now = expression(f"CAST('{moment:%Y-%m-%d %H:%M:%S}.{now_ms % 1000:03}' AS TIMESTAMP)")
    today = expression(f"CAST('{moment:%Y-%m-%d}' AS DATE)")
    for clock in list(_clocks(tree, taken)):
        clock.replace((now if clock.name.lower() in _NOW else today).copy())
    return tree


def _clocks(tree: exp.Expr, taken: frozenset[str]) -> Iterator[exp.Expr]:
    for node in tree.find_all(exp.Anonymous, exp.Column):
        name = node.name.lower()
        if isinstance(node, exp.Column):
            is_word = len(node.parts) == 1 and not node.this.args.get("quoted") and name not in taken
            if is_word and name in _WITHOUT_PARENTHESES:
                yield node
        elif name in _NOW + _TODAY and not node.expressions:
            yield node


def _given_names(tree: exp.Expr) -> frozenset[str]:
    """Names that the query itself gives to something."""
    aliases = {node.alias.lower() for node in tree.find_all(exp.Alias)}
    columns = {column.name.lower() for node in tree.find_all(exp.TableAlias) for column in node.columns}
    return frozenset(aliases | columns)
