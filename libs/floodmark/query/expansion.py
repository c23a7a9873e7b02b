"""A view's name in FROM means its query: the name is replaced by the query, which may then be found in any view.

    SELECT rides FROM hourly WHERE hour >= '2024-01-01'
    SELECT rides FROM (SELECT ... FROM trips WHERE date_trunc('HOUR', t) >= '2024-01-01' GROUP BY ...) AS hourly(...)
    WHERE hour >= '2024-01-01'

A WITH around the view may give the name `trips` to something else. So before anything is put in place, each table that
is read gets a name that no WITH of the query gives (`SourceNames`): its own, unless that is taken.

Conditions on the view's keys are repeated inside, where they say what need not be read: a group satisfies them if its
rows do. Of -0.0 and 0.0, or of maps with other orders, which are one group, that is not so for all conditions.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from floodmark.core.errors import InvalidInput
from floodmark.query.asked import conjuncts
from floodmark.query.rules import no_table
from floodmark.query.shapes import ViewShape, expression
from floodmark.query.snapshots import ViewSnapshot
from floodmark.query.statements import table_nodes
from floodmark.sql.lambdas import rename_parameters
from floodmark.sql.names import Names
from floodmark.sql.parsing import parse_query, parse_select, render
from floodmark.sql.rules import Rule, refused, shown
from floodmark.sql.shape import check_expression
from floodmark.sql.struct_names import check_field_names


class SourceNames:
    """What the tables and the view that a query reads are called in its SQL."""

    def __init__(self, given: Iterable[str]) -> None:
        self._names = Names(given)
        self._tables: dict[str, str] = {}

    def of(self, table: str) -> str:
        name = self._names.of(table)
        self._tables[name] = table
        return name

    def table_of(self, name: str) -> str:
        """The other way round."""
        return self._tables[name]

    def put(self, node: exp.Table, table: str) -> None:
        """Let the node read the table by its name here. In the query it is still called what it was called."""
        name = self.of(table)
        if name != table and node.args.get("alias") is None:
            node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name, quoted=True)))
        node.set("this", exp.to_identifier(name, quoted=True))


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
    source = inner.args["from_"].this
    for condition in _on_keys(tree, nodes[0], view.shape, source.alias_or_name):
        inner.where(exp.paren(condition), copy=False)
    return Opened(render(inner, used_up=True), _names(view.shape), tree)


def spelled_out(
    tree: exp.Query, tables: Container[str], views: Mapping[str, ViewSnapshot], names: SourceNames
) -> exp.Query:
    """The query with the queries of views in the place of their names, and each table under its name here."""
    nodes = list(table_nodes(tree))
    for node in nodes:
        if node.name.lower() not in tables and node.name.lower() not in views:
            raise no_table(node.name)
    if all(node.name.lower() in tables and names.of(node.name.lower()) == node.name.lower() for node in nodes):
        return tree
    tree = tree.copy()
    for node in list(table_nodes(tree)):
        if (name := node.name.lower()) in tables:
            names.put(node, name)
        else:
            _check_plain(node)
            inner = parse_select(views[name].header.definition.select)
            names.put(inner.args["from_"].this, views[name].header.definition.table)
            shape = views[name].shape
            _put(node, inner, _names(shape) if shape else ())
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


def _on_keys(tree: exp.Query, node: exp.Table, shape: ViewShape, qualifier: str) -> Iterator[exp.Expr]:
    """The conditions of the query that are about keys alone, over the table's columns, which are qualified.

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
            check_field_names(condition)
        except InvalidInput:
            continue  # it is applied outside, as everything is
        columns = list(condition.find_all(exp.Column))
        if columns and all(_key(column, node, keys) for column in columns) and not shape.sees_values(condition):
            yield rename_parameters(condition.transform(lambda part: _spelled(part, node, keys, qualifier)))


def _key(column: exp.Expr, node: exp.Table, keys: Mapping[str, str]) -> str | None:
    assert isinstance(column, exp.Column)
    parts = [part.name.lower() for part in column.parts]
    if len(parts) == 2 and parts[0] == node.alias_or_name.lower():
        parts = parts[1:]
    return keys.get(parts[0]) if len(parts) == 1 else None


def _spelled(part: exp.Expr, node: exp.Table, keys: Mapping[str, str], qualifier: str) -> exp.Expr:
    if not isinstance(part, exp.Column):
        return part
    text = _key(part, node, keys)
    assert text is not None, f"{part} is no key"
    key = expression(text)
    for found in key.find_all(exp.Column):
        found.set("table", exp.to_identifier(qualifier, quoted=True))
    return exp.paren(key)
