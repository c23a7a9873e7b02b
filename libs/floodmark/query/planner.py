"""Plans a query: which view serves it with the fewest bytes, and which rows still come from the base table.

    text --> tree, checked --> taken apart --> for each view: does it fit? which of its buckets may be read?
                                           --> the cheapest one, or the base table alone --> QueryPlan

Any doubt falls back to the base table: a rewrite may only lose speed, never rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from sqlglot import exp

from floodmark.core.buckets import BucketGrid
from floodmark.core.intervals import Interval
from floodmark.core.segments import Segment
from floodmark.core.tables import TableDefinition
from floodmark.query.asked import Asked, asked_of, output_name
from floodmark.query.bounds import EVER
from floodmark.query.clock import asks_for_the_time, with_the_time
from floodmark.query.expansion import SourceNames, opened, spelled_out
from floodmark.query.plan import (
    BaseRange,
    Freshness,
    Kind,
    PlanReceipt,
    QueryPlan,
    Rows,
    Source,
    Unused,
    Why,
)
from floodmark.query.rewriting import Rewriter, Rewritten
from floodmark.query.routing import Chosen, Routes, complement
from floodmark.query.rules import Miss, Missed, no_table
from floodmark.query.snapshots import TableSnapshot, ViewSnapshot
from floodmark.query.statements import check_columns, given_names, parsed, table_nodes
from floodmark.sql.functions import GENERATORS
from floodmark.sql.names import Names
from floodmark.sql.parsing import bounded_depth, render
from floodmark.sql.shape import is_row_count

VIEW_SOURCE = "_floodmark_view"
"""A name that no table can have; if a WITH has it, another one is made of it."""
STATEMENTS_KEPT_MAX = 256
KEPT_CHARS_MAX = 4_096


@lru_cache(maxsize=STATEMENTS_KEPT_MAX)
def _parsed_before(select: str) -> exp.Query:
    return parsed(select)


def _parsed(select: str) -> exp.Query:
    """Dashboards ask the same again and again. The tree is never changed; those of long texts are not worth keeping."""
    return _parsed_before(select) if len(select) <= KEPT_CHARS_MAX else parsed(select)


def tables_in(select: str) -> frozenset[str]:
    """The tables and views a query reads, or the rule by which it may not be run."""
    return frozenset(node.name.lower() for node in table_nodes(_parsed(select)))


def plan(
    select: str,
    *,
    tables: Sequence[TableSnapshot],
    views: Sequence[ViewSnapshot],
    freshness: Freshness,
    now_ms: int,
    rewrite: bool = True,
) -> QueryPlan:
    """How to answer the query from these snapshots. `tables` has every table there is a snapshot of."""
    known = {table.definition.name: table for table in tables}
    # A table goes before a view of the same name.
    readable = {view.name: view for view in views if view.name not in known}
    with bounded_depth():
        tree = _parsed(select)
        if asks_for_the_time(tree):
            tree = with_the_time(tree, now_ms, columns=_column_names(tables, readable.values()))
        view = opened(tree, readable)
        # Of the whole query, also for the part of it that is planned: it is put back into its place.
        names = SourceNames(given_names(tree))
        whole = spelled_out(tree if view is None else _parsed(view.inner), known, readable, names)
        made = _Planner(whole, known, names, freshness, now_ms).plan(views, rewrite=rewrite)
        return made if view is None else replace(made, sql=view.around(made.sql), outputs=_output_names(tree))


def _column_names(tables: Iterable[TableSnapshot], views: Iterable[ViewSnapshot]) -> frozenset[str] | None:
    """All that a name in a query may mean. None if those of a table are not known."""
    known = [table.definition.columns for table in tables]
    if not all(known):
        return None
    outputs = (output.name for view in views if view.shape is not None for output in view.shape.definition.outputs)
    return frozenset(name.lower() for name in chain((name for columns in known for name, _ in columns), outputs))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A view that fits: what would be read from its files, and from the table's besides."""

    view: ViewSnapshot
    made: Rewritten
    routes: Routes
    chosen: Chosen
    within: Rows
    base: list[Segment]
    bytes: int

    @property
    def rank(self) -> tuple[int, int, str]:
        return self.bytes, self.chosen.buckets + len(self.base), self.view.name


class _Planner:
    def __init__(
        self,
        tree: exp.Query,
        tables: Mapping[str, TableSnapshot],
        names: SourceNames,
        freshness: Freshness,
        now_ms: int,
    ) -> None:
        self._tree = tree
        self._names = names
        self._read: dict[str, TableSnapshot] = {}
        for node in table_nodes(tree):
            name = names.table_of(node.name.lower())
            if name not in tables:
                raise no_table(name)
            self._read[name] = tables[name]
        check_columns(tree, {name: table.definition for name, table in self._read.items()})
        self._receipt = PlanReceipt(
            registry_versions=tuple((name, table.version) for name, table in sorted(self._read.items())),
            freshness=freshness,
            as_of_ms=min((table.read_at_ms for table in self._read.values()), default=now_ms),
        )

    def plan(self, views: Sequence[ViewSnapshot], *, rewrite: bool) -> QueryPlan:
        candidates = [view for view in views if view.header.definition.table in self._read]
        try:
            asked, table = self._asked()
        except Missed as missed:
            return self._from_base(None, _unused(candidates, missed.rule, str(missed)))
        if not rewrite:
            return self._from_base(asked, _unused(candidates, Miss.REWRITE_OFF, "floodmark.rewrite is off"))
        return self._cheapest(asked, table, candidates)

    def _asked(self) -> tuple[Asked, TableSnapshot]:
        reads = list(table_nodes(self._tree))
        if len(reads) != 1:
            raise Missed(Miss.SEVERAL_TABLES, f"the query reads {len(reads)} tables, views are of one")
        (table,) = self._read.values()
        return asked_of(self._tree, table.definition), table

    def _cheapest(self, asked: Asked, table: TableSnapshot, views: Sequence[ViewSnapshot]) -> QueryPlan:
        found: list[_Candidate] = []
        unused: list[Unused] = []
        columns = dict(table.definition.columns)
        taken = chain(columns, *(view.shape.definition.stored_columns for view in views if view.shape is not None))
        words = (identifier.name for identifier in self._tree.find_all(exp.Identifier))
        rewriter = Rewriter(asked, columns, rows_max=table.rows, names=Names(chain(taken, words)))
        for view in views:
            try:
                found.append(_guessed(asked, table, view, rewriter))
            except Missed as missed:
                unused.append(Unused(view.name, missed.rule, str(missed)))
        best = _best(asked, table, found, unused)
        base_bytes = table.bytes(_outer(asked), timeless=asked.timeless)
        if best is None or best.bytes > base_bytes:
            unused += _costing_more(found, f"the base table has {base_bytes} bytes to read")
            return self._from_base(asked, tuple(unused))
        told = f"view {best.view.name} has {best.bytes} bytes to read"
        unused += _costing_more([other for other in found if other.view is not best.view], told)
        return self._from_view(asked, table, best, tuple(unused))

    # -- the two kinds of plans ------------------------------------------------------------------------------------

    def _from_view(self, asked: Asked, table: TableSnapshot, best: _Candidate, unused: tuple[Unused, ...]) -> QueryPlan:
        chosen, definition = best.chosen, best.view.header.definition
        view_name = self._names.of(VIEW_SOURCE)
        statement = best.made.over(view_name, self._names.of(table.definition.name) if best.base else None)
        view = Source(
            name=view_name,
            kind=Kind.VIEW,
            of=best.view.name,
            location=definition.location,
            files=chosen.files,
            columns=statement.view_columns,
            table=table.definition,
            definition=best.view.shape.definition if best.view.shape else None,
        )
        sources = [view]
        if best.base:
            sources.append(self._base_source(table, best.base, asked.columns, within=best.within))
        receipt = replace(
            self._receipt,
            view=best.view.name,
            rewrite=best.made.kind,
            from_view=chosen.runs.intervals,
            buckets_from_view=chosen.buckets,
            bytes_from_view=chosen.bytes,
            from_base=_told(best, table),
            bytes_from_base=sum(s.bytes for s in best.base),
            unused=unused,
        )
        return QueryPlan(statement.sql, tuple(sources), asked.names, receipt)

    def _from_base(self, asked: Asked | None, unused: tuple[Unused, ...]) -> QueryPlan:
        """The query as it stands, over as many of the tables' files as its conditions on time leave."""
        if asked is None:
            sources = tuple(
                self._base_source(table, table.everything(), _mentioned(self._tree, table.definition))
                for _, table in sorted(self._read.items())
            )
            names = _output_names(self._tree)
        else:
            (table,) = self._read.values()
            files = table.segments(_outer(asked), timeless=asked.timeless)
            sources, names = (self._base_source(table, files, asked.columns),), asked.names
        receipt = replace(self._receipt, bytes_from_base=sum(s.bytes for s in sources), unused=unused)
        return QueryPlan(render(self._tree), sources, names, receipt)

    def _base_source(
        self, table: TableSnapshot, segments: list[Segment], columns: frozenset[str], *, within: Rows | None = None
    ) -> Source:
        definition = table.definition
        ordered = tuple(name for name, _ in definition.columns if name in columns) or tuple(sorted(columns))
        name, files = self._names.of(definition.name), table.files(segments)
        return Source(name, Kind.BASE, definition.name, definition.location, files, ordered, definition, within=within)


def _guessed(asked: Asked, table: TableSnapshot, view: ViewSnapshot, rewriter: Rewriter) -> _Candidate:
    """A view that fits, at the cost it had when it was last routed. Routing all of them anew would take its time."""
    if view.shape is None:
        raise Missed(Miss.NO_DEFINITION, view.refusal)
    made = rewriter.rewritten(view.shape)
    if (known := view.router.latest) is not None:
        with suppress(Missed):
            return _candidate(asked, table, view, made, known)
    return _candidate(asked, table, view, made, view.routes(table))


def _candidate(asked: Asked, table: TableSnapshot, view: ViewSnapshot, made: Rewritten, routes: Routes) -> _Candidate:
    outer, inner = asked.bounds.outer, asked.bounds.inner
    if outer is None or inner is None:
        raise Missed(Miss.NOTHING_CURRENT, "no whole bucket lies in the query's range of time")
    grid = view.header.definition.grid
    chosen = routes.chosen(_worth_reading(inner, outer, grid))
    if not chosen.buckets:
        raise Missed(Miss.NOTHING_CURRENT, "it has no bucket in the query's range that is as the table is now")
    left = complement(chosen.runs, outer)
    base = table.segments(left, timeless=asked.timeless)
    size = chosen.bytes + sum(s.bytes for s in base)
    return _Candidate(view, made, routes, chosen, Rows(left, asked.timeless), base, size)


def _worth_reading(inner: Interval, outer: Interval, grid: BucketGrid) -> Interval:
    """The buckets in which all rows are wanted, without those in which none can be."""
    if outer == EVER:
        return inner
    start_ms = max(inner.start_ms, grid.start_of(outer.start_ms))
    end_ms = min(inner.end_ms, grid.start_of(outer.end_ms - 1) + grid.width_ms)
    return Interval(start_ms, max(end_ms, start_ms + 1))


def _best(asked: Asked, table: TableSnapshot, found: list[_Candidate], unused: list[Unused]) -> _Candidate | None:
    """The one with the fewest bytes, routed against this very table. Others only as far as they may be better.

    One that turns out to have nothing to read goes from those found to those unused.
    """
    exact: dict[str, _Candidate] = {}

    def rank(one: _Candidate) -> tuple[int, int, str]:
        return (exact.get(one.view.name) or one).rank

    while found:
        best = min(found, key=rank)
        if best.view.name in exact:
            return exact[best.view.name]
        try:
            routes = best.view.routes(table)
            exact[best.view.name] = _candidate(asked, table, best.view, best.made, routes)
        except Missed as missed:
            found.remove(best)
            unused.append(Unused(best.view.name, missed.rule, str(missed)))
    return None


def _costing_more(found: Sequence[_Candidate], instead: str) -> list[Unused]:
    return [Unused(one.view.name, Miss.COSTS_MORE, f"it fits, but {instead}, which is less") for one in found]


def _told(best: _Candidate, table: TableSnapshot) -> tuple[BaseRange, ...]:
    told = best.routes.told(best.within.ranges, extent=table.extent)
    if best.within.timeless and any(s.timeless_rows != 0 for s in best.base):
        told += (BaseRange(None, Why.TIMELESS),)
    return told


def _mentioned(tree: exp.Query, table: TableDefinition) -> frozenset[str]:
    """The columns that a query can mean: all of them when it does not name each."""
    everything = frozenset(name for name, _ in table.columns)
    stars = (star for star in tree.find_all(exp.Star) if not is_row_count(star))
    natural = any(join.args.get("method") == "NATURAL" for join in tree.find_all(exp.Join))
    # FROM trips AS x(a, b): the names are those of all columns, by position.
    renamed = any(alias.columns for node in tree.find_all(exp.Table) if (alias := node.args.get("alias")) is not None)
    if natural or renamed or next(stars, None) is not None:
        return everything
    words = {identifier.name.lower() for identifier in tree.find_all(exp.Identifier)}
    return frozenset(name for name in everything if name.lower() in words) | {table.time_column}


def _output_names(tree: exp.Query) -> tuple[str, ...] | None:
    first: exp.Expr = tree
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    if not isinstance(first, exp.Select) or any(map(_may_be_several, first.expressions)):
        return None
    return tuple(output_name(item) for item in first.expressions)


def _may_be_several(item: exp.Expr) -> bool:
    """Columns, of one output."""
    return item.is_star or any(call.name.lower() in GENERATORS for call in item.find_all(exp.Anonymous))


def _unused(views: Sequence[ViewSnapshot], rule: Miss, message: str) -> tuple[Unused, ...]:
    return tuple(Unused(view.name, rule, message) for view in views)


def _outer(asked: Asked) -> tuple[Interval, ...]:
    return () if asked.bounds.outer is None else (asked.bounds.outer,)
