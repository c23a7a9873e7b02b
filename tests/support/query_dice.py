"""Random queries that Spark and DuckDB mean the same by, in parts, so that a failing one can be made smaller."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.support.broker import CITIES

AGGREGATES = (
    "count(*)", "count(fare)", "sum(fare)", "min(fare)", "max(fare)", "avg(fare)", "sum(cents)", "sum(price)",
    "min(big)", "max(big)", "count(city)", "avg(cents)",
)  # fmt: skip
KEYS = (
    "city",
    "rider",
    "date_trunc('HOUR', event_time)",
    "date_trunc('DAY', event_time)",
    "date_trunc('MONTH', event_time)",
    "date_trunc('WEEK', booked)",
    "date_trunc('MONTH', booked)",
    "date_trunc('QUARTER', booked)",
    "year(booked)",
)
COMPARISONS = (">=", ">", "<", "<=")


@dataclass(frozen=True, slots=True)
class Query:
    table: str
    keys: tuple[str, ...]
    aggregates: tuple[str, ...]
    where: tuple[str, ...] = ()
    having: str | None = None
    limit: int | None = None

    @property
    def sql(self) -> str:
        outputs = [f"{what} AS o{n}" for n, what in enumerate((*self.keys, *self.aggregates))]
        text = f"SELECT {', '.join(outputs)} FROM {self.table}"
        if self.where:
            text += f" WHERE {' AND '.join(self.where)}"
        if self.keys:
            text += f" GROUP BY {', '.join(self.keys)}"
        if self.having:
            text += f" HAVING {self.having}"
        if self.limit is not None:
            # By the keys, which are unique: what is cut off must be the same for both. By every output, or equal
            # averages of floats could decide.
            order = ", ".join(f"{n} NULLS FIRST" for n in range(1, len(self.keys) + 1)) or "1"
            text += f" ORDER BY {order} LIMIT {self.limit}"
        return text

    def smaller(self) -> Iterator["Query"]:
        """The same with one part less."""
        if self.limit is not None:
            yield replace(self, limit=None)
        if self.having:
            yield replace(self, having=None)
        for n in range(len(self.where)):
            yield replace(self, where=self.where[:n] + self.where[n + 1 :])
        for n in range(len(self.keys)):
            yield replace(self, keys=self.keys[:n] + self.keys[n + 1 :])
        if len(self.aggregates) > 1:
            for n in range(len(self.aggregates)):
                yield replace(self, aggregates=self.aggregates[:n] + self.aggregates[n + 1 :])


def random_query(dice: random.Random, table: str, *, hours: int) -> Query:
    keys = tuple(sorted(dice.sample(KEYS, dice.choice((0, 1, 1, 2))), key=KEYS.index))
    aggregates = tuple(dice.sample(AGGREGATES, dice.randrange(1, 4)))
    return Query(
        table,
        keys,
        aggregates,
        tuple(_condition(dice, hours) for _ in range(dice.choice((0, 1, 1, 2)))),
        dice.choice(("count(*) > 3", "sum(cents) > 0", "max(fare) IS NOT NULL")) if dice.random() < 0.2 else None,
        dice.randrange(1, 10) if keys and dice.random() < 0.25 else None,
    )


def _condition(dice: random.Random, hours: int) -> str:
    kind = dice.random()
    if kind < 0.6:
        minute = dice.choice((0, 0, 0, 30, dice.randrange(60)))
        hour = dice.randrange(-2, hours + 2)
        return f"event_time {dice.choice(COMPARISONS)} TIMESTAMP '{_moment(hour, minute)}'"
    if kind < 0.75:
        return (
            f"{dice.choice(('year', 'month', 'day'))}(booked) {dice.choice(COMPARISONS)} {dice.choice((3, 12, 1969))}"
        )
    if kind < 0.95:
        city = dice.choice(CITIES)
        return (
            "city IS NULL"
            if city is None
            else f"city {dice.choice(('=', '<>', '>='))} '{city.replace(chr(39), chr(39) * 2)}'"
        )
    return f"cents {dice.choice(COMPARISONS)} {dice.randrange(-(2**40), 2**40)}"


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
