"""A query over a table, put together anew over a view and what of the table the view cannot answer.

    groups, aggregates and conditions  -- all found in the view? -->

    SELECT items, HAVING, ORDER BY, LIMIT over groups and aggregates
    FROM (SELECT k0, ..., merge(p0), ...            one merged aggregation
          FROM (SELECT key AS k0, stored AS p0 FROM the view's files WHERE what the keys can tell
                UNION ALL
                SELECT group AS k0, partial aggregate AS p0 FROM the table's files WHERE ... GROUP BY group)
          GROUP BY k0, ...)

A view that keeps rows one by one is read the same way, without the aggregation in the middle. Trees are put together,
never text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from floodmark.query.asked import Asked, Term
from floodmark.query.partials import Merge, Merger
from floodmark.query.plan import Rewrite
from floodmark.query.rules import Miss, Missed
from floodmark.query.shapes import ViewShape, column, expression
from floodmark.sql.parsing import render
from floodmark.sql.rules import shown


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A query over a view. `sql` needs to know whether anything is left to read from the table."""

    kind: Rewrite
    view_columns: tuple[str, ...]
    """The columns of the view's files that are read."""
    sql: Callable[[str, str | None], str]
    """Of the names of the view's source and of the table's, None when nothing of it is read."""


def rewritten(asked: Asked, shape: ViewShape, columns: Mapping[str, str], *, rows_max: int) -> Rewritten:
    """Raises Missed with the rule by which the view cannot serve the query."""
    residuals = _residuals(asked, shape)
    if shape.definition.is_projection:
        return _scan(asked, shape, residuals)
    if not asked.is_aggregate:
        raise Missed(Miss.NOT_ROWS, "the query wants single rows, and the view keeps groups")
    return _rollup(asked, shape, residuals, Merger(shape, columns, rows_max=rows_max))


def _residuals(asked: Asked, shape: ViewShape) -> list[exp.Expr]:
    """The conditions that the view's rows have yet to satisfy. Those on time are satisfied by whole buckets."""
    if missing := shape.where - {condition.term.text for condition in asked.where}:
        raise Missed(Miss.FILTER_OF_VIEW, f"the view has only rows with {shown(min(missing))}; the query wants others")
    residuals = []
    for condition in asked.where:
        if condition.term.text in shape.where or condition.bounds is not None:
            continue
        derived = shape.derived(condition.term)
        if derived is None:
            raise Missed(Miss.FILTER_NOT_IN_VIEW, f"the view does not keep what {shown(condition.term.text)} looks at")
        residuals.append(derived)
    return residuals


# -- groups ------------------------------------------------------------------------------------------------------------


def _rollup(asked: Asked, shape: ViewShape, residuals: list[exp.Expr], merger: Merger) -> Rewritten:
    keys = [_key(group, shape) for group in asked.groups or ()]
    aggregates = list(asked.aggregates())
    merges = [merger.merge(term) for term in aggregates]
    view = _Side(keys, [p.of_view for m in merges for p in m.partials], residuals)
    base = _Side([g.tree for g in asked.groups or ()], [p.of_base for m in merges for p in m.partials], _where(asked))
    places = {g.text: column(f"k{n}") for n, g in enumerate(asked.groups or ())}
    places |= {term.text: column(f"a{n}") for n, term in enumerate(aggregates)}
    items = [_placed(item.tree, item, places) for item in asked.items]
    having = None if asked.having is None else _placed(asked.having.tree, asked.having, places)
    order = [_ordered(one, places) for one in asked.order]
    exact = not residuals and {g.text for g in asked.groups or ()} == shape.keys.keys() and _all_stored(merges)

    def sql(view_name: str, table_name: str | None) -> str:
        parts = [view.select(view_name)]
        if table_name is not None:
            parts.append(base.select(table_name, grouped=asked.groups is not None))
        merged = _merged(len(keys), merges, _union(parts), grouped=asked.groups is not None)
        return _outermost(asked, items, having, order, merged.subquery("merged"))

    return Rewritten(Rewrite.EXACT if exact else Rewrite.ROLLUP, _columns_in(view.trees()), sql)


def _key(group: Term, shape: ViewShape) -> exp.Expr:
    derived = shape.derived(group)
    if derived is None:
        raise Missed(Miss.KEY_NOT_IN_VIEW, f"the view does not keep rows apart by {shown(group.text)}")
    return derived


def _where(asked: Asked) -> list[exp.Expr]:
    return [condition.term.tree for condition in asked.where]


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of the union: keys, partial aggregates, conditions."""

    keys: list[exp.Expr]
    partials: list[exp.Expr]
    where: list[exp.Expr]

    def select(self, source: str, *, grouped: bool = False) -> exp.Select:
        named = [exp.alias_(key.copy(), f"k{n}", quoted=True) for n, key in enumerate(self.keys)]
        named += [exp.alias_(part.copy(), f"p{n}", quoted=True) for n, part in enumerate(self.partials)]
        # Without groups or aggregates there is still one row for each of the source's.
        made = exp.Select(expressions=named or [exp.alias_(exp.Literal.number(1), "p", quoted=True)])
        made = _restricted(made.from_(_table(source)), self.where)
        return made.group_by(*(key.copy() for key in self.keys)) if grouped else made

    def trees(self) -> list[exp.Expr]:
        return [*self.keys, *self.partials, *self.where]


def _merged(keys: int, merges: Sequence[Merge], union: exp.Query, *, grouped: bool) -> exp.Select:
    named: list[exp.Expr] = [column(f"k{n}") for n in range(keys)]
    first = 0
    for n, merge in enumerate(merges):
        names = tuple(f"p{first + m}" for m in range(len(merge.partials)))
        named.append(exp.alias_(merge.over(names), f"a{n}", quoted=True))
        first += len(names)
    made = exp.Select(expressions=named).from_(union.subquery("parts"))
    return made.group_by(*(column(f"k{n}") for n in range(keys))) if grouped else made


def _all_stored(merges: Sequence[Merge]) -> bool:
    """Whether the view's measures are taken as they are."""
    return all(isinstance(p.of_view.unnest(), exp.Column | exp.Cast) for m in merges for p in m.partials)


# -- rows --------------------------------------------------------------------------------------------------------------


def _scan(asked: Asked, shape: ViewShape, residuals: list[exp.Expr]) -> Rewritten:
    """The view stands for the table: expressions are found among its columns, or made of them."""

    def derived(term: Term) -> exp.Expr:
        found = shape.derived(term)
        if found is None:
            raise Missed(Miss.COLUMN_NOT_IN_VIEW, f"the view does not keep what {shown(term.text)} looks at")
        return found

    items = [derived(item) for item in asked.items]
    groups = [derived(group) for group in asked.groups or ()]
    having = None if asked.having is None else derived(asked.having)
    order = []
    for one in asked.order:
        made = one.copy()
        made.set("this", derived(Term.of(one.this)))
        order.append(made)
    used = _columns_in([*items, *groups, *residuals, *([having] if having else []), *order])
    keys = [key for key in shape.definition.keys if key.name in used] or list(shape.definition.keys[:1])
    names = tuple(key.name for key in keys)

    def sql(view_name: str, table_name: str | None) -> str:
        own = exp.Select(expressions=[column(name) for name in names]).from_(_table(view_name))
        parts = [_restricted(own, residuals)]
        if table_name is not None:
            of_base = [exp.alias_(expression(key.expression), key.name, quoted=True) for key in keys]
            parts.append(_restricted(exp.Select(expressions=of_base).from_(_table(table_name)), _where(asked)))
        select = _named(items).from_(_union(parts).subquery("parts"))
        if asked.groups is not None:
            select = select.group_by(*(group.copy() for group in groups))
        if having is not None:
            select = select.having(having.copy())
        return _finished(select, asked, order)

    return Rewritten(Rewrite.SCAN, names, sql)


# -- trees -------------------------------------------------------------------------------------------------------------


def _placed(tree: exp.Expr, term: Term, places: Mapping[str, exp.Expr]) -> exp.Expr:
    """An expression over groups and aggregates, over the columns that hold them."""
    if (place := places.get(term.text_of(tree))) is not None:
        return place.copy()
    if isinstance(tree, exp.Column):
        raise Missed(Miss.NOT_UNDERSTOOD, f"{shown(render(tree))} is neither a group nor an aggregate")
    made = tree.copy()
    for part, original in zip(list(made.iter_expressions()), list(tree.iter_expressions()), strict=True):
        part.replace(_placed(original, term, places))
    return made


def _ordered(one: exp.Ordered, places: Mapping[str, exp.Expr]) -> exp.Ordered:
    made = one.copy()
    made.set("this", _placed(one.this, Term.of(one.this), places))
    return made


def _outermost(
    asked: Asked, items: list[exp.Expr], having: exp.Expr | None, order: list[exp.Ordered], source: exp.Expr
) -> str:
    select = _named(items).from_(source)
    return _finished(_restricted(select, [having] if having is not None else []), asked, order)


def _named(items: Sequence[exp.Expr]) -> exp.Select:
    """Outputs get their names later: a user may give one name twice."""
    return exp.Select(expressions=[exp.alias_(item.copy(), f"o{n}", quoted=True) for n, item in enumerate(items)])


def _finished(select: exp.Select, asked: Asked, order: Sequence[exp.Ordered]) -> str:
    if order:
        select.set("order", exp.Order(expressions=[one.copy() for one in order]))
    if asked.limit is not None:
        select.set("limit", exp.Limit(expression=asked.limit.copy()))
    if asked.offset is not None:
        select.set("offset", exp.Offset(expression=asked.offset.copy()))
    return render(select)


def _restricted(select: exp.Select, conditions: Iterable[exp.Expr]) -> exp.Select:
    wrapped = [exp.paren(condition.copy()) for condition in conditions]
    return select.where(exp.and_(*wrapped), copy=False) if wrapped else select


def _union(parts: Sequence[exp.Select]) -> exp.Query:
    return parts[0] if len(parts) == 1 else exp.union(*parts, distinct=False)


def _table(name: str) -> exp.Table:
    return exp.Table(this=exp.to_identifier(name, quoted=True))


def _columns_in(trees: Iterable[exp.Expr]) -> tuple[str, ...]:
    return tuple(sorted({found.name for tree in trees for found in tree.find_all(exp.Column)}))
