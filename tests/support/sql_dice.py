"""Random queries over small tables under random names, each with the same query in plain words for a judge.

    case = random_case(random.Random(seed))        a table, views, and some queries: (asked, plain, ordered)
    wrong_answers(case)                            what the planner answers otherwise than DuckDB answers the plain one

A seed says everything. Names are those of `sql_names`. DuckDB stands for Spark on both sides, so only what means the
same to both is drawn.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from floodmark.core.errors import InvalidInput
from floodmark.query.plan import QueryPlan
from tests.support.query_kit import DAY_MS, HOUR_MS, SCHEMA, Bench, Row, at, same_rows
from tests.support.sql_names import RELATIONS, TRIES, Clash, drawn, renamed

DAYS = 2
QUERIES = 5
"""Of each case."""
VIEWS = {
    "hourly": (HOUR_MS, "SELECT date_trunc('HOUR', t) AS h_hour, zone AS h_zone, count(*) AS h_rides, count(n) AS h_ns,"
               " sum(n) AS h_total, avg(fare) AS h_mean, min(fare) AS h_lo, max(n) AS h_hi,"
               " sum(n) FILTER (WHERE n > 0) AS h_gains FROM trips GROUP BY 1, 2"),
    "daily": (DAY_MS, "SELECT CAST(t AS DATE) AS d_day, upper(zone) AS d_big, sum(n) AS d_total, count(*) AS d_c"
              " FROM trips GROUP BY 1, 2"),
    "single": (DAY_MS, "SELECT t AS r_t, zone AS r_zone, n AS r_n, fare AS r_fare FROM trips"),
    "some": (DAY_MS, "SELECT n AS s_n, t AS s_t, zone AS s_zone FROM trips WHERE n > 0"),
    "arrays": (DAY_MS, "SELECT transform(array(n, 2), m0 -> m0 + n) AS l_arr, n AS l_n, zone AS l_zone,"
               " count(*) AS l_c, sum(fare) AS l_fare FROM trips GROUP BY 1, 2, 3"),
    "reals": (DAY_MS, "SELECT fare AS f_fare, array(fare) || array(fare) AS f_both,"
              " CAST(n AS DECIMAL(5, 2)) AS f_exact, count(*) AS f_c, sum(n) AS f_total FROM trips GROUP BY 1, 2, 3"),
}  # fmt: skip
COLUMNS = tuple(SCHEMA.names)
REALS = (
    "CAST(fare AS STRING)", "CAST(array(fare) || array(fare) AS STRING)", "array(fare) || array(fare)",
    "CAST(fare AS DECIMAL(9, 2))", "CAST(n AS DECIMAL(5, 2))", "upper(CAST(-fare AS STRING))", "array(fare)", "-fare",
    "fare", "fare > 0", "CAST(array(fare) AS STRING)",
)  # fmt: skip
"""Zeros have two signs in some of them. DuckDB shows either of the two for a group, so no more is done to that."""
KEYS = (
    "zone", "upper(zone)", "date_trunc('HOUR', t)", "date_trunc('DAY', t)", "CAST(t AS DATE)", "hour(t)", "n",
    "transform(array(n, 2), m0 -> m0 + n)", "transform(array(n, 2), m0 -> (m0) + 1)",
    "array_max(transform(array(n, 1), m0 -> m0 * 2))", "n + 1",
    "transform(array(n, 1), m0 -> array_max(transform(array(m0, n), m1 -> m0 + m1 + n)))",
    "CASE WHEN zone = 'a' THEN n ELSE 0 END", "coalesce(zone, 'none')",
)  # fmt: skip
MEASURES = (
    "count(*)", "count(1)", "count(n)", "sum(n)", "avg(fare)", "min(fare)", "max(n)", "sum(fare)", "count(zone)",
    "max(zone)", "sum(n) / count(*)", "avg(fare) + 1", "sum(n) FILTER (WHERE n > 0)", "coalesce(sum(n), 0) + count(n)",
    "count(*) FILTER (WHERE zone = 'a')", "avg(n)", "min(date_trunc('HOUR', t))", "sum(n) - count(*) - 1",
    "transform(array(count(*), 1), m0 -> m0 + sum(n))", "sum(array_max(transform(array(n, 1), m0 -> m0 + n)))",
    "count(*) FILTER (WHERE array_max(transform(array(n, 1), m0 -> m0 + n)) > 2)",
)  # fmt: skip
CONSTANTS = ("2", "1", "7", "1 + 1", "-1", "NULL", "'text'", "'1'", "CAST(2 AS INT)", "1.5", "2024", "1L", "TRUE")
VALUES = (
    "zone", "n", "t", "fare", "transform(array(n, 2), m0 -> (m0) + 1)",
    "n + 1", "n - 1 - n", "upper(zone)", "transform(array(n, 2), m0 -> m0 + n)",
    "array_max(transform(array(n, 1), m0 -> m0 * 2 + n))", "CASE WHEN n > 1 THEN zone ELSE 'x' END",
)  # fmt: skip
FILTERS = (
    "zone = 'a'", "zone IS NULL", "zone IN ('a', 'ä') OR zone = ''", "upper(zone) = 'A'", "n > 0", "n > 0", "n > 1",
    "date_trunc('HOUR', t) >= '1970-01-01 05:00:00'", "hour(t) < 12", "t IS NOT NULL", "NOT zone = 'Ω' OR n > 2",
    "t >= '1970-01-01 03:00:00'", "t < '1970-01-02 01:30:00'", "array_max(transform(array(n, 1), m0 -> m0 + n)) > 2",
    "NOT n > 2 AND zone <> 'ä' OR zone IS NULL",
)  # fmt: skip
HAVINGS = ("count(*) > 1", "sum(n) > 0 OR count(*) = 1", "max(n) IS NOT NULL", "NOT count(*) > 3 OR sum(n) - 1 > 2")
OF_VIEWS: Mapping[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "hourly": (("h_hour", "h_zone"), ("sum(h_rides)", "max(h_mean)", "count(*)", "sum(h_total)"),
               ("h_zone = 'a'", "h_hour >= '1970-01-01 10:00:00'", "h_rides > 1", "h_zone IS NULL",
                "array_max(transform(array(0, 1), m0 -> m0 + length(h_zone))) > 1")),
    "daily": (("d_day", "d_big"), ("sum(d_c)", "max(d_total)"), ("d_big = 'A'", "d_c > 1")),
    "single": (("r_zone", "r_n"), ("count(*)", "sum(r_n)", "max(r_fare)"), ("r_n > 0", "r_zone = 'a'")),
    "arrays": (("l_arr", "l_n"), ("sum(l_c)", "max(l_fare)"),
               ("l_n > 0", "array_max(transform(array(0, 1), m0 -> m0 + l_n)) > 2")),
    "reals": (("f_fare", "f_exact"), ("sum(f_c)", "max(f_total)"), ("f_fare > 0", "f_fare = 0", "f_exact > 1")),
}  # fmt: skip
"""Keys, measures and conditions for a query that reads a view by its name."""
LOOKED_AT = ("h_zone", "r_n", "s_n", "l_n")
"""Outputs that stand for the columns in the lambdas above."""


@dataclass(frozen=True)
class Query:
    asked: str
    plain: str
    ordered: bool
    """Whether the order of its rows is told."""


@dataclass
class Case:
    bench: Bench
    queries: list[Query] = field(default_factory=list)


class _Dice:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.outputs = 0

    def some(self, of: Sequence[str], least: int, most: int) -> list[str]:
        return self.dice.sample(of, min(len(of), self.dice.randint(least, most)))

    def maybe(self, chance: float) -> bool:
        return self.dice.random() < chance

    def alias(self) -> str:
        self.outputs += 1
        return f"x_{self.outputs}"

    def where(self, of: Sequence[str], most: int = 2) -> str:
        found = self.some(of, 0, most)
        return f" WHERE {' AND '.join(f'({one})' for one in found)}" if found else ""

    # -- queries of one SELECT -----------------------------------------------------------------------------------------

    def grouped(
        self, source: str = "trips", keys: Sequence[str] = KEYS, measures: Sequence[str] = MEASURES,
        filters: Sequence[str] = FILTERS, *, plain: bool = False,
    ) -> tuple[str, bool, list[str]]:  # fmt: skip
        """Its text, whether it has an order, and the names of its outputs."""
        wanted = self.some(keys, 0, 2)
        parts = [*((k, "key") for k in wanted), *((m, "measure") for m in self.some(measures, 1, 3))]
        parts += [(c, "constant") for c in self.some(CONSTANTS, 0, 2)]
        self.dice.shuffle(parts)
        items = [(what, kind, self.alias()) for what, kind in parts]
        text = f"SELECT {', '.join(f'{what} AS {name}' for what, _, name in items)} FROM {source}{self.where(filters)}"
        if wanted:
            text += (
                f" GROUP BY {', '.join(self._group(n, *item) for n, item in enumerate(items, 1) if item[1] == 'key')}"
            )
        if self.maybe(0.25):
            text += f" HAVING {self.dice.choice(HAVINGS if source == 'trips' else HAVINGS[:1])}"
        names = [name for _, _, name in items]
        if plain or not wanted or self.maybe(0.3):
            return text, False, names
        return text + self._ordered(items), True, names

    def _group(self, number: int, what: str, _: str, name: str) -> str:
        return self.dice.choice([what, what, str(number), name])

    def _ordered(self, items: Sequence[tuple[str, str, str]]) -> str:
        """By some outputs, constants among them, and in the end by every key."""
        terms = [item for item in items if item[1] == "constant" and self.maybe(0.8)]
        terms += [item for item in items if item[1] == "key"]
        order = [self._order(items.index(item) + 1, *item) for item in terms]
        if self.maybe(0.3):
            order.insert(0, self.dice.choice(["count(*)", "max(n) DESC", "sum(n) + 1"]))
        return f" ORDER BY {', '.join(order)}{self.dice.choice(['', ' LIMIT 3', ' LIMIT 2 OFFSET 1'])}"

    def _order(self, number: int, what: str, kind: str, name: str) -> str:
        forms = [name, name, str(number)] if kind == "constant" else [name, str(number), what]
        return f"{self.dice.choice(forms)}{self.dice.choice([' ASC', ' DESC', ''])}"

    def of_reals(self) -> tuple[str, bool, list[str]]:
        """By few keys, so that a view by them may answer."""
        keys = [self.dice.choice(REALS[:2] if self.maybe(0.6) else REALS)]
        filters = ("fare >= 0", "NOT fare > 3 OR fare IS NULL", "CAST(fare AS STRING) <> '-0.0'")
        wanted = filters if self.maybe(0.3) else ()
        return self.grouped("trips AS q_1", keys, ("count(*)", "sum(n)"), wanted, plain=True)

    def rows(self) -> tuple[str, bool, list[str]]:
        parts = self.some(VALUES, 1, 4) + self.some(CONSTANTS, 0, 1)
        self.dice.shuffle(parts)
        items = [(what, self.alias()) for what in parts]
        text = f"SELECT {', '.join(f'{what} AS {name}' for what, name in items)} FROM trips{self.where(FILTERS)}"
        names = [name for _, name in items]
        if self.maybe(0.2):
            return text, False, names
        first = [self._order(n, what, "constant" if what in CONSTANTS else "value", name)
                 for n, (what, name) in enumerate(items, 1) if self.maybe(0.4)]  # fmt: skip
        order = [*first, *(f"{column} {self.dice.choice(['ASC', 'DESC'])}" for column in self.some(COLUMNS, 4, 4))]
        return (
            f"{text} ORDER BY {', '.join(order)}{self.dice.choice(['', ' LIMIT 3', ' LIMIT 4 OFFSET 1'])}",
            True,
            names,
        )

    def of_view(self) -> tuple[str, bool, list[str]]:
        name = self.dice.choice(list(OF_VIEWS))
        keys, measures, filters = OF_VIEWS[name]
        source = self.dice.choice([name, f"{name} AS q_1"])
        chosen = filters[-1:] if self.maybe(0.5) else filters  # the last is a lambda where there is one
        text, _, names = self.grouped(source, keys, measures, chosen, plain=True)
        return text, False, names

    # -- queries of several --------------------------------------------------------------------------------------------

    def query(self) -> tuple[str, bool]:
        kinds = (
            self.grouped, self.grouped, self.of_reals, self.rows, self.of_view, self.of_view, self.given, self.given,
            self.nested, self.selected, self.bare,
        )  # fmt: skip
        text, ordered, _ = self.dice.choice(kinds)()
        return text, ordered

    def given(self) -> tuple[str, bool, list[str]]:
        """WITH: of one name or of two, read or not, in itself what stands for a table elsewhere."""
        one, _, outputs = self.dice.choice([self.grouped, self.rows, self.of_view])()
        one = one if "ORDER BY" not in one else f"SELECT * FROM ({one}) AS q_2"
        count = f"SELECT count(*) AS {self.alias()}, max({outputs[0]}) AS {self.alias()} FROM c_1"
        read, _, names = self.dice.choice([self.of_view, self.of_view, lambda: self.grouped(plain=True)])()
        forms = [
            f"WITH c_1 AS ({one}) {count}",
            f"WITH c_1 AS ({one}) {read}",
            f"WITH c_1 AS ({one}), c_2 AS ({read}) SELECT count(*) AS {self.alias()} FROM c_2",
            f"WITH c_2 AS ({read}), c_1 AS ({one}) SELECT {names[0]} AS {self.alias()} FROM c_2",
            f"WITH c_2 AS ({read}), c_1 AS ({one}) {count}",
            f"WITH c_1 AS ({read}) SELECT {names[0]} AS {self.alias()} FROM c_1",
            f"WITH c_2 AS (WITH c_1 AS ({one}) {read}) SELECT {names[0]} AS {self.alias()} FROM c_2",
            f"WITH c_1 AS ({one}) SELECT {names[0]} AS {self.alias()} FROM ({read}) AS q_3",
            f"WITH c_1 AS ({one}) SELECT (SELECT max({names[0]}) FROM ({read}) AS q_3) AS {self.alias()}",
        ]
        return self.dice.choice(forms), False, []

    def nested(self) -> tuple[str, bool, list[str]]:
        """WITHs of one name in several places, and one that uses what is around it."""
        one, _, outputs = self.dice.choice([self.of_view, lambda: self.grouped(plain=True)])()
        read, _, names = self.dice.choice([self.of_view, lambda: self.grouped(plain=True)])()
        of_one, of_read = f"SELECT max({outputs[0]}) FROM c_1", f"SELECT count({names[0]}) FROM c_1"
        inner = self.alias()
        forms = [
            f"SELECT (WITH c_1 AS ({one}) {of_one}) AS {self.alias()}, (WITH c_1 AS ({read}) {of_read}) AS"
            f" {self.alias()}",
            f"WITH c_1 AS ({one}) SELECT count(*) AS {self.alias()}, max(q_3.{inner}) AS {self.alias()} FROM c_1"
            f" CROSS JOIN (WITH c_1 AS ({read}) SELECT count(*) AS {inner} FROM c_1) AS q_3",
            f"WITH c_1 AS (WITH c_1 AS ({one}) SELECT count(*) AS {inner} FROM c_1) SELECT {inner} AS {self.alias()}"
            " FROM c_1",
            f"SELECT q_4.zone AS {self.alias()}, (WITH c_1 AS (SELECT q_4.n + 1 AS {inner}) SELECT {inner} FROM c_1) AS"
            f" {self.alias()} FROM trips AS q_4",
            f"SELECT q_4.zone AS {self.alias()} FROM trips AS q_4 WHERE EXISTS (WITH c_1 AS (SELECT q_4.n AS {inner})"
            f" SELECT {inner} FROM c_1 WHERE {inner} > 1)",
            f"WITH c_1 AS ({one}) SELECT count(*) AS {self.alias()} FROM c_1 UNION ALL"
            f" (WITH c_1 AS ({read}) {of_read})",
        ]
        return self.dice.choice(forms), False, []

    def selected(self) -> tuple[str, bool, list[str]]:
        """A subselect, a union, or a condition on another table's rows."""
        one, _, names = self.dice.choice([self.of_view, lambda: self.grouped(plain=True)])()
        forms = [
            f"SELECT {names[-1]} AS {self.alias()}, q_3.{names[0]} AS {self.alias()} FROM ({one}) AS q_3",
            f"{one} UNION ALL {one}",
            f"SELECT count(*) AS {self.alias()} FROM trips AS q_4 WHERE EXISTS"
            " (SELECT 1 FROM hourly AS q_5 WHERE q_5.h_zone = q_4.zone)",
            f"SELECT sum(q_5.h_rides) AS {self.alias()} FROM trips AS q_4 JOIN hourly AS q_5 ON q_5.h_zone = q_4.zone",
        ]
        return self.dice.choice(forms), False, []

    def bare(self) -> tuple[str, bool, list[str]]:
        """Without FROM, or with one in a subquery only."""
        constant, inner = self.dice.choice(CONSTANTS), self.dice.choice(["trips", "hourly", "single"])
        forms = [
            f"SELECT {constant} AS {self.alias()}",
            f"SELECT (SELECT count(*) FROM {inner}) AS {self.alias()}, {constant} AS {self.alias()}",
            f"SELECT EXISTS (SELECT 1 FROM {inner}) AS {self.alias()}",
            f"SELECT {constant} AS {self.alias()} WHERE (SELECT count(*) FROM {inner}) > 3",
            f"SELECT 1 AS {self.alias()} UNION ALL SELECT count(*) FROM {inner}",
        ]
        return self.dice.choice(forms), False, []


# -- tables ------------------------------------------------------------------------------------------------------------


def random_case(dice: random.Random) -> Case:
    names = _table_names(dice)
    bench = Bench(_segments(dice), names=names)
    pattern = [dice.choice(("valid", "valid", "valid", "stale", "changed", "vacant")) for _ in range(5)]
    for name in dice.sample(list(VIEWS), dice.randint(2, 3)):
        starts = range(0, DAYS * DAY_MS, VIEWS[name][0])
        states = {start: pattern[n % 5] for n, start in enumerate(starts)}
        _add_view(dice, bench, name, {s: state for s, state in states.items() if state != "vacant"})
    case = Case(bench)
    while len(case.queries) < QUERIES:
        text, ordered = _Dice(dice).query()
        if all(view in names for view in VIEWS if f" {view}" in text):
            case.queries.append(_query(dice, names, text, ordered=ordered))
    return case


def _table_names(dice: random.Random) -> dict[str, str]:
    names: dict[str, str] = {}
    names.update(drawn(dice, COLUMNS))
    names["trips"] = dice.choice(RELATIONS)
    return names


def _add_view(dice: random.Random, bench: Bench, name: str, states: Mapping[int, str]) -> None:
    bucket_ms, select = VIEWS[name]
    outputs = [word.rstrip(",") for word in select.replace(",", ", ").split() if word[1:2] == "_" and word != "m_0"]
    assert isinstance(bench.names, dict), "names are added here"
    taken = {bench.names["trips"], *(view.name for view in bench.views)}
    for _ in range(TRIES):
        names = drawn(dice, outputs)
        names |= drawn(dice, ["m0", "m1"], [bench.names["n"], bench.names["zone"], "x0", "x1"])
        if dice.random() < 0.5:  # what a lambda looks at, as a parameter of the rewrite would be called
            names |= drawn(dice, [output for output in outputs if output in LOOKED_AT], ["x0", "x0_1", "x1"])
        try:
            text = renamed(select, {**bench.names, **names})
            called = dice.choice([word for word in RELATIONS if word not in taken])
            bench.add_view(called, text, bucket_ms, states)
        except (Clash, InvalidInput):
            continue
        bench.names.update({name: called, **{output: names[output] for output in outputs}})
        return
    raise AssertionError(f"no names were found for {select}")


def _query(dice: random.Random, names: Mapping[str, str], text: str, *, ordered: bool) -> Query:
    own = sorted({word for word in _words(text) if word[:2] in ("x_", "q_", "c_") or word in ("m0", "m1")})
    for _ in range(TRIES):
        given = drawn(dice, own)
        if dice.random() < 0.7:  # what a WITH or a subselect could best be taken for
            relations = [names[word] for word in _words(text) if word in ("trips", *VIEWS)]
            given |= drawn(dice, [one for one in own if one[:2] in ("c_", "q_")], [*relations * 9, *RELATIONS])
        if dice.random() < 0.6:  # and a parameter
            read = [names[word] for word in _words(text) if word in names]
            likely = [names["n"], names["n"], names["zone"], names["trips"], names["trips"]]
            given |= drawn(dice, [one for one in own if one[0] == "m"], [*likely, *read])
        try:
            return Query(renamed(text, {**names, **given}, dice), text, ordered)
        except Clash:
            continue
    return Query(renamed(text, dict(names)), text, ordered)


def _words(text: str) -> Iterator[str]:
    word = ""
    for letter in f"{text} ":
        if letter.isalnum() or letter == "_":
            word += letter
        else:
            yield word
            word = ""


def _segments(dice: random.Random) -> dict[str, list[Row]]:
    def time() -> datetime | None:
        if dice.random() < 0.1:
            return None
        return at(dice.choice((dice.randrange(DAYS * 24) * HOUR_MS, dice.randrange(DAYS * DAY_MS))))

    def fare() -> float:
        return dice.randrange(-200, 200) / 4

    zones, numbers = (None, "", "a", "a", "ä", "Ω", "z'z"), (None, -3, 0, 1, 2, 2, 3, 7)
    rows: list[Row] = [
        (time(), dice.choice(zones), dice.choice(numbers), dice.choice((None, -0.0, 0.0, *[fare() for _ in range(3)])))
        for _ in range(dice.randint(8, 24))
    ]
    rows.insert(0, (at(0), "a", 1, 1.0))
    cut = dice.randint(1, len(rows))
    parts = [part for part in (rows[:cut], rows[cut:]) if any(row[0] is not None for row in part)]
    return {f"s{n}": part for n, part in enumerate(parts)}


# -- answers -----------------------------------------------------------------------------------------------------------


def wrong_answers(case: Case) -> Iterator[str]:
    """What is wrong with each answer that is."""
    for query, expected in zip(case.queries, right_answers(case), strict=True):
        if (wrong := difference(case, query, case.bench.plan(query.asked), expected)) is not None:
            yield wrong


def right_answers(case: Case) -> list[list[tuple[Any, ...]]]:
    judge = Bench(case.bench.segments)
    judge.expected("SELECT 1")  # it has the table now
    for view, (_, select) in VIEWS.items():
        judge.create_view(view, select)
    return [judge.run(query.plain) for query in case.queries]


def difference(case: Case, query: Query, made: QueryPlan, expected: list[tuple[Any, ...]]) -> str | None:
    found = case.bench.answer(made)
    if same_rows(found, expected, ordered=query.ordered):
        return None
    planned = f"planned by {made.receipt.view}: {made.sql}\n{found}"
    return f"{query.asked}\n{planned}\nright: {query.plain}\n{expected}"
