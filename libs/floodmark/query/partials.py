"""Aggregates in three steps: what a view's rows contribute, what the base table's rows do, and how both are merged.

                     from the view           from the base table        merged
    sum(x)           s                       sum(x)                     sum(...)
    count(x)         c                       count(x)                   coalesce(sum(...), 0)
    avg(x)           a__sum, a__count        sum(x), count(x)           sum(...) / sum(...)
    approx_count_distinct(x)   d__hll        hll_sketch_agg(x)          hll_sketch_estimate(hll_union_agg(...))

The count of nothing is 0 and the sum of nothing is NULL, in each step. A FILTER that says more than the stored one does
is applied to the view's rows, if it is about their keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from floodmark.query.asked import Term, conjuncts
from floodmark.query.kinds import PRECISION_MAX, Decimal, Kind, Whole, kind_of, quotient
from floodmark.query.rules import Miss, Missed
from floodmark.query.shapes import ViewShape, column
from floodmark.sql.model import Aggregate
from floodmark.sql.parsing import render
from floodmark.sql.rules import shown

_SKETCHES: Mapping[str, tuple[Aggregate, str]] = {
    "hll_sketch_agg": (Aggregate.HLL, "hll_union_agg"),
    "theta_sketch_agg": (Aggregate.THETA, "theta_union_agg"),
    "kll_sketch_agg_bigint": (Aggregate.KLL_BIGINT, "kll_merge_agg_bigint"),
    "kll_sketch_agg_double": (Aggregate.KLL_DOUBLE, "kll_merge_agg_double"),
    "kll_sketch_agg_float": (Aggregate.KLL_FLOAT, "kll_merge_agg_float"),
}
_LONG = Decimal(20, 0)
"""A bigint, where it meets a decimal."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A column of partial aggregates: of a row of the view, and of a group of rows of the base table."""

    of_view: exp.Expr
    of_base: exp.Expr


@dataclass(frozen=True, slots=True)
class Merge:
    """An aggregate from its partial columns: `{0}` and `{1}` in the tree stand for them."""

    partials: tuple[Partial, ...]
    tree: exp.Expr

    def over(self, names: tuple[str, ...]) -> exp.Expr:
        made = self.tree.copy()
        for place in list(made.find_all(exp.Placeholder)):
            place.replace(column(names[int(place.name)]))
        return made


class Merger:
    """Finds for aggregates of one query what a view has for them."""

    def __init__(self, shape: ViewShape, columns: Mapping[str, str], *, rows_max: int) -> None:
        self._shape = shape
        self._columns = columns
        self._rows_max = rows_max
        """No group has more rows than the table."""

    def merge(self, term: Term) -> Merge:
        """Raises Missed when the view does not have it."""
        call, condition = term.tree, None
        if isinstance(call, exp.Filter):
            call, condition = call.this, call.expression.this
        if not isinstance(call, exp.Anonymous) or len(call.expressions) != 1:
            raise self._missing(term)
        return _Call(self, term, call, condition, self._shape, self._columns, self._rows_max).merge()

    @staticmethod
    def _missing(term: Term) -> Missed:
        return Missed(Miss.AGGREGATE_NOT_IN_VIEW, f"the view does not have {shown(term.text)}")


@dataclass(frozen=True, slots=True)
class _Call:
    merger: Merger
    term: Term
    call: exp.Anonymous
    condition: exp.Expr | None
    shape: ViewShape
    columns: Mapping[str, str]
    rows_max: int

    def merge(self) -> Merge:
        name = "avg" if self.call.name.lower() == "mean" else self.call.name.lower()
        if name == "count":
            return Merge((self._count(),), _coalesced_sum(0))
        if name == "sum":
            return self._sum()
        if name == "avg":
            return self._average()
        if name in ("min", "max"):
            return Merge((self._extreme(name),), _function(name, _place(0)))
        if name == "approx_count_distinct":
            partial = self._partial(Aggregate.HLL, "hll_sketch_agg")
            estimate = _function("hll_sketch_estimate", _function("hll_union_agg", _place(0)))
            return Merge((partial,), _function("coalesce", estimate, exp.Literal.number(0)))
        if name in _SKETCHES:
            aggregate, union = _SKETCHES[name]
            return Merge((self._partial(aggregate, name),), _function(union, _place(0)))
        raise self._missing()

    # -- one aggregate each ----------------------------------------------------------------------------------------

    def _count(self) -> Partial:
        if _counts_rows(self.argument):
            return self._partial(Aggregate.COUNT_ROWS, "count")
        try:
            return self._partial(Aggregate.COUNT, "count")
        except Missed:
            # Of a key: all rows of its group have it, or none does.
            key = self.shape.derived(Term.of(self.argument))
            if key is None:
                raise
            has_value = exp.Not(this=exp.Is(this=exp.paren(key), expression=exp.Null()))
            return self._partial(Aggregate.COUNT_ROWS, "count", also=has_value)

    def _sum(self) -> Merge:
        kind = self._kind()
        try:
            partial = self._partial(Aggregate.SUM, "sum")
        except Missed:
            if isinstance(kind, Whole):
                raise
            # For a mean, decimals are added up as they are, and real numbers as doubles.
            partial = self._partial(Aggregate.SUM_FOR_AVG, "sum")
        merged = _function("sum", _place(0))
        if isinstance(kind, Decimal):
            merged = _decimal(merged, min(kind.precision + 10, PRECISION_MAX), kind.scale)
        return Merge((partial,), merged)

    def _average(self) -> Merge:
        kind = self._kind()
        count = self._partial(Aggregate.COUNT, "count")
        total, number = _function("sum", _place(0)), _function("nullif", _coalesced_sum(1), exp.Literal.number(0))
        if isinstance(kind, Decimal):
            mean = self._decimal_mean(kind, total, number)
            return Merge((self._either_sum(), count), mean)
        partial = self._either_sum()
        doubled = Partial(_double(partial.of_view), self._base("sum", _double(self.argument)))
        return Merge((doubled, count), exp.Div(this=total, expression=_double(number), typed=False, safe=False))

    def _either_sum(self) -> Partial:
        try:
            return self._partial(Aggregate.SUM_FOR_AVG, "sum")
        except Missed:
            return self._partial(Aggregate.SUM, "sum")

    def _decimal_mean(self, kind: Decimal, total: exp.Expr, number: exp.Expr) -> exp.Expr:
        """Spark rounds a mean once. Here it is rounded twice, which is the same as long as the first leaves enough
        digits to tell a half from what is next to it: with n rows, that differs by 1 / 2n of the last digit or more."""
        summed = Decimal(min(kind.precision + 10, PRECISION_MAX), kind.scale)
        spare = quotient(summed, _LONG).scale - (kind.scale + 4)
        if kind.precision + 4 > PRECISION_MAX or spare < 1 or self.rows_max >= 10**spare:
            raise Missed(
                Miss.DECIMAL_AVERAGE,
                f"{shown(self.term.text)} could not be rounded as Spark does it; "
                f"ask for sum and count of {shown(render(self.argument))}",
            )
        exact = _decimal(total, summed.precision, summed.scale)
        divided = exp.Div(this=exact, expression=_decimal(number, 20, 0), typed=False, safe=False)
        return _decimal(exp.paren(divided), kind.precision + 4, kind.scale + 4)

    def _extreme(self, name: str) -> Partial:
        try:
            return self._partial(Aggregate.MIN if name == "min" else Aggregate.MAX, name)
        except Missed:
            key = self.shape.derived(Term.of(self.argument))
            if key is None:
                raise
            extra = self._extra(frozenset())
            return Partial(_when(extra, key), self._base(name, self.argument))

    # -- what they have in common ----------------------------------------------------------------------------------

    @property
    def argument(self) -> exp.Expr:
        argument: exp.Expr = self.call.expressions[0]
        return argument

    def _kind(self) -> Kind:
        kind = kind_of(self.argument, self.columns)
        if kind is None:
            raise Missed(
                Miss.TYPE_UNKNOWN,
                f"the type of {shown(render(self.argument))} is not known for certain; write CAST(... AS DOUBLE)",
            )
        return kind

    def _partial(self, aggregate: Aggregate, function: str, *, also: exp.Expr | None = None) -> Partial:
        argument = None if aggregate is Aggregate.COUNT_ROWS else render(self.argument)
        wanted = frozenset(self._conditions())
        for condition in sorted(self.shape.conditions, key=len, reverse=True):
            stored = self.shape.stored.get((aggregate, argument, condition))
            if stored is None or not condition <= wanted | self.shape.where:
                continue
            extra = self._extra(condition)
            if also is not None:
                extra = [*extra, also]
            return Partial(_when(extra, column(stored.name)), self._base(function, self.argument))
        raise self._missing()

    def _conditions(self) -> dict[str, exp.Expr]:
        found = [] if self.condition is None else conjuncts(self.condition)
        return {Term.of(part).text: part for part in found}

    def _extra(self, stored: frozenset[str]) -> list[exp.Expr]:
        """What the query's FILTER says beyond the stored one, over the view's keys."""
        extra = []
        for text, part in self._conditions().items():
            if text in stored or text in self.shape.where:
                continue
            derived = self.shape.derived(Term.of(part))
            if derived is None:
                raise Missed(
                    Miss.AGGREGATE_NOT_IN_VIEW, f"the view cannot tell for which rows {shown(text)} in its FILTER"
                )
            extra.append(derived)
        return extra

    def _base(self, function: str, argument: exp.Expr) -> exp.Expr:
        call = _function(function, argument.copy())
        if self.condition is None:
            return call
        return exp.Filter(this=call, expression=exp.Where(this=self.condition.copy()))

    def _missing(self) -> Missed:
        return Missed(Miss.AGGREGATE_NOT_IN_VIEW, f"the view does not have {shown(self.term.text)}")


def _counts_rows(argument: exp.Expr) -> bool:
    return isinstance(argument.unnest(), exp.Star | exp.Literal | exp.Boolean)


def _when(conditions: list[exp.Expr], value: exp.Expr) -> exp.Expr:
    if not conditions:
        return value
    return exp.Case(ifs=[exp.If(this=exp.and_(*conditions), true=value)])


def _place(number: int) -> exp.Expr:
    return exp.Placeholder(this=str(number))


def _function(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name.upper(), expressions=list(arguments))


def _coalesced_sum(number: int) -> exp.Expr:
    return _function("coalesce", _function("sum", _place(number)), exp.Literal.number(0))


def _double(tree: exp.Expr) -> exp.Expr:
    return exp.Cast(this=tree.copy(), to=exp.DataType.build("double"))


def _decimal(tree: exp.Expr, precision: int, scale: int) -> exp.Expr:
    return exp.Cast(this=tree, to=exp.DataType.build(f"decimal({precision}, {scale})"))
