"""The same query under other names: an ordinary one, whose names are all different, and what it is called by a user who
minds nothing. Whoever takes a name for another one answers the two differently.

    SELECT zone AS x0, sum(n) AS x1 FROM trips GROUP BY zone ORDER BY n        the judge's
    SELECT `K0` AS `n`, sum(`o1`) AS `a.b` FROM `parts` GROUP BY `K0` ORDER BY `parts`.`o1`

A name is qualified where Spark would otherwise take it for something else; where that does not help, other names are
drawn.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlglot import exp

from floodmark.sql.parsing import parse_query, render

MADE_UP = (
    "o0", "o1", "o2", "k0", "k1", "k2", "a0", "a1", "p0", "p1", "p2", "x0", "x0", "x1", "x0_1", "merged", "parts",
    "source", "_floodmark_view", "_floodmark_view_1", "K0", "O1", "Parts", "o0_1",
)  # fmt: skip
"""What a rewrite could call something."""
MOST_LIKELY = ("o0", "x0", "o1", "x1", "k0", "p0", "a0", "O2")
WORDS = (
    *MADE_UP, "t", "n", "zone", "trips", "hourly", "v",
    "select", "from", "order", "group by", "values", "count", "sum", "date", "timestamp", "interval", "null", "true",
    "current_date", "all", "a.b", "`", "``x`", "odd name", "über", "Ünï", "Σ", "ς", "Ω名", "東京", "ß", "2", "1", "-",
    "it's", '"q"', "n__sum", " ",
)  # fmt: skip
"""Besides, keywords, other spellings of the same, and what needs quotes."""
RELATIONS = (
    "trips", "trips_1", "hourly", "parts", "merged", "source", "k0", "o0", "select", "order", "values", "v", "date",
    "n", "zone",
)  # fmt: skip
"""Of these tables and views can be named."""
TRIES = 60


class Clash(Exception):
    """With these names the text means something else."""


def fold(name: str) -> str:
    return name.lower()


def drawn(dice: random.Random, wanted: Iterable[str], words: Sequence[str] = WORDS) -> dict[str, str]:
    """A name for each, no two of them the same to Spark."""
    names: dict[str, str] = {}
    likely = dice.random() < 0.4
    for one in wanted:
        taken = {fold(name) for name in names.values()}
        made_up = MOST_LIKELY if likely else MADE_UP if dice.random() < 0.5 else WORDS
        left = [w for pool in (made_up if words is WORDS else (), words) for w in pool if fold(w) not in taken]
        names[one] = dice.choice(left[: len(made_up)] if words is WORDS else left) if left else f"{one} again"
    return names


def renamed(text: str, names: Mapping[str, str], dice: random.Random | None = None) -> str:
    """The text under these names, qualified where it has to be. Raises Clash if it cannot be."""
    tree = parse_query(text)
    _check_relations(tree, names)
    for column in list(tree.find_all(exp.Column)):
        _qualify(column, names)
    for identifier in list(tree.find_all(exp.Identifier)):
        name = names.get(identifier.name)
        if name is not None:
            is_read = isinstance(identifier.parent, exp.Column) or identifier.meta.get("parameter")
            if dice is not None and is_read and dice.random() < 0.3:
                name = _other_case(name)
            identifier.set("this", name)
            identifier.set("quoted", True)
    return render(tree)


def _other_case(name: str) -> str:
    """Of Latin letters only: DuckDB, which runs this, knows no others."""
    return name.swapcase() if name.isascii() else name


def _check_relations(tree: exp.Query, names: Mapping[str, str]) -> None:
    for table in tree.find_all(exp.Table):
        meant = next((cte for cte in _visible(table) if cte == table.name), None)
        found = next((c for c in _visible(table) if _same(c, table.name, names)), None)
        if meant != found:
            raise Clash
    for select in tree.find_all(exp.Select):
        sources = [table.alias_or_name for table in _sources(select)]
        if len({fold(names.get(name, name)) for name in sources}) < len(sources):
            raise Clash


def _visible(node: exp.Expr) -> Iterator[str]:
    """The names given by WITH that can be meant here, the nearest first."""
    child, above = node, node.parent
    while above is not None:
        if isinstance(above, exp.With):
            position = next(n for n, cte in enumerate(above.expressions) if cte is child)
            yield from (cte.alias for cte in above.expressions[:position])
        elif (given := above.args.get("with_")) is not None and given is not child:
            yield from (cte.alias for cte in given.expressions)
        child, above = above, above.parent


def _sources(select: exp.Select) -> list[exp.Expr]:
    clause = select.args.get("from_")
    joined = [join.this for join in select.args.get("joins") or ()]
    return [clause.this, *joined] if clause is not None else []


def _qualify(column: exp.Column, names: Mapping[str, str]) -> None:
    select = column.find_ancestor(exp.Select)
    outputs = {item.alias: item.this for item in select.expressions if isinstance(item, exp.Alias)} if select else {}
    if not isinstance(select, exp.Select) or not _sources(select):
        return
    parameters = [p.name for p in _parameters_around(column)]
    qualifier = column.table or _sources(select)[0].alias_or_name
    if column.name in outputs and not column.table:
        _check_output(column, select, names)
        hidden = any(_same(p, column.name, names) for p in parameters)
        if hidden:
            raise Clash
        return
    over_outputs = column.find_ancestor(exp.Order, exp.Having) is not None
    hidden = any(_same(p, column.name, names) for p in parameters) or (
        over_outputs and any(_same(alias, column.name, names) for alias in outputs)
    )
    if hidden and not column.table:
        column.set("table", exp.to_identifier(qualifier, quoted=True))
    if column.table and any(_same(p, qualifier, names) for p in parameters):
        raise Clash
    if column.table and over_outputs and any(_same(alias, qualifier, names) for alias in outputs):
        raise Clash


def _check_output(column: exp.Column, select: exp.Select, names: Mapping[str, str]) -> None:
    """An output that is meant by its name. In ORDER BY alone it goes before a column of that name."""
    is_order = isinstance(column.parent, exp.Ordered)
    others = {c.name for c in select.find_all(exp.Column)} | names.keys() - {column.name}
    read = {name for name in others if name not in {item.alias for item in select.expressions}}
    if not is_order and any(_same(column.name, name, names) for name in read):
        raise Clash


def _parameters_around(node: exp.Expr) -> Iterator[exp.Expr]:
    above = node.find_ancestor(exp.Lambda)
    while above is not None:
        yield from above.expressions
        above = above.find_ancestor(exp.Lambda)


def _same(one: str, other: str, names: Mapping[str, str]) -> bool:
    return fold(names.get(one, one)) == fold(names.get(other, other))
