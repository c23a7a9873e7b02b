"""A query over one table, taken apart so that it can be put together over a view.

    SELECT zone, sum(fare) / count(*) AS mean FROM trips WHERE fare > 0 GROUP BY zone HAVING count(*) > 9 ORDER BY mean
           ----  ------------------              --------           ----        --------            -----
           group, aggregates                     conjuncts          groups      over groups and aggregates alike

Every expression is over the table's own column names; names of outputs are replaced by what they stand for.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sqlglot import exp

from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.tables import TableDefinition
from floodmark.query.bounds import EVER, Bounds, TimeColumn
from floodmark.query.rules import Miss, Missed
from floodmark.sql.columns import Columns
from floodmark.sql.grouping import grouped_items
from floodmark.sql.lambdas import is_open
from floodmark.sql.measures import aggregates_in
from floodmark.sql.parsing import render
from floodmark.sql.rules import Rule, shown
from floodmark.sql.shape import check_expression

_PARTS = {"expressions", "from_", "where", "group", "having", "order", "limit", "offset"}


@dataclass(frozen=True, slots=True)
class Term:
    """An expression and its one spelling, by which it is recognised."""

    tree: exp.Expr
    text: str
    has_lambda: bool = field(compare=False)
    _texts: dict[int, str] = field(default_factory=dict, compare=False, repr=False)
    """Of its parts, by identity: many views are asked about the same expression."""

    @classmethod
    def of(cls, tree: exp.Expr) -> "Term":
        tree = tree.unnest()
        return cls(tree, render(tree), tree.find(exp.Lambda) is not None)

    def is_open(self, part: exp.Expr) -> bool:
        """Whether the part uses a parameter of a lambda around it. Its text may then be a column's."""
        return self.has_lambda and is_open(part)

    def text_of(self, part: exp.Expr) -> str:
        part = part.unnest()
        if part is self.tree:
            return self.text
        text = self._texts.get(id(part))
        if text is None:
            text = self._texts[id(part)] = render(part)
        return text


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the conditions that must all hold."""

    term: Term
    bounds: Bounds | None
    """What it says of the time column, if it says nothing else."""
    outer: Interval | None
    """Where rows can satisfy it at all."""

    @property
    def needs_time(self) -> bool:
        """A comparison with nothing is never true."""
        return self.bounds is not None or self.outer != EVER


@dataclass(frozen=True, slots=True)
class Asked:
    names: tuple[str, ...]
    items: tuple[Term, ...]
    where: tuple[Condition, ...]
    groups: tuple[Term, ...] | None
    """None without GROUP BY."""
    having: Term | None
    order: tuple[exp.Ordered, ...]
    limit: exp.Expr | None
    offset: exp.Expr | None
    columns: frozenset[str]
    """The table's columns that are read."""
    bounds: Bounds
    timeless: bool
    """Whether rows without a time can satisfy the conditions."""

    aggregates: tuple[Term, ...]
    """Each once, with its FILTER."""

    @property
    def is_aggregate(self) -> bool:
        return self.groups is not None or bool(self.aggregates)


def _aggregates(trees: Iterable[exp.Expr]) -> tuple[Term, ...]:
    calls = (call for tree in trees for call in aggregates_in(tree))
    terms = [Term.of(call.parent if isinstance(call.parent, exp.Filter) else call) for call in calls]
    if inside := [term.text for term in terms if is_open(term.tree)]:
        raise Missed(Miss.NOT_UNDERSTOOD, f"{shown(inside[0])} is of a parameter, not of rows")
    return tuple({term.text: term for term in terms}.values())


def asked_of(tree: exp.Query, table: TableDefinition) -> Asked:
    """Raises Missed for what is left to Spark as it stands, and InvalidInput for a column that does not exist."""
    if not isinstance(tree, exp.Select):
        raise Missed(Miss.NOT_UNDERSTOOD, "it is more than one SELECT")
    for part, value in tree.args.items():
        if value and part not in _PARTS:
            raise Missed(Miss.NOT_UNDERSTOOD, f"{part.strip('_').upper()} is not looked into")
    return _Reader(tree, table).asked()


class _Reader:
    def __init__(self, tree: exp.Select, table: TableDefinition) -> None:
        clause = tree.args.get("from_")
        if clause is None or not tree.expressions:
            raise Missed(Miss.NOT_UNDERSTOOD, "there is no FROM, or nothing is selected")
        source = clause.this
        if not isinstance(source, exp.Table) or any(v for k, v in source.args.items() if k not in ("this", "alias")):
            raise Missed(Miss.NOT_UNDERSTOOD, f"FROM {shown(render(source))} is more than a table")
        alias = source.args.get("alias")
        if alias is not None and alias.columns:
            raise Missed(Miss.NOT_UNDERSTOOD, f"{shown(render(alias))} names columns anew")
        self._tree = tree
        self._table = table
        self._time = TimeColumn(table.time_column, dict(table.columns).get(table.time_column, ""), table.time_unit)
        self._qualifier = source.alias_or_name.lower()
        self._known = Columns(dict(table.columns), qualifier=self._qualifier, time_column=table.time_column)
        self._names: list[str] = []
        self._items: list[Term] = []

    def asked(self) -> Asked:
        for item in self._expanded():
            self._names.append(output_name(item))
            self._items.append(self._term(item.this if isinstance(item, exp.Alias) else item))
        where = tuple(self._conditions())
        bounds = Bounds()
        for condition in where:
            bounds = bounds.and_(condition.bounds or Bounds(outer=condition.outer))
        clause = self._tree.args.get("having")
        having = None if clause is None else self._over_outputs(clause.this)
        order = tuple(self._order())
        return Asked(
            names=tuple(self._names),
            items=tuple(self._items),
            where=where,
            groups=self._groups(),
            having=having,
            order=order,
            limit=_count(self._tree.args.get("limit")),
            offset=_count(self._tree.args.get("offset")),
            columns=frozenset(self._known.read),
            bounds=bounds,
            timeless=not any(condition.needs_time for condition in where),
            aggregates=_aggregates([*(t.tree for t in self._items), *([having.tree] if having else []), *order]),
        )

    def _expanded(self) -> Iterator[exp.Expr]:
        for item in self._tree.expressions:
            star = item.this if isinstance(item, exp.Column) else item
            if not isinstance(star, exp.Star):
                yield item
            elif not self._is_every_column(item, star):
                raise Missed(Miss.NOT_UNDERSTOOD, f"{shown(render(item))} is left to Spark")
            else:
                yield from (exp.column(name, quoted=True) for name, _ in self._table.columns)

    def _is_every_column(self, item: exp.Expr, star: exp.Star) -> bool:
        """Not of s.*, which is every field of a struct s."""
        qualifiers = [part.name.lower() for part in item.parts[:-1]] if isinstance(item, exp.Column) else []
        is_plain = bool(self._table.columns) and not any(star.args.values())
        return is_plain and qualifiers in ([], [self._qualifier])

    def _term(self, tree: exp.Expr) -> Term:
        return Term.of(self._resolved(tree))

    def _resolved(self, tree: exp.Expr) -> exp.Expr:
        try:
            check_expression(tree)
            return self._known.resolved(tree)
        except InvalidInput as error:
            if error.rule == Rule.UNKNOWN_COLUMN and not self._names_an_output(tree):
                raise
            raise Missed(Miss.NOT_UNDERSTOOD, str(error)) from error

    def _names_an_output(self, tree: exp.Expr) -> bool:
        """Spark lets an output be used in another one, and in ORDER BY."""
        names = {item.alias.lower() for item in self._tree.expressions if isinstance(item, exp.Alias)}
        firsts = [column.parts[0].name for column in tree.find_all(exp.Column)]
        return any(first.lower() in names and not self._known.has(first) for first in firsts)

    def _conditions(self) -> Iterator[Condition]:
        where = self._tree.args.get("where")
        if where is None:
            return
        for part in conjuncts(self._resolved(where.this)):
            if aggregates_in(part):
                raise Missed(Miss.NOT_UNDERSTOOD, f"{shown(render(part))} has an aggregate in WHERE")
            yield Condition(Term.of(part), self._time.bounds(part), self._time.outer(part))

    # -- names of outputs ------------------------------------------------------------------------------------------

    def _groups(self) -> tuple[Term, ...] | None:
        group = self._tree.args.get("group")
        if group is None:
            return None
        if any(group.args.get(kind) for kind in ("grouping_sets", "cube", "rollup", "totals")):
            raise Missed(Miss.NOT_UNDERSTOOD, f"{shown(render(group))} groups in several ways")
        items = grouped_items(group, is_name=lambda name: self._known.has(name) or self._named(name) is not None)
        if items is None:
            terms = [item for item in self._items if not aggregates_in(item.tree)]
        else:
            terms = [self._group(item) for item in items]
        for term in terms:
            if aggregates_in(term.tree) or term.tree.find(exp.Column) is None:
                raise Missed(Miss.NOT_UNDERSTOOD, f"GROUP BY {shown(term.text)} is no expression of a row")
        return tuple({term.text: term for term in terms}.values())

    def _group(self, item: exp.Expr) -> Term:
        """By position, by name or by expression. A column of the table goes before an output of that name."""
        if isinstance(item, exp.Literal) and item.is_int:
            return self._at(item)
        if isinstance(item, exp.Column) and len(item.parts) == 1 and not self._known.has(item.name):
            named = self._named(item.name)
            if named is not None:
                return named
        return self._term(item)

    def _order(self) -> Iterator[exp.Ordered]:
        """Without what is the same for every row: it orders nothing, and as text it may be a position."""
        order = self._tree.args.get("order")
        for ordered in order.expressions if order is not None else ():
            term = self._ordered_by(ordered.this)
            if not _is_constant(term.tree):
                made = ordered.copy()
                made.set("this", term.tree.copy())
                yield made

    def _ordered_by(self, tree: exp.Expr) -> Term:
        if isinstance(tree, exp.Literal) and tree.is_int:
            return self._at(tree)
        if isinstance(tree, exp.Column) and len(tree.parts) == 1 and (named := self._named(tree.name)) is not None:
            return named
        term = self._over_outputs(tree)
        if _is_constant(term.tree):
            raise Missed(Miss.NOT_UNDERSTOOD, f"ORDER BY {shown(render(tree))} is the same for every row")
        return term

    def _over_outputs(self, tree: exp.Expr) -> Term:
        """Names may be those of outputs. One that is also another column is left to Spark."""

        def replaced(node: exp.Expr) -> exp.Expr:
            named = self._named(node.parts[0].name) if isinstance(node, exp.Column) else None
            if named is None:
                return node
            assert isinstance(node, exp.Column), f"{node} has a name"
            name = node.parts[0].name
            if self._known.has(name) or len(node.parts) > 1:
                is_qualifier = len(node.parts) > 1 and name.lower() == self._qualifier
                if is_qualifier or named.text != self._known_text(name):
                    raise Missed(Miss.NOT_UNDERSTOOD, f"{name} is an output and something else")
                return node
            return exp.paren(named.tree)

        if isinstance(tree.unnest(), exp.Column) and tree.unnest().name.lower() == "all":
            raise Missed(Miss.NOT_UNDERSTOOD, "ORDER BY ALL is not looked into")
        try:
            return self._term(tree.transform(replaced))
        except InvalidInput as error:
            raise Missed(Miss.NOT_UNDERSTOOD, str(error)) from error

    def _known_text(self, name: str) -> str | None:
        """Of the column of this name."""
        return self._term(exp.column(name, quoted=True)).text if self._known.has(name) else None

    def _named(self, name: str) -> Term | None:
        found = [t for n, t in zip(self._names, self._items, strict=True) if n.lower() == name.lower()]
        if len({term.text for term in found}) > 1:
            raise Missed(Miss.NOT_UNDERSTOOD, f"{name} is the name of several outputs")
        return found[0] if found else None

    def _at(self, position: exp.Literal) -> Term:
        number = int(position.name)
        if not 1 <= number <= len(self._items):
            raise Missed(Miss.NOT_UNDERSTOOD, f"{number} is no position of the {len(self._items)} outputs")
        return self._items[number - 1]


def _is_constant(tree: exp.Expr) -> bool:
    return tree.find(exp.Column) is None and not aggregates_in(tree)


def conjuncts(tree: exp.Expr) -> Iterator[exp.Expr]:
    tree = tree.unnest()
    if isinstance(tree, exp.And):
        yield from conjuncts(tree.this)
        yield from conjuncts(tree.expression)
    else:
        yield tree


def output_name(item: exp.Expr) -> str:
    """The name a user gave, or the text of what has none."""
    return str(item.output_name or item.sql("spark", comments=False))


def _count(clause: exp.Expr | None) -> exp.Expr | None:
    """The number of LIMIT or OFFSET."""
    return None if clause is None else clause.expression.copy()
