"""Aggregates in three steps: what a view's rows contribute, what the base table's rows do, and how both are merged.

                     from the view           from the base table        merged
    sum(x)           s                       sum(x)                     sum(...)
    count(x)         c                       count(x)                   coalesce(sum(...), 0)
    avg(x)           a__sum, a__count        sum(x), count(x)           sum(...) / sum(...)
    approx_count_distinct(x)   d__distinct   hll_sketch_agg(hash of x)  hll_sketch_estimate(hll_union_agg(...))

The count of nothing is 0 and the sum of nothing is NULL, in each step. A FILTER that says more than the stored one does
is applied to the view's rows, if it is about their keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlglot import exp

from floodmark.query.asked import Term, conjuncts
from floodmark.query.kinds import PRECISION_MAX, Decimal, Kind, Whole, kind_of, quotient
from floodmark.query.rules import Miss, Missed
from floodmark.query.shapes import ViewShape, column
from floodmark.sql.model import Aggregate
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
    """A column of partial aggregates: of a row of the view, and of a group of rows of the base table.

    Trees are made only for the view that is read in the end; many are looked at.
    """

    of_view: Callable[[], exp.Expr]
    of_base: Callable[[], exp.Expr]
    as_stored: bool
    """Whether the view's column is taken as it is."""


@dataclass(frozen=True, slots=True)
class Merge:
    """An aggregate from the columns that hold its partial aggregates."""

    partials: tuple[Partial, ...]
    over: Callable[[tuple[exp.Expr, ...]], exp.Expr]


class Measure:
    """An aggregate of a query, to be found in views."""

    def __init__(self, term: Term, columns: Mapping[str, str], *, rows_max: int) -> None:
        call, condition = term.tree, None
        if isinstance(call, exp.Filter):
            call, condition = call.this, call.expression.this
        assert isinstance(call, exp.Anonymous), f"{term.text} is no aggregate"
        self._term = term
        self._condition = condition
        self._conditions = {} if condition is None else {(t := Term.of(part)).text: t for part in conjuncts(condition)}
        self._wanted = frozenset(self._conditions)
        self._function = "avg" if call.name.lower() == "mean" else call.name.lower()
        self._argument: Term | None = Term.of(call.expressions[0]) if len(call.expressions) == 1 else None
        self._columns = columns
        self._rows_max = rows_max
        """No group has more rows than the table."""

    def found_in(self, shape: ViewShape) -> Merge:
        """Raises Missed when the view does not have it."""
        function = self._function
        if self._argument is None:
            raise self._missing()
        if function == "count":
            return Merge((self._count(shape),), lambda p: _coalesced_sum(p[0]))
        if function == "sum":
            return self._sum(shape)
        if function == "avg":
            return self._average(shape)
        if function in ("min", "max"):
            return Merge((self._extreme(shape),), lambda p: _function(function, p[0]))
        return self._sketched(shape)

    # -- one aggregate each ----------------------------------------------------------------------------------------

    def _count(self, shape: ViewShape) -> Partial:
        if isinstance(self._counted.tree, exp.Star | exp.Literal | exp.Boolean):
            return self._partial(shape, Aggregate.COUNT_ROWS, "count")
        try:
            return self._partial(shape, Aggregate.COUNT, "count")
        except Missed:
            # Of a key: all rows of its group have it, or none does.
            key = shape.derived(self._counted)
            if key is None:
                raise
            has_value = exp.Not(this=exp.Is(this=exp.paren(key), expression=exp.Null()))
            return self._partial(shape, Aggregate.COUNT_ROWS, "count", also=has_value)

    def _sum(self, shape: ViewShape) -> Merge:
        kind = self._kind()
        try:
            partial = self._partial(shape, Aggregate.SUM, "sum")
        except Missed:
            if isinstance(kind, Whole):
                raise
            # For a mean, decimals are added up as they are, and real numbers as doubles.
            partial = self._partial(shape, Aggregate.SUM_FOR_AVG, "sum")
        if not isinstance(kind, Decimal):
            return Merge((partial,), lambda p: _function("sum", p[0]))
        size = (min(kind.precision + 10, PRECISION_MAX), kind.scale)
        return Merge((partial,), lambda p: _decimal(_function("sum", p[0]), *size))

    def _average(self, shape: ViewShape) -> Merge:
        kind = self._kind()
        count = self._partial(shape, Aggregate.COUNT, "count")
        try:
            total = self._partial(shape, Aggregate.SUM_FOR_AVG, "sum")
        except Missed:
            total = self._partial(shape, Aggregate.SUM, "sum")
        if isinstance(kind, Decimal):
            self._check_rounding(kind)
            return Merge((total, count), lambda p: _decimal_mean(kind, *p))
        doubled = Partial(
            lambda: _double(total.of_view()), lambda: self._base("sum", _double(self._counted.tree)), total.as_stored
        )
        return Merge((doubled, count), lambda p: _quotient(_function("sum", p[0]), _double(_or_null(p[1]))))

    def _check_rounding(self, kind: Decimal) -> None:
        """Spark rounds a mean once. Here it is rounded twice, which is the same as long as the first leaves enough
        digits to tell a half from what is next to it: with n rows, that differs by 1 / 2n of the last digit or more."""
        spare = quotient(_summed(kind), _LONG).scale - (kind.scale + 4)
        if kind.precision + 4 > PRECISION_MAX or spare < 1 or self._rows_max >= 10**spare:
            raise Missed(
                Miss.DECIMAL_AVERAGE,
                f"{shown(self._term.text)} could not be rounded as Spark does it; "
                f"ask for sum and count of {shown(self._counted.text)}",
            )

    def _extreme(self, shape: ViewShape) -> Partial:
        function = self._function
        try:
            return self._partial(shape, Aggregate.MIN if function == "min" else Aggregate.MAX, function)
        except Missed:
            key = shape.derived(self._counted, exactly=True)
            if key is None:
                raise
            extra = self._extra(shape, frozenset())
            return Partial(lambda: _when(extra, key), lambda: self._base(function), as_stored=False)

    def _sketched(self, shape: ViewShape) -> Merge:
        if self._function == "approx_count_distinct":
            hashes = self._partial(shape, Aggregate.DISTINCT, "hll_sketch_agg")
            partial = replace(hashes, of_base=lambda: self._base("hll_sketch_agg", _hash(self._counted.tree)))
            return Merge((partial,), lambda p: _coalesced(_estimate(_function("hll_union_agg", p[0]))))
        if self._function not in _SKETCHES:
            raise self._missing()
        aggregate, union = _SKETCHES[self._function]
        partial = self._partial(shape, aggregate, self._function)
        return Merge((partial,), lambda p: _function(union, p[0]))

    # -- what they have in common ----------------------------------------------------------------------------------

    @property
    def _counted(self) -> Term:
        assert self._argument is not None, f"{self._term.text} has no argument"
        return self._argument

    def _kind(self) -> Kind:
        kind = kind_of(self._counted.tree, self._columns)
        if kind is None:
            raise Missed(
                Miss.TYPE_UNKNOWN,
                f"the type of {shown(self._counted.text)} is not known for certain; write CAST(... AS DOUBLE)",
            )
        return kind

    def _partial(
        self, shape: ViewShape, aggregate: Aggregate, function: str, *, also: exp.Expr | None = None
    ) -> Partial:
        argument = None if aggregate is Aggregate.COUNT_ROWS else self._counted.text
        for condition in shape.conditions:
            stored = shape.stored.get((aggregate, argument, condition))
            if stored is None or not condition <= self._wanted | shape.where:
                continue
            extra = self._extra(shape, condition) + ([] if also is None else [also])
            return self._stored_in(stored.name, extra, function)
        raise self._missing()

    def _stored_in(self, name: str, extra: list[exp.Expr], function: str) -> Partial:
        return Partial(lambda: _when(extra, column(name)), lambda: self._base(function), as_stored=not extra)

    def _extra(self, shape: ViewShape, stored: frozenset[str]) -> list[exp.Expr]:
        """What the query's FILTER says beyond the stored one, over the view's keys."""
        extra = []
        for text, part in self._conditions.items():
            if text in stored or text in shape.where:
                continue
            derived = shape.derived(part)
            if derived is None:
                raise Missed(
                    Miss.AGGREGATE_NOT_IN_VIEW, f"the view cannot tell for which rows {shown(text)} in its FILTER"
                )
            extra.append(derived)
        return extra

    def _base(self, function: str, argument: exp.Expr | None = None) -> exp.Expr:
        call = _function(function, self._counted.tree if argument is None else argument)
        if self._condition is None:
            return call
        return exp.Filter(this=call, expression=exp.Where(this=self._condition.copy()))

    def _missing(self) -> Missed:
        return Missed(Miss.AGGREGATE_NOT_IN_VIEW, f"the view does not have {shown(self._term.text)}")


def _when(conditions: list[exp.Expr], value: exp.Expr) -> exp.Expr:
    if not conditions:
        return value
    return exp.Case(ifs=[exp.If(this=exp.and_(*conditions), true=value)])


def _function(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name.upper(), expressions=[argument.copy() for argument in arguments])


def _coalesced(tree: exp.Expr) -> exp.Expr:
    return _function("coalesce", tree, exp.Literal.number(0))


def _coalesced_sum(partial: exp.Expr) -> exp.Expr:
    return _coalesced(_function("sum", partial))


def _estimate(sketch: exp.Expr) -> exp.Expr:
    return _function("hll_sketch_estimate", sketch)


def _hash(tree: exp.Expr) -> exp.Expr:
    """What the worker stores a sketch of. The hash of NULL is a number, as if it were a value."""
    has_value = exp.Not(this=exp.Is(this=exp.paren(tree.copy()), expression=exp.Null()))
    return exp.Case(ifs=[exp.If(this=has_value, true=_function("xxhash64", tree))])


def _or_null(count: exp.Expr) -> exp.Expr:
    """How many there are; of none there is no mean."""
    return _function("nullif", _coalesced_sum(count), exp.Literal.number(0))


def _quotient(one: exp.Expr, other: exp.Expr) -> exp.Expr:
    return exp.Div(this=one, expression=other, typed=False, safe=False)


def _summed(kind: Decimal) -> Decimal:
    return Decimal(min(kind.precision + 10, PRECISION_MAX), kind.scale)


def _decimal_mean(kind: Decimal, total: exp.Expr, count: exp.Expr) -> exp.Expr:
    summed = _summed(kind)
    exact = _decimal(_function("sum", total), summed.precision, summed.scale)
    divided = _quotient(exact, _decimal(_or_null(count), _LONG.precision, _LONG.scale))
    return _decimal(exp.paren(divided), kind.precision + 4, kind.scale + 4)


def _double(tree: exp.Expr) -> exp.Expr:
    return exp.Cast(this=tree.copy(), to=_type("double").copy())


def _decimal(tree: exp.Expr, precision: int, scale: int) -> exp.Expr:
    return exp.Cast(this=tree, to=_type(f"decimal({precision}, {scale})").copy())


@lru_cache
def _type(text: str) -> exp.DataType:
    return exp.DataType.build(text)
