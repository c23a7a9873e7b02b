"""A view's name in FROM means its query: the name is replaced by the query, which may then be found in any view.

    SELECT rides FROM hourly WHERE hour >= '2024-01-01'
    SELECT rides FROM (SELECT ... FROM trips WHERE date_trunc('HOUR', t) >= '2024-01-01' GROUP BY ...) AS hourly(...)
    WHERE hour >= '2024-01-01'

Conditions on the view's keys are repeated inside, where they say what need not be read: a group satisfies them if its
rows do.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from floodmark.core.errors import InvalidInput
from floodmark.query.asked import conjuncts
from floodmark.query.shapes import ViewShape, expression
from floodmark.query.snapshots import ViewSnapshot
from floodmark.query.statements import table_nodes
from floodmark.sql.parsing import parse_query, parse_select, render
from floodmark.sql.rules import Rule, refused, shown
from floodmark.sql.shape import check_expression


@dataclass(frozen=True, slots=True)
class Opened:
    """A query that reads one view and nothing else: the view's query, and what is asked of it."""

    inner: str
    names: tuple[str, ...]
    tree: exp.Query

    def around(self, inner_sql: str) -> str:
        """The whole query, with this SQL in the view's place."""
        tree = self.tree.copy()
        (node,) = table_nodes(tree)
        _put(node, parse_query(inner_sql), self.names)
        return render(tree, used_up=True)


def opened(tree: exp.Query, views: Mapping[str, ViewSnapshot]) -> Opened | None:
    """None when the query reads anything else than one view."""
    nodes = list(table_nodes(tree))
    view = views.get(nodes[0].name.lower()) if len(nodes) == 1 else None
    if view is None or view.shape is None:
        return None
    _check_plain(nodes[0])
    inner = parse_select(view.header.definition.select)
    for condition in _on_keys(tree, nodes[0], view.shape):
        inner.where(exp.paren(condition), copy=False)
    return Opened(render(inner, used_up=True), _names(view.shape), tree)


def spelled_out(tree: exp.Query, views: Mapping[str, ViewSnapshot]) -> exp.Query:
    """The query with the queries of views in the place of their names."""
    if not any(node.name.lower() in views for node in table_nodes(tree)):
        return tree
    tree = tree.copy()
    for node in [node for node in table_nodes(tree) if node.name.lower() in views]:
        _check_plain(node)
        view = views[node.name.lower()]
        _put(node, parse_select(view.header.definition.select), _names(view.shape) if view.shape else ())
    return tree


def _check_plain(node: exp.Table) -> None:
    if odd := [part for part, value in node.args.items() if value and part not in ("this", "alias", "joins")]:
        raise refused(
            Rule.UNSUPPORTED_SYNTAX, f"{odd[0]} of the view {shown(render(node))} is not understood; leave it out"
        )


def _names(shape: ViewShape) -> tuple[str, ...]:
    return tuple(output.name for output in shape.definition.outputs)


def _put(node: exp.Table, query: exp.Query, names: Sequence[str]) -> None:
    alias = node.args.get("alias")
    columns = alias.columns if alias is not None else []
    made = exp.Subquery(
        this=query,
        alias=exp.TableAlias(
            this=exp.to_identifier(node.alias_or_name, quoted=True),
            columns=[column.copy() for column in columns] or [exp.to_identifier(name, quoted=True) for name in names],
        ),
        joins=[join.copy() for join in node.args.get("joins") or ()],
    )
    node.replace(made)


def _on_keys(tree: exp.Query, node: exp.Table, shape: ViewShape) -> Iterator[exp.Expr]:
    """The conditions of the query that are about keys alone, over the table's columns.

    With a join they stay outside: a row that is left out inside may come back from an outer join, filled with NULL.
    """
    source, where, alias = (tree.args.get("from_"), tree.args.get("where"), node.args.get("alias"))
    joined = tree.args.get("joins") or tree.args.get("laterals") or node.args.get("joins")
    renamed = alias is not None and bool(alias.columns)
    if source is None or source.this is not node or where is None or joined or renamed:
        return
    keys = {key.name.lower(): key.expression for key in shape.definition.keys}
    for condition in conjuncts(where.this):
        try:
            check_expression(condition)
        except InvalidInput:
            continue  # it is applied outside, as everything is
        columns = list(condition.find_all(exp.Column))
        if columns and all(_key(column, node, keys) for column in columns):
            yield condition.transform(lambda part: _spelled(part, node, keys))


def _key(column: exp.Expr, node: exp.Table, keys: Mapping[str, str]) -> str | None:
    assert isinstance(column, exp.Column)
    parts = [part.name.lower() for part in column.parts]
    if len(parts) == 2 and parts[0] == node.alias_or_name.lower():
        parts = parts[1:]
    return keys.get(parts[0]) if len(parts) == 1 else None


def _spelled(part: exp.Expr, node: exp.Table, keys: Mapping[str, str]) -> exp.Expr:
    if not isinstance(part, exp.Column):
        return part
    text = _key(part, node, keys)
    assert text is not None, f"{part} is no key"
    return exp.paren(expression(text))
