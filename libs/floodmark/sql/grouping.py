"""GROUP BY: by expressions, by the outputs' names, by their positions, or by ALL of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from floodmark.sql.columns import Columns
from floodmark.sql.measures import refuse_aggregates
from floodmark.sql.model import Output, Stored
from floodmark.sql.parsing import render
from floodmark.sql.rules import Rule, refused, shown
from floodmark.sql.shape import check_expression


@dataclass(frozen=True, slots=True)
class Selected:
    """An output as it was written, over the table's own column names."""

    name: str
    tree: exp.Expr
    text: str
    measure: tuple[Output, tuple[Stored, ...]] | None
    """What it stores, if it is an aggregate."""


def group_texts(select: exp.Select, outputs: Sequence[Selected], columns: Columns) -> list[str] | None:
    """The expressions that rows are grouped by, rendered; None when there is no GROUP BY."""
    group = select.args.get("group")
    if group is None:
        return None
    if any(group.args.get(kind) for kind in ("grouping_sets", "cube", "rollup", "totals")):
        raise refused(
            Rule.GROUPING_SETS, f"{shown(render(group))} groups in several ways; write a view for each GROUP BY"
        )
    items = grouped_items(
        group, is_name=lambda name: columns.has(name) or any(output.name.lower() == name for output in outputs)
    )
    if items is None:
        return [output.text for output in outputs if output.measure is None]
    texts = [_text(item, outputs, columns) for item in items]
    if missing := [text for text in texts if text not in {output.text for output in outputs}]:
        raise refused(
            Rule.KEY_NOT_SELECTED,
            f"GROUP BY {shown(missing[0])} is not among the outputs, and rows of the view could not be told apart; "
            "select it too",
        )
    return texts


def grouped_items(group: exp.Group, *, is_name: Callable[[str], bool]) -> list[exp.Expr] | None:
    """What GROUP BY lists, or None for all outputs that are no aggregates.

    ALL means those only where neither a column nor an output has that name, and then with and without quotes.
    """
    items: list[exp.Expr] = group.expressions
    alone = items[0].unnest() if len(items) == 1 else None
    is_all = isinstance(alone, exp.Column) and len(alone.parts) == 1 and alone.name.lower() == "all"
    if not is_all and not group.args.get("all"):
        return items
    return [exp.column("all", quoted=True)] if is_name("all") else None


def _text(item: exp.Expr, outputs: Sequence[Selected], columns: Columns) -> str:
    check_expression(item)
    if (chosen := _chosen(item, outputs, columns)) is not None:
        if chosen.measure is not None:
            raise refused(
                Rule.GROUP_BY, f"GROUP BY {shown(render(item))} is the aggregate {shown(chosen.text)}; leave it out"
            )
        tree = chosen.tree
    else:
        tree = columns.resolved(item).unnest()
    refuse_aggregates(tree, where="GROUP BY")
    return render(tree)


def _chosen(item: exp.Expr, outputs: Sequence[Selected], columns: Columns) -> Selected | None:
    """The output meant by a position or a name. A column of the table goes before an output of that name."""
    if isinstance(item, exp.Literal) and item.is_int:
        position = int(item.name)
        if not 1 <= position <= len(outputs):
            raise refused(Rule.GROUP_BY, f"GROUP BY {position} is no position of the {len(outputs)} outputs")
        return outputs[position - 1]
    if isinstance(item, exp.Column) and len(item.parts) == 1 and not columns.has(item.name):
        return next((o for o in outputs if o.name.lower() == item.name.lower()), None)
    return None
