"""A view's definition, analysed: from the text of its SELECT to what is stored, or the rule that it breaks.

    text --> syntax tree --> shape: one table, no HAVING, ... --> names become the table's columns
         --> each output is a key or a measure --> what each measure stores --> Definition

Nothing is decided by looking at text. Nothing is read but the arguments.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

from sqlglot import exp

from floodmark.sql.columns import Columns
from floodmark.sql.grouping import Selected, group_texts
from floodmark.sql.meaning import meaning_of
from floodmark.sql.measures import measure, refuse_aggregates
from floodmark.sql.model import Aggregate, Definition, Key, Output, Stored
from floodmark.sql.names import folded
from floodmark.sql.parsing import bounded_depth, check_rendering, parse_select, render
from floodmark.sql.rules import Rule, refused, shown
from floodmark.sql.shape import check_expression, check_shape
from floodmark.sql.timekeys import check_time_key

BUILD_COLUMNS = frozenset({"__bucket_ms", "__rows"})
"""What the worker adds to rows while it groups them."""

__all__ = ["Aggregate", "Definition", "Key", "Output", "Stored", "analyze", "canonical", "definition_hash"]


def analyze(select: str, *, table: str, time_column: str, bucket_ms: int, columns: Mapping[str, str]) -> Definition:
    """What the view keeps. `columns` are the table's, by name; empty means that they are not known yet."""
    with bounded_depth():
        return _analyzed(select, table, time_column, bucket_ms, columns)


def _analyzed(select: str, table: str, time_column: str, bucket_ms: int, columns: Mapping[str, str]) -> Definition:
    tree = parse_select(select)
    known = Columns(columns, qualifier=check_shape(tree, table=table), time_column=time_column)
    where = _where(tree, known)
    selected = [_selected(item, known) for item in tree.expressions]
    grouped = group_texts(tree, selected, known)
    measures = [one.measure for one in selected if one.measure is not None]
    is_projection = grouped is None and not measures
    keys = [one for one in selected if one.measure is None]
    if not is_projection:
        _check_keys(keys, grouped or (), time_column=time_column, bucket_ms=bucket_ms)
    definition = Definition(
        table=table,
        keys=tuple(Key(one.name, one.text) for one in keys),
        stored=tuple(column for _, columns in measures for column in columns),
        outputs=tuple(one.measure[0] if one.measure else Output(one.name, "key", "", (one.name,)) for one in selected),
        where=where,
        columns=tuple(sorted(known.read)),
        is_projection=is_projection,
    )
    _check_names(definition)
    check_rendering(tree)
    return definition


def definition_hash(table: str, select: str, bucket_ms: int) -> str:
    """Names what a bucket holds: two definitions with the same hash have the same rows, whatever version built them."""
    held = {"table": table, "select": canonical(select), "bucket_ms": bucket_ms}
    if meaning := meaning_of(select):
        held["meaning"] = meaning
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()[:32]


def canonical(select: str) -> str:
    """The query in one spelling: comments, white space and the case of keywords do not matter."""
    with bounded_depth():
        return render(parse_select(select))


def _where(tree: exp.Select, known: Columns) -> str | None:
    where = tree.args.get("where")
    if where is None:
        return None
    check_expression(where.this)
    refuse_aggregates(where.this, where="WHERE")
    return render(known.resolved(where.this))


def _selected(item: exp.Expr, known: Columns) -> Selected:
    expression = item.this if isinstance(item, exp.Alias) else item
    check_expression(expression)
    name = item.output_name
    if not name:
        raise refused(Rule.UNNAMED_OUTPUT, f"{shown(render(item))} needs a name; write {shown(render(item))} AS name")
    tree = known.resolved(expression).unnest()
    _check_collation(tree)
    return Selected(name, tree, render(tree), measure(name, tree))


def _check_collation(tree: exp.Expr) -> None:
    """Files hold text without its collation: what was one group or the smallest text would be another when read."""
    for node in tree.find_all(exp.Collate, exp.Anonymous):
        if isinstance(node, exp.Anonymous) and node.name.lower() != "collate":
            continue
        if node.find_ancestor(exp.Predicate, exp.Filter) is None:
            raise refused(
                Rule.COLLATION,
                f"{shown(render(node))} is text with a collation, which a file does not keep; "
                "compare with it, or write lower(...) or rtrim(...)",
            )


def _check_keys(keys: Sequence[Selected], grouped: Sequence[str], *, time_column: str, bucket_ms: int) -> None:
    for key in keys:
        if key.text not in grouped:
            raise refused(
                Rule.NOT_GROUPED,
                f"{shown(key.text)} AS {key.name} is neither an aggregate nor in GROUP BY; add it to GROUP BY",
            )
        if key.tree.find(exp.Column) is None:
            raise refused(Rule.GROUP_BY, f"{shown(key.text)} AS {key.name} is the same for every row; leave it out")
        check_time_key(key.tree, time_column=time_column, bucket_ms=bucket_ms)


def _check_names(definition: Definition) -> None:
    """Outputs and files have their columns told apart by name, and Spark does not look at case."""
    if reserved := [
        name for name in (*definition.columns, *definition.stored_columns) if folded(name) in BUILD_COLUMNS
    ]:
        raise refused(
            Rule.RESERVED_NAME,
            f"{reserved[0]} is the name of a column that a build adds to the rows; leave the column out, or rename it",
        )
    seen: dict[str, str] = {}
    for output in definition.outputs:
        names = {name.lower() for name in (output.name, *output.stored)}
        if taken := sorted(names & seen.keys()):
            raise refused(
                Rule.DUPLICATE_NAME,
                f"{taken[0]} is a column of the outputs {seen[taken[0]]} and {output.name}; write another name",
            )
        seen |= dict.fromkeys(names, output.name)
