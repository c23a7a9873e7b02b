"""A query over a table, put together anew over a view and what of the table the view cannot answer.

    groups, aggregates and conditions  -- all found in the view? -->

    SELECT items, HAVING, ORDER BY, LIMIT over groups and aggregates
    FROM (SELECT k0, ..., merge(p0), ...            one merged aggregation
          FROM (SELECT key AS k0, stored AS p0 FROM the view's files WHERE what the keys can tell
                UNION ALL
                SELECT group AS k0, partial aggregate AS p0 FROM the table's files WHERE ... GROUP BY group)
          GROUP BY k0, ...)

A view that keeps rows one by one is read the same way, without the aggregation in the middle. Trees are put together,
never text. Every name above (k0, p0, a0, o0, and those of the subselects) comes from a supply that has none of the
query's, the table's or the views' own; every parameter of a lambda is named anew once its body is complete.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from floodmark.query.asked import Asked, Term
from floodmark.query.partials import Measure, Merge
from floodmark.query.plan import Rewrite
from floodmark.query.rules import Miss, Missed
from floodmark.query.shapes import ViewShape, column, expression
from floodmark.sql.lambdas import rename_parameters
from floodmark.sql.names import Names
from floodmark.sql.parsing import render
from floodmark.sql.rules import shown


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL over a view's source and a table's, and the columns of the view's files that it reads."""

    sql: str
    view_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A query that a view can serve. It is put together only if the view is read in the end."""

    kind: Rewrite
    over: Callable[[str, str | None], Statement]
    """The names of the view's source and of the table's; None when nothing is read from the table."""


class Rewriter:
    """One query, to be found in many views."""

    def __init__(self, asked: Asked, columns: Mapping[str, str], *, rows_max: int, names: Names) -> None:
        """`names` are different from everything that the query, the table and the views to be read call theirs."""
        self._asked = asked
        self._names = names
        self._texts = {condition.term.text for condition in asked.where}
        self._measures = [Measure(term, columns, rows_max=rows_max) for term in asked.aggregates]
        self._outermost: _Outermost | Missed | None = None

    def rewritten(self, shape: ViewShape) -> Rewritten:
        """Raises Missed with the rule by which the view cannot serve the query."""
        residuals = self._residuals(shape)
        if shape.definition.is_projection:
            return _scan(self._asked, shape, residuals, self._names)
        if not self._asked.is_aggregate:
            raise Missed(Miss.NOT_ROWS, "the query wants single rows, and the view keeps groups")
        return self._rollup(shape, residuals)

    def _residuals(self, shape: ViewShape) -> list[exp.Expr]:
        """The conditions that the view's rows have yet to satisfy. Those on time are satisfied by whole buckets."""
        if missing := shape.where - self._texts:
            told = f"the view has only rows with {shown(min(missing))}; the query wants others"
            raise Missed(Miss.FILTER_OF_VIEW, told)
        residuals = []
        for condition in self._asked.where:
            if condition.term.text in shape.where or condition.bounds is not None:
                continue
            derived = shape.derived(condition.term)
            if derived is None:
                told = f"the view does not keep what {shown(condition.term.text)} looks at"
                raise Missed(Miss.FILTER_NOT_IN_VIEW, told)
            residuals.append(derived)
        return residuals

    # -- groups --------------------------------------------------------------------------------------------------------

    def _rollup(self, shape: ViewShape, residuals: list[exp.Expr]) -> Rewritten:
        asked, groups, names = self._asked, self._asked.groups or (), self._names
        keys = [_key(group, shape) for group in groups]
        merges = [measure.found_in(shape) for measure in self._measures]
        outermost = self._placed()
        stored = all(partial.as_stored for merge in merges for partial in merge.partials)
        exact = stored and not residuals and {group.text for group in groups} == shape.keys.keys()

        def over(view: str, table: str | None) -> Statement:
            own = _Side(keys, [partial.of_view() for merge in merges for partial in merge.partials], residuals)
            parts = [own.select(view, names)]
            if table is not None:
                partials = [partial.of_base() for merge in merges for partial in merge.partials]
                base = _Side([group.tree for group in groups], partials, _where(asked))
                parts.append(base.select(table, names, grouped=asked.groups is not None))
            merged = _merged(len(keys), merges, _union(parts), names, grouped=asked.groups is not None)
            select = outermost.over(merged.subquery(names.of("merged")), asked, names)
            return Statement(select, _columns_in(own.trees()))

        return Rewritten(Rewrite.EXACT if exact else Rewrite.ROLLUP, over)

    def _placed(self) -> "_Outermost":
        """The same for every view."""
        if self._outermost is None:
            try:
                self._outermost = _Outermost.of(self._asked, self._names)
            except Missed as missed:
                self._outermost = missed
        if isinstance(self._outermost, Missed):
            raise self._outermost
        return self._outermost


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

    def select(self, source: str, names: Names, *, grouped: bool = False) -> exp.Select:
        named = [_alias(key, names.of(f"k{n}")) for n, key in enumerate(self.keys)]
        named += [_alias(part, names.of(f"p{n}")) for n, part in enumerate(self.partials)]
        made = _restricted(exp.Select(expressions=named).from_(_table(source, names), copy=False), self.where)
        return made.group_by(*(key.copy() for key in self.keys), copy=False) if grouped else made

    def trees(self) -> list[exp.Expr]:
        return [*self.keys, *self.partials, *self.where]


def _merged(keys: int, merges: Sequence[Merge], union: exp.Query, names: Names, *, grouped: bool) -> exp.Select:
    named: list[exp.Expr] = [column(names.of(f"k{n}")) for n in range(keys)]
    first = 0
    for n, merge in enumerate(merges):
        partials = tuple(column(names.of(f"p{first + m}")) for m in range(len(merge.partials)))
        named.append(_alias(merge.over(partials), names.of(f"a{n}")))
        first += len(partials)
    made = exp.Select(expressions=named).from_(union.subquery(names.of("parts"), copy=False), copy=False)
    return made.group_by(*(column(names.of(f"k{n}")) for n in range(keys)), copy=False) if grouped else made


@dataclass(frozen=True, slots=True)
class _Outermost:
    """Outputs, HAVING and ORDER BY over the columns k0, k1, ... of groups and a0, a1, ... of aggregates."""

    items: list[exp.Expr]
    having: exp.Expr | None
    order: list[exp.Ordered]

    @classmethod
    def of(cls, asked: Asked, names: Names) -> "_Outermost":
        places = {group.text: column(names.of(f"k{n}")) for n, group in enumerate(asked.groups or ())}
        places |= {term.text: column(names.of(f"a{n}")) for n, term in enumerate(asked.aggregates)}
        order = []
        for one in asked.order:
            made = one.copy()
            made.set("this", _placed(one.this, Term.of(one.this), places))
            order.append(made)
        return cls(
            [_placed(item.tree, item, places) for item in asked.items],
            None if asked.having is None else _placed(asked.having.tree, asked.having, places),
            order,
        )

    def over(self, source: exp.Expr, asked: Asked, names: Names) -> str:
        select = _named(self.items, names).from_(source, copy=False)
        return _finished(_restricted(select, [] if self.having is None else [self.having]), asked, self.order)


# -- rows --------------------------------------------------------------------------------------------------------------


def _scan(asked: Asked, shape: ViewShape, residuals: list[exp.Expr], names: Names) -> Rewritten:
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
    kept = tuple(key.name for key in keys)

    def over(view_name: str, table_name: str | None) -> Statement:
        own = exp.Select(expressions=[column(name) for name in kept]).from_(_table(view_name, names))
        parts = [_restricted(own, residuals)]
        if table_name is not None:
            of_base = exp.Select(expressions=[_alias(expression(key.expression), key.name) for key in keys])
            parts.append(_restricted(of_base.from_(_table(table_name, names)), _where(asked)))
        select = _named(items, names).from_(_union(parts).subquery(names.of("parts")))
        if asked.groups is not None:
            select = select.group_by(*(group.copy() for group in groups))
        if having is not None:
            select = select.having(having.copy())
        return Statement(_finished(select, asked, order), kept)

    return Rewritten(Rewrite.SCAN, over)


# -- trees -------------------------------------------------------------------------------------------------------------


def _placed(tree: exp.Expr, term: Term, places: Mapping[str, exp.Expr]) -> exp.Expr:
    """An expression over groups and aggregates, over the columns that hold them."""
    if isinstance(tree, exp.Identifier):
        return tree.copy()  # of a field, a parameter or an alias
    if not term.is_open(tree) and (place := places.get(term.text_of(tree))) is not None:
        return place.copy()
    if isinstance(tree, exp.Column):
        raise Missed(Miss.NOT_UNDERSTOOD, f"{shown(render(tree))} is neither a group nor an aggregate")
    made = tree.copy()
    for part, original in zip(list(made.iter_expressions()), list(tree.iter_expressions()), strict=True):
        part.replace(_placed(original, term, places))
    return made


def _named(items: Sequence[exp.Expr], names: Names) -> exp.Select:
    """Outputs get their names later: a user may give one name twice, or that of a column the rows are ordered by."""
    return exp.Select(expressions=[_alias(item, names.of(f"o{n}")) for n, item in enumerate(items)])


def _alias(tree: exp.Expr, name: str) -> exp.Expr:
    return exp.alias_(tree.copy(), name, quoted=True)


def _finished(select: exp.Select, asked: Asked, order: Sequence[exp.Ordered]) -> str:
    if order:
        select.set("order", exp.Order(expressions=[one.copy() for one in order]))
    if asked.limit is not None:
        select.set("limit", exp.Limit(expression=asked.limit.copy()))
    if asked.offset is not None:
        select.set("offset", exp.Offset(expression=asked.offset.copy()))
    return render(rename_parameters(select), used_up=True)


def _restricted(select: exp.Select, conditions: Iterable[exp.Expr]) -> exp.Select:
    wrapped = [exp.paren(condition.copy()) for condition in conditions]
    return select.where(exp.and_(*wrapped), copy=False) if wrapped else select


def _union(parts: Sequence[exp.Select]) -> exp.Query:
    return parts[0] if len(parts) == 1 else exp.union(*parts, distinct=False)


def _table(name: str, names: Names) -> exp.Table:
    """By another name than any column has: `trips.n` would be a column of the table before it is a field."""
    alias = exp.TableAlias(this=exp.to_identifier(names.of("source"), quoted=True))
    return exp.Table(this=exp.to_identifier(name, quoted=True), alias=alias)


def _columns_in(trees: Iterable[exp.Expr]) -> tuple[str, ...]:
    return tuple(sorted({found.name for tree in trees for found in tree.find_all(exp.Column)}))
