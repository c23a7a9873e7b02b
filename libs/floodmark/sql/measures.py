"""Aggregates: which can be stored so that buckets merge, and in which columns."""

from sqlglot import exp

from floodmark.sql.functions import AGGREGATES, INSTEAD, STORABLE
from floodmark.sql.model import Aggregate, Output, Stored
from floodmark.sql.parsing import render
from floodmark.sql.rules import Rule, refused, shown

_ONE_COLUMN = {
    "sum": Aggregate.SUM,
    "count": Aggregate.COUNT,
    "min": Aggregate.MIN,
    "max": Aggregate.MAX,
    "hll_sketch_agg": Aggregate.HLL,
    "theta_sketch_agg": Aggregate.THETA,
    "kll_sketch_agg_bigint": Aggregate.KLL_BIGINT,
    "kll_sketch_agg_double": Aggregate.KLL_DOUBLE,
    "kll_sketch_agg_float": Aggregate.KLL_FLOAT,
}


def aggregates_in(root: exp.Expr) -> list[exp.Anonymous]:
    """Every call of an aggregate function, the outermost first."""
    return [call for call in root.find_all(exp.Anonymous) if call.name.lower() in AGGREGATES]


def refuse_aggregates(root: exp.Expr, *, where: str) -> None:
    for call in aggregates_in(root):
        raise refused(
            Rule.AGGREGATE_MISPLACED, f"{shown(render(call))} is an aggregate in {where}; aggregates are outputs only"
        )


def measure(name: str, tree: exp.Expr) -> tuple[Output, tuple[Stored, ...]] | None:
    """What an output that is an aggregate stores; None when there is no aggregate in it."""
    calls = aggregates_in(tree)
    if not calls:
        return None
    for call in calls:
        if call.name.lower() not in STORABLE:
            raise _unsupported(call)
    condition = None
    if isinstance(tree, exp.Filter):
        tree, condition = tree.this, tree.expression.this
        refuse_aggregates(condition, where="FILTER")
    if tree is not calls[0] or len(calls) > 1:
        parts = ", ".join(dict.fromkeys(shown(render(part)) for part in calls if not aggregates_in_arguments(part)))
        raise refused(
            Rule.COMBINED_AGGREGATE,
            f"{shown(render(tree))} combines aggregates, and buckets of it could not be merged; "
            f"store the parts, each AS a name of its own: {parts}",
        )
    return _stored(name, calls[0], None if condition is None else render(condition))


def aggregates_in_arguments(call: exp.Anonymous) -> bool:
    return any(aggregates_in(argument) for argument in call.expressions)


def _stored(name: str, call: exp.Anonymous, condition: str | None) -> tuple[Output, tuple[Stored, ...]]:
    function = "avg" if call.name.lower() == "mean" else call.name.lower()
    argument = _argument(call)
    columns: tuple[Stored, ...]
    if function == "avg":
        total = Stored(f"{name}__sum", Aggregate.SUM_FOR_AVG, argument, condition)
        columns = (total, Stored(f"{name}__count", Aggregate.COUNT, argument, condition))
    elif function == "approx_count_distinct":
        columns = (Stored(f"{name}__distinct", Aggregate.DISTINCT, argument, condition),)
    elif function == "count" and _counts_rows(call.expressions[0]):
        columns = (Stored(name, Aggregate.COUNT_ROWS, None, condition),)
    else:
        columns = (Stored(name, _ONE_COLUMN[function], argument, condition),)
    return Output(name, "measure", function, tuple(column.name for column in columns)), columns


def _argument(call: exp.Anonymous) -> str:
    function, text = call.name.lower(), shown(render(call))
    if len(call.expressions) == 1 and not isinstance(call.expressions[0], exp.Kwarg | exp.Alias | exp.Lambda):
        return render(call.expressions[0])
    if function == "count" and len(call.expressions) > 1:
        advice = "count(*) FILTER (WHERE a IS NOT NULL AND b IS NOT NULL)"
    else:
        advice = f"{function}(x): the precision is the same for all views"
    raise refused(Rule.AGGREGATE_ARGUMENT, f"{text} must have exactly one argument; write {advice}")


def _counts_rows(argument: exp.Expr) -> bool:
    """count(*) and count(1): a constant that is not NULL counts each row."""
    return isinstance(argument.unnest(), exp.Star | exp.Literal | exp.Boolean)


def _unsupported(call: exp.Anonymous) -> Exception:
    instead = INSTEAD.get(call.name.lower())
    advice = f"store {instead} and compute it from that" if instead else f"there are {', '.join(sorted(STORABLE))}"
    return refused(
        Rule.AGGREGATE_UNSUPPORTED, f"{shown(render(call))} cannot be merged from parts of the rows; {advice}"
    )
