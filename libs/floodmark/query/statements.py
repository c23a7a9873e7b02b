"""A query as a tree that is safe to run: every table is named, and nothing is read but registered files.

What Spark could read besides is refused here, by the shape of the tree: names with a schema (parquet.`/etc/passwd`),
functions in place of tables, and functions that look at files, classes or schemas elsewhere.
"""

from collections.abc import Iterator, Mapping

from sqlglot import exp

from floodmark.core.tables import TableDefinition
from floodmark.query.rules import Refusal, refused
from floodmark.sql.names import folded
from floodmark.sql.parsing import bounded_depth, check_rendering, parse_query, render
from floodmark.sql.rules import Rule, shown
from floodmark.sql.rules import refused as refused_by
from floodmark.sql.shape import SCALAR_NODES, TYPES

_QUERY_NODES: tuple[type[exp.Expr], ...] = (
    exp.Select, exp.From, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Join,
    exp.Subquery, exp.CTE, exp.With, exp.SetOperation, exp.Window, exp.WindowSpec, exp.Distinct, exp.Star, exp.Table,
    exp.TableAlias, exp.TableSample, exp.Lateral, exp.Values, exp.Exists, exp.Cube, exp.Rollup, exp.GroupingSets,
    exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls, exp.Paren, exp.Hint,
)  # fmt: skip

_LOOK_ELSEWHERE = frozenset({
    "java_method", "reflect", "try_reflect",  # whatever a Java method does
    "input_file_name", "input_file_block_start", "input_file_block_length",  # where files lie is nobody's business
    "read_files", "read_kafka", "cloud_files", "identifier",
    "from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf", "from_xml", "schema_of_xml",
})  # fmt: skip
"""The last ones take schemas from files or addresses that they are given."""
_HIDDEN = "_metadata"
_ALLOWED = SCALAR_NODES + _QUERY_NODES


def parsed(text: str) -> exp.Query:
    """The query, if it is one that may be run."""
    with bounded_depth():
        tree = parse_query(text)
        for node in tree.walk():
            _check(node)
        check_rendering(tree)
        return tree


def table_nodes(tree: exp.Query) -> Iterator[exp.Table]:
    """Every place where a table is read, leaving out names given by WITH."""
    for node in tree.find_all(exp.Table):
        if isinstance(node.this, exp.Identifier) and not _is_given(node):
            yield node


def given_names(tree: exp.Query) -> Iterator[str]:
    """Every name that a WITH gives, wherever it is seen."""
    return (cte.alias for cte in tree.find_all(exp.CTE))


def check_columns(tree: exp.Query, tables: Mapping[str, TableDefinition]) -> None:
    """Spark has a column that tells where a row's file lies, in every table that has none of that name."""
    own = {name.lower() for table in tables.values() for name, _ in table.columns}
    for column in tree.find_all(exp.Column):
        if any(part.name.lower() == _HIDDEN for part in column.parts) and _HIDDEN not in own:
            raise refused(Refusal.READS_OUTSIDE, f"{shown(render(column))} tells where files lie; leave it out")


def _check(node: exp.Expr) -> None:
    if isinstance(node, exp.Table):
        _check_table(node)
    elif isinstance(node, exp.Anonymous):
        if node.name.lower() in _LOOK_ELSEWHERE:
            raise refused(Refusal.READS_OUTSIDE, f"{shown(render(node))} may look outside of the tables; leave it out")
    elif isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
        raise refused_by(Rule.PARAMETER, f"{shown(render(node))} has no value here; write the value itself")
    elif isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
        raise refused_by(
            Rule.UNSUPPORTED_SYNTAX, f"{shown(render(node))} is a function of a schema; write its name alone"
        )
    elif isinstance(node, exp.DataType) and isinstance(node.this, exp.DType) and node.this not in TYPES:
        raise refused_by(Rule.UNSUPPORTED_SYNTAX, f"type {node.this.value} is not supported; use another type")
    elif not isinstance(node, _ALLOWED):
        raise refused_by(Rule.UNSUPPORTED_SYNTAX, f"{shown(render(node))} is not understood; write it another way")


def _check_table(node: exp.Table) -> None:
    if not isinstance(node.this, exp.Identifier):
        raise refused(Refusal.TABLE_FUNCTION, f"FROM {shown(render(node))} calls a function; write the name of a table")
    if len(node.parts) > 1:
        raise refused(
            Refusal.UNKNOWN_TABLE, f"there is no table {shown(render(node))}; write the name of a table alone"
        )


def _is_given(table: exp.Table) -> bool:
    """Whether a WITH around it gives this name, as Spark decides it: case does not matter, the innermost WITH counts.

    A name is seen by what stands after it, not by its own query, unless that is RECURSIVE, nor by those before.
    """
    child: exp.Expr = table
    above = table.parent
    while above is not None:
        if any(folded(cte.alias) == folded(table.name) for cte in _seen_from(child, above)):
            return True
        child, above = above, above.parent
    return False


def _seen_from(child: exp.Expr, above: exp.Expr) -> list[exp.Expr]:
    """The names that a node gives to one of its parts."""
    if isinstance(above, exp.With):
        position = next(n for n, cte in enumerate(above.expressions) if cte is child)
        return above.expressions[: position + bool(above.args.get("recursive"))]
    given = above.args.get("with_") if isinstance(above, exp.Query) else None
    return given.expressions if given is not None and given is not child else []
