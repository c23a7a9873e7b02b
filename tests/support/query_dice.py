"""Random queries that Spark and DuckDB mean the same by, in parts, so that a failing one can be made smaller.

Each has two texts: `sql` for the broker, under names that a rewrite could take for its own or for somebody else's and
without parentheses that Spark can do without; `judged` for DuckDB, under plain names and with every parenthesis.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tests.support.broker import CITIES
from tests.support.sql_names import fold

COMPARISONS = (">=", ">", "<", "<=")
NASTY = (
    "o0", "o1", "k0", "k1", "p0", "p1", "a0", "a1", "x0", "x1", "parts", "source", "merged", "_floodmark_view", "O0",
    "K0", "Parts", "city", "cents", "fare", "price", "event_time", "City", "CENTS", "n", "hour", "select", "from",
    "order", "group by", "values", "count", "date", "null", "true", "a.b", "odd name", "`", "it's", "über", "東京", "Σ",
    "1", "2", "-",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """What both are asked. `@city` is a column, which may be qualified; `@@city` one that has to be."""

    spark: str
    duck: str

    @classmethod
    def both(cls, text: str) -> "Text":
        return cls(text, text)


@dataclass(frozen=True, slots=True)
class Output:
    what: Text
    kind: str
    name: str


COUNT = Output(Text.both("count(*)"), "aggregate", "rows")


@dataclass(frozen=True, slots=True)
class Source:
    """A table or a view by its name, and what can be asked of it."""

    suffix: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    aggregates: tuple[str, ...]
    havings: tuple[str, ...]


TABLE = Source(
    "",
    ("event_time", "city", "rider", "fare", "cents", "price", "big", "booked"),
    ("@city", "@city", "@city", "@rider", "date_trunc('HOUR', @event_time)", "date_trunc('HOUR', @event_time)",
     "date_trunc('DAY', @event_time)", "date_trunc('MONTH', @event_time)", "CAST(@event_time AS DATE)",
     "hour(@event_time)", "date_trunc('WEEK', @booked)", "date_trunc('MONTH', @booked)",
     "date_trunc('QUARTER', @booked)", "year(@booked)", "upper(@city)", "coalesce(@city, 'none')", "length(@city) + 1",
     "CASE WHEN @city = 'Graz' THEN 1 WHEN @city IS NULL THEN 2 ELSE 0 END"),
    ("count(*)", "count(1)", "count(@fare)", "sum(@fare)", "min(@fare)", "max(@fare)", "avg(@fare)", "sum(@cents)",
     "sum(@price)", "min(@big)", "max(@big)", "count(@city)", "avg(@cents)", "sum(@cents) - count(*) - 1",
     "coalesce(sum(@cents), 0) + count(@fare)", "max(@city)", "count(*) FILTER (WHERE @city = 'Graz')",
     "sum(@cents) FILTER (WHERE @city >= 'H')", "min(@fare) FILTER (WHERE NOT @city IS NULL)",
     "CASE WHEN count(*) > 99 THEN max(@fare) ELSE min(@fare) END"),
    ("count(*) > 3", "sum(@@cents) > 0", "max(@@fare) IS NOT NULL", "NOT count(*) > 99 OR sum(@@cents) - 1 > 0"),
)  # fmt: skip
HOURLY = Source(
    "_hourly",
    ("hour", "city", "n", "fares", "fare", "low", "high", "mean", "cents", "mean_cents", "price", "least", "most"),
    ("@hour", "@city", "date_trunc('DAY', @hour)", "upper(@city)", "@n"),
    ("count(*)", "sum(@n)", "sum(@cents)", "max(@high)", "min(@low)", "max(@mean)", "sum(@price)", "max(@most)",
     "sum(@n) FILTER (WHERE @city = 'Graz')"),
    ("count(*) > 3", "sum(@@n) > 9"),
)  # fmt: skip
DAILY = Source(
    "_daily",
    ("day", "city", "n", "price", "low", "high", "cents", "mean"),
    ("@day", "@city", "coalesce(@city, 'none')"),
    ("count(*)", "sum(@n)", "sum(@price)", "min(@low)", "max(@mean)", "sum(@cents)"),
    ("count(*) > 1", "sum(@@n) > 9"),
)
VIEWS = {
    "hourly": ("1h", "SELECT date_trunc('HOUR', event_time) AS hour, city, count(*) AS n, count(fare) AS fares, "
               "sum(fare) AS fare, min(fare) AS low, max(fare) AS high, avg(fare) AS mean, sum(cents) AS cents, "
               "avg(cents) AS mean_cents, sum(price) AS price, min(big) AS least, max(big) AS most "
               "FROM {table} GROUP BY 1, 2"),
    "daily": ("1d", "SELECT date_trunc('DAY', event_time) AS day, city, count(*) AS n, sum(price) AS price, "
              "min(big) AS low, max(big) AS high, sum(cents) AS cents, avg(cents) AS mean FROM {table} GROUP BY 1, 2"),
    "tokyo": ("2h", "SELECT date_trunc('HOUR', event_time) AS hour, count(*) AS n, sum(fare) AS fare FROM {table} "
              "WHERE city = '東京' GROUP BY 1"),
    "booked": ("6h", "SELECT date_trunc('MONTH', booked) AS month, city, count(*) AS n, count(fare) AS fares, "
               "sum(fare) AS fare, max(fare) AS high, sum(cents) AS cents, sum(price) AS price "
               "FROM {table} GROUP BY 1, 2"),
}  # fmt: skip
CONSTANTS = ("2", "1", "-1", "2024", "1 + 1", "'text'", "'1'", "TRUE", "NULL")
LIFTED = ("count(*)", "count(@city)", "count(@fare)", "5", "3", "12")
"""What operators connect: small whole numbers, which views keep as well."""
SPARKS_LEVELS = {"|": 1, "^": 2, "&": 3, "<<": 4, "+": 5, "-": 5, "||": 5, "*": 6, "%": 6}
"""Which of them bind tighter, by Spark's grammar."""
WITHIN = (
    "WITH {name} AS ({query}) SELECT * FROM {name}",
    "SELECT * FROM ({query}) AS {name}",
    "WITH {other} AS (SELECT 1 AS `city`) {query}",
    "WITH {name} AS ({query}), {other} AS (SELECT * FROM {name}) SELECT * FROM {other}",
)


@dataclass(frozen=True, slots=True)
class Query:
    table: str
    outputs: tuple[Output, ...]
    source: Source = TABLE
    where: tuple[Text, ...] = ()
    having: Text | None = None
    order: tuple[Output, ...] = ()
    limit: int | None = None
    called: str = "plain"
    """The table's name in the query."""
    qualified: bool = False
    by_position: bool = False
    around: str = "{query}"

    @property
    def keys(self) -> tuple[Output, ...]:
        return tuple(output for output in self.outputs if output.kind == "key")

    @property
    def sql(self) -> str:
        relation = f"{self.table}{self.source.suffix}"
        qualifier = f"{quoted(self.called)}."
        items = [f"{output.what.spark} AS {quoted(output.name)}" for output in self.outputs]
        grouped = [str(self.outputs.index(k) + 1) if self.by_position else k.what.spark for k in self.keys]
        text = self._text(items, f"{relation} AS {quoted(self.called)}", grouped, "spark")
        text = text.replace("@@", qualifier).replace("@", qualifier if self.qualified else "")
        return self.around.replace("{query}", text)

    @property
    def judged(self) -> str:
        items = [f"{output.what.duck} AS y{n}" for n, output in enumerate(self.outputs)]
        relation = f"{self.table}{self.source.suffix} AS judged"
        text = self._text(items, relation, [key.what.duck for key in self.keys], "duck")
        return text.replace("@@", "judged.").replace("@", "judged.")

    def _text(self, items: Sequence[str], relation: str, grouped: Sequence[str], dialect: str) -> str:
        text = f"SELECT {', '.join(items)} FROM {relation}"
        if self.where:
            text += f" WHERE {' AND '.join(getattr(one, dialect) for one in self.where)}"
        if grouped:
            text += f" GROUP BY {', '.join(grouped)}"
        if self.having:
            text += f" HAVING {getattr(self.having, dialect)}"
        if self.limit is not None:
            # In the end by the keys, which are unique: what is cut off must be the same for both.
            order = [quoted(one.name) if dialect == "spark" else f"y{self.outputs.index(one)}" for one in self.order]
            order += [str(self.outputs.index(key) + 1) for key in self.keys]
            text += f" ORDER BY {', '.join(f'{one} NULLS FIRST' for one in order) or '1'} LIMIT {self.limit}"
        return text

    def smaller(self) -> Iterator["Query"]:
        """The same with one part less."""
        if self.around != "{query}":
            yield replace(self, around="{query}")
        if self.limit is not None:
            yield replace(self, limit=None, order=())
        for one in self.order:
            yield replace(self, order=tuple(other for other in self.order if other != one))
        if self.having:
            yield replace(self, having=None)
        for n in range(len(self.where)):
            yield replace(self, where=self.where[:n] + self.where[n + 1 :])
        if any(output.kind == "aggregate" for output in self.outputs[1:]):
            for output in self.outputs:
                if len([o for o in self.outputs if o.kind == "aggregate"]) > (output.kind == "aggregate"):
                    yield self._without(output)
        for n, output in enumerate(self.outputs):
            if output.name != f"plain{n}":
                yield self._renamed(output, f"plain{n}")
        if self.by_position:
            yield replace(self, by_position=False)
        if self.called != "plain":
            yield replace(self, called="plain")

    def _without(self, gone: Output) -> "Query":
        return replace(
            self,
            outputs=tuple(output for output in self.outputs if output != gone),
            order=tuple(output for output in self.order if output != gone),
            having=None if self.having and quoted(gone.name) in self.having.spark else self.having,
        )

    def _renamed(self, old: Output, name: str) -> "Query":
        new = replace(old, name=name)
        changed = {old: new}
        return replace(
            self,
            outputs=tuple(changed.get(output, output) for output in self.outputs),
            order=tuple(changed.get(output, output) for output in self.order),
            having=self.having
            and replace(self.having, spark=self.having.spark.replace(quoted(old.name), quoted(name))),
        )


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# -- drawing -----------------------------------------------------------------------------------------------------------


class _Names:
    """Of one query, no two the same to Spark."""

    def __init__(self, dice: random.Random, table: str) -> None:
        self._dice = dice
        self._left = [*NASTY, *(f"{table}{suffix}" for suffix in ("", "_hourly", "_daily", "_tokyo"))]

    def draw(self, *, besides: Sequence[str] = ()) -> str:
        taken = {fold(name) for name in besides}
        name = self._dice.choice([name for name in self._left if fold(name) not in taken])
        self._left = [other for other in self._left if fold(other) != fold(name)]
        return name


def random_query(dice: random.Random, table: str, *, hours: int, of_views: bool = True) -> Query:
    """`of_views`: the views of VIEWS are there and may be asked by name."""
    source = dice.choice((TABLE, TABLE, TABLE, TABLE, HOURLY, DAILY)) if of_views else TABLE
    names = _Names(dice, table)
    relation = f"{table}{source.suffix}"
    called = names.draw(besides=[*source.columns, relation])
    wanted = [(what, "key") for what in _keys(dice, source, called)]
    wanted += [(what, "aggregate") for what in _aggregates(dice, source)]
    wanted += [(Text.both(what), "constant") for what in dice.sample(CONSTANTS, dice.choice((0, 0, 0, 1, 2)))]
    dice.shuffle(wanted)
    outputs = tuple(Output(what, kind, names.draw()) for what, kind in wanted)
    made = Query(
        table,
        outputs,
        source,
        tuple(_condition(dice, hours) for _ in range(dice.choice((0, 1, 1, 2)))) if source is TABLE else _of_view(dice),
        _having(dice, source, outputs) if dice.random() < 0.25 else None,
        called=called,
        qualified=dice.random() < 0.3,
        by_position=dice.random() < 0.3,
        around=_around(dice, names, relation) if dice.random() < 0.2 else "{query}",
    )
    if not made.keys or dice.random() < 0.6:
        return made
    exact = [output for output in outputs if output.kind != "key" and "avg" not in output.what.duck]
    exact = [output for output in exact if "mean" not in output.what.duck]
    return replace(made, order=tuple(dice.sample(exact, min(len(exact), 2))), limit=dice.randrange(1, 10))


def _keys(dice: random.Random, source: Source, called: str) -> list[Text]:
    found = [Text.both(what) for what in dict.fromkeys(dice.choices(source.keys, k=dice.choice((0, 1, 1, 2))))]
    if dice.random() < 0.1:
        found.append(_lambda(dice, "length(@@city)", beside="length(@@city)", called=called))
    return found


def _aggregates(dice: random.Random, source: Source) -> list[Text]:
    found = [Text.both(what) for what in dice.sample(source.aggregates, dice.randrange(1, 4))]
    if source is TABLE and dice.random() < 0.3:
        found.append(_operators(dice))
    if source is TABLE and dice.random() < 0.15:
        found.append(_lambda(dice, dice.choice(("count(*)", "max(length(@@city))"))))
    return found


def _lambda(dice: random.Random, over: str, *, beside: str = "2", called: str = "") -> Text:
    """Its parameter may be called like a column, but not like the table, by which the column beside it is told."""
    likely = [name for name in ("city", "City", "x0", "k0", "p", "o0", "a0") if fold(name) != fold(called)]
    name, more = quoted(dice.choice(likely)), dice.randrange(9)
    if dice.random() < 0.5:
        return Text(
            f"array_max(transform(array({over}, {more}), {name} -> {name} + {more} * {beside}))",
            f"list_max(list_transform([{over}, {more}], lambda it: (it + ({more} * {beside}))))",
        )
    return Text(
        f"size(filter(array({over}, {more}, 3), {name} -> NOT {name} > 4 OR {name} = {beside} + 1))",
        f"len(list_filter([{over}, {more}, 3], lambda it: ((NOT (it > 4)) OR (it = ({beside} + 1)))))",
    )


def _operators(dice: random.Random) -> Text:
    """Whole numbers connected by operators without parentheses, as they bind in Spark; perhaps text at the end."""
    signs = dice.choices(("|", "^", "&", "+", "-", "*", "%"), k=dice.randrange(2, 5))
    values = [dice.choice(LIFTED)]
    for sign in signs:
        values.append(dice.choice(("5", "3", "7")) if sign == "%" else dice.choice(LIFTED))
    if dice.random() < 0.3:
        signs.append("<<")
        values.append(dice.choice(("1", "2")))
    elif dice.random() < 0.3 and not {"|", "^", "&"} & set(signs):
        signs.append("||")
        values.append("'x'")
    spark = " ".join([values[0], *(f"{sign} {value}" for sign, value in zip(signs, values[1:], strict=True))])
    return Text(spark, _bound(values, signs))


def _bound(values: Sequence[str], signs: Sequence[str]) -> str:
    """DuckDB's text: split at the operator that binds least, the last one of those."""
    if not signs:
        return values[0]
    at = min(range(len(signs)), key=lambda n: (SPARKS_LEVELS[signs[n]], -n))
    left, right = _bound(values[: at + 1], signs[:at]), _bound(values[at + 1 :], signs[at + 1 :])
    match signs[at]:
        case "^":
            return f"xor({left}, {right})"
        case "<<":
            return f"({left} * (1 << {right}))"
        case "||":
            return f"(CAST({left} AS VARCHAR) || {right})"
        case sign:
            return f"({left} {sign} {right})"


def _having(dice: random.Random, source: Source, outputs: Sequence[Output]) -> Text:
    """An aggregate, or an output by its name where no column has it."""
    columns = {fold(column) for column in source.columns}
    counts = [o for o in outputs if o.what.spark in source.aggregates and o.what.spark.startswith("count(")]
    counts = [o for o in counts if fold(o.name) not in columns]
    if counts and dice.random() < 0.5:
        one = dice.choice(counts)
        return Text(f"{quoted(one.name)} > 2", f"({one.what.duck}) > 2")
    return Text.both(dice.choice(source.havings))


def _around(dice: random.Random, names: _Names, relation: str) -> str:
    """A WITH or a subselect. What is around may have the name of what the query reads, what stands before it not."""
    template = dice.choice(WITHIN)
    other = names.draw(besides=[relation])
    name = dice.choice((relation, names.draw(besides=[other])))
    return template.replace("{name}", quoted(name)).replace("{other}", quoted(other))


def _of_view(dice: random.Random) -> tuple[Text, ...]:
    wanted = ("@city = 'Graz'", "@n > 3", "NOT @city = 'Graz' AND @n < 99", "@city IS NULL OR @n > 9")
    return tuple(Text.both(f"({one})") for one in dice.sample(wanted, dice.choice((0, 1, 1))))


def _condition(dice: random.Random, hours: int) -> Text:
    kind = dice.random()
    if kind < 0.6:
        return Text.both(_on_time(dice, hours))
    if kind < 0.7:
        part = dice.choice(("year", "month", "day"))
        return Text.both(f"{part}(@booked) {dice.choice(COMPARISONS)} {dice.choice((3, 12, 1969))}")
    if kind < 0.87:
        return _on_city(dice)
    if kind < 0.95:
        return _chain(dice)
    return Text.both(f"@cents {dice.choice(COMPARISONS)} {dice.randrange(-(2**40), 2**40)}")


def _on_time(dice: random.Random, hours: int) -> str:
    first, last = (f"TIMESTAMP '{_moment(dice.randrange(-2, hours + 2), _minute(dice))}'" for _ in range(2))
    if dice.random() < 0.1:
        return f"@event_time BETWEEN {min(first, last)} AND {max(first, last)}"
    return f"@event_time {dice.choice(COMPARISONS)} {first}"


def _on_city(dice: random.Random) -> Text:
    city = dice.choice(CITIES)
    if city is None:
        return Text.both("@city IS NULL")
    return Text.both(f"@city {dice.choice(('=', '<>', '>='))} '{city.replace(chr(39), chr(39) * 2)}'")


def _chain(dice: random.Random) -> Text:
    """NOT, BETWEEN and sums without parentheses; as a part of a condition it has some around."""
    more = dice.randrange(1, 5)
    chains = (
        (f"(NOT length(@city) + {more} > 5 OR @city = 'Graz' AND length(@city) & 5 > {more})",
         f"((NOT ((length(@city) + {more}) > 5)) OR ((@city = 'Graz') AND ((length(@city) & 5) > {more})))"),
        (f"length(@city) + 1 BETWEEN {more} - 1 AND 2 + {more}",
         f"((length(@city) + 1) BETWEEN ({more} - 1) AND (2 + {more}))"),
        (f"NOT length(@city) NOT BETWEEN {more} AND {more} + 3",
         f"(NOT (NOT (length(@city) BETWEEN {more} AND ({more} + 3))))"),
        (f"length(@city) | {more} & 1 ^ 2 > 4", f"((length(@city) | xor(({more} & 1), 2)) > 4)"),
    )  # fmt: skip
    spark, duck = dice.choice(chains)
    return Text(spark, duck)


def _minute(dice: random.Random) -> int:
    return dice.choice((0, 0, 0, 30, dice.randrange(60)))


def _moment(hour: int, minute: int) -> str:
    days, hour = divmod(hour, 24)
    day = f"1970-01-{1 + days:02d}" if days >= 0 else f"1969-12-{32 + days:02d}"
    return f"{day} {hour:02d}:{minute:02d}:00"


def shrunk(query: Query, fails: Callable[[Query], bool]) -> Query:
    """As small as it gets while it still fails."""
    for smaller in query.smaller():
        if fails(smaller):
            return shrunk(smaller, fails)
    return query
