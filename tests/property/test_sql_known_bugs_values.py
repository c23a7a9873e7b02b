"""What two expressions make of one value may differ, and a view must not answer one by the other.

Text as a date is not text as a timestamp; -0.0 and 0.0 are one group and two texts. Whatever a view keeps and whatever
a query asks: rows that the view has put into one group must all have the value that is asked. With a mend taken out
again, some do not.

Two things look for such a pair: a table of the conversions that went wrong once, and random expressions
(`tests/support/sql_values.py`), which find the next one.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from functools import cache
from typing import Any

import pytest
from sqlglot import exp

from floodmark.query import representatives, shapes
from floodmark.query.asked import Term
from floodmark.query.representatives import has_several_values
from floodmark.query.rules import Missed
from floodmark.query.shapes import ViewShape, expression
from floodmark.sql.definition import Definition, analyze
from tests.support import sql_values
from tests.support.query_kit import COLUMNS, DAY_MS, Bench, at
from tests.support.sql_values import ROWS, Kind, Made, Values, exactly, grouped

TEXTS = (
    "2024-01-01 23:00:00-05:00",
    "2024-01-02 01:30:00+03:00",
    "2024-01-01 08:00:00+00:00",
    "2024-02-01 00:30:00+02:00",
)
REALS = (-0.0, 0.0, 0.5, -1.5)


def _day(text: str) -> date:
    """A date is what stands there first, whatever zone comes after it."""
    return date.fromisoformat(text[:10])


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


OF_TEXT: Mapping[str, Callable[[Any], Any]] = {
    "CAST(zone AS DATE)": _day,
    "to_date(zone)": _day,
    "date(zone)": _day,
    "date_trunc('HOUR', zone)": lambda s: _instant(s).replace(minute=0),
    "date_trunc('DAY', zone)": lambda s: _instant(s).date(),
    "date_trunc('MONTH', zone)": lambda s: _instant(s).date().replace(day=1),
    "trunc(zone, 'MONTH')": lambda s: _day(s).replace(day=1),
    "year(zone)": lambda s: _day(s).year,
    "month(zone)": lambda s: _day(s).month,
    "day(zone)": lambda s: _day(s).day,
    "dayofweek(zone)": lambda s: _day(s).isoweekday(),
    "hour(zone)": lambda s: _instant(s).hour,
    "EXTRACT(DAY FROM zone)": lambda s: _day(s).day,
    "EXTRACT(HOUR FROM zone)": lambda s: _instant(s).hour,
    "date_part('HOUR', zone)": lambda s: _instant(s).hour,
    "CAST(CAST(zone AS TIMESTAMP) AS DATE)": lambda s: _instant(s).date(),
    "date_trunc('DAY', CAST(zone AS TIMESTAMP))": lambda s: _instant(s).date(),
    "day(CAST(zone AS TIMESTAMP))": lambda s: _instant(s).day,
    "date_trunc('DAY', CAST(zone AS DATE))": _day,
}
OF_REALS: Mapping[str, Callable[[Any], Any]] = {
    "fare": lambda x: x,
    "-fare": lambda x: -x,
    "fare + 1": lambda x: x + 1,
    "fare * 2": lambda x: x * 2,
    "fare > 0": lambda x: x > 0,
    "fare = 0 OR n > 1": lambda x: x == 0,
    "fare IN (0, 1)": lambda x: x in (0, 1),
    "CAST(fare AS STRING)": repr,
    "CAST(fare * 2 AS STRING)": lambda x: repr(x * 2),
    "fare || '!'": lambda x: f"{x!r}!",
    "upper(CAST(fare AS STRING))": lambda x: repr(x).upper(),
    "CAST(fare AS FLOAT)": lambda x: x,
    "CAST(CAST(fare AS FLOAT) AS STRING)": repr,
    "CAST(fare AS DECIMAL(5, 2))": lambda x: int(x * 100),
    "CAST(CAST(fare AS DECIMAL(5, 2)) AS STRING)": lambda x: str(int(x * 100)),
    "abs(fare)": abs,
    "coalesce(fare, 1)": lambda x: x,
    "to_json(named_struct('x', coalesce(fare, 1)))": repr,
    "CASE WHEN fare >= 0 THEN 'plus' ELSE 'minus' END": lambda x: x >= 0,
}
ALWAYS_SERVED = {
    ("date_trunc('HOUR', zone)", "hour(zone)"),
    ("CAST(zone AS DATE)", "year(zone)"),
    ("date_trunc('DAY', CAST(zone AS TIMESTAMP))", "CAST(CAST(zone AS TIMESTAMP) AS DATE)"),
    ("fare", "fare > 0"),
    ("fare", "-fare"),
    ("fare", "CAST(fare AS DECIMAL(5, 2))"),
    ("CAST(fare AS STRING)", "upper(CAST(fare AS STRING))"),
}
"""That they are refused would be right, and useless."""


@cache
def _kept(text: str) -> Definition:
    select = f"SELECT {text} AS kept, count(*) AS c FROM trips GROUP BY 1"
    return analyze(select, table="trips", time_column="t", bucket_ms=DAY_MS, columns=dict(COLUMNS))


@cache
def _asked(text: str) -> Term:
    """With the names of the table's columns, as they are once a query was looked through."""
    return Term.of(expression(_kept(text).keys[0].expression))


def served(kept: str, asked: str, *, exactly: bool = False) -> bool:
    try:
        return ViewShape(_kept(kept), dict(COLUMNS)).derived(_asked(asked), exactly=exactly) is not None
    except Missed:
        return False


def wrongly_served() -> list[tuple[str, str]]:
    """Pairs of what is kept and what is asked, of which a view would tell the second by the first, and cannot."""
    found = []
    for values, meanings in ((TEXTS, OF_TEXT), (REALS, OF_REALS)):
        for kept, asked in itertools.product(meanings, meanings):
            groups: dict[Any, set[Any]] = {}
            for value in values:
                # Zeros are one group, as they are one to Python; texts are compared letter by letter.
                groups.setdefault(meanings[kept](value), set()).add(meanings[asked](value))
            if any(len(told) > 1 for told in groups.values()) and served(kept, asked):
                found.append((kept, asked))
    return found


def test_a_view_tells_only_what_all_rows_of_a_group_have() -> None:
    """INV-12, on values that two conversions, or two zeros, make something different of."""
    assert wrongly_served() == []


@pytest.mark.parametrize(("kept", "asked"), sorted(ALWAYS_SERVED))
def test_what_all_rows_of_a_group_have_is_told(kept: str, asked: str) -> None:
    assert served(kept, asked)


@pytest.mark.parametrize("kept", ["fare", "-fare", "CAST(fare AS FLOAT)"])
def test_the_largest_of_equal_zeros_is_not_told_by_their_group(kept: str) -> None:
    assert served(kept, kept)
    assert not served(kept, kept, exactly=True)


def _zeros() -> Bench:
    bench = Bench({"s": [(at(0), "a", 1, 0.0), (at(1), "a", 2, -0.0), (at(2), "b", 4, 1.5)]})
    bench.add_view("v", "SELECT fare, sum(n) AS total FROM trips GROUP BY fare", DAY_MS, {0: "valid"})
    return bench


@pytest.mark.parametrize("condition", ["CAST(fare AS STRING) = '0.0'", "CAST(v.FARE AS STRING) LIKE '0%'"])
def test_a_condition_on_the_text_of_a_key_is_not_one_on_the_rows(condition: str) -> None:
    """Asked of the view by its name, the group of both zeros has the rows of both."""
    made = _zeros().plan(f"SELECT total FROM v WHERE {condition}")
    assert made.receipt.view == "v"
    assert made.sql.count("AS STRING") == 1


def test_a_condition_that_both_zeros_satisfy_is_one_on_the_rows() -> None:
    made = _zeros().plan("SELECT total FROM v WHERE fare > 0")
    assert made.sql.count(" > 0") == 2


def _text_is_any_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewShape, "_is_time", lambda *_: True)


def _zeros_are_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shapes, "tells_values_apart", lambda *_, **__: False)


def _only_doubles_as_they_are_have_two_zeros(patch: pytest.MonkeyPatch) -> None:
    def is_double(tree: exp.Expr, columns: Mapping[str, str]) -> bool:
        return tree.name == "fare" and has_several_values(tree, columns)

    patch.setattr(shapes, "has_several_values", is_double)


OF_THE_TABLE = [_text_is_any_time, _zeros_are_the_same, _only_doubles_as_they_are_have_two_zeros]


@pytest.mark.parametrize("mistake", OF_THE_TABLE)
def test_with_a_mend_taken_out_it_is_found(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    assert wrongly_served()


# -- random ones -------------------------------------------------------------------------------------------------------

SEEDS = 400
ASKED = 8
"""Of each key."""


@cache
def _drawn(seed: int) -> tuple[Definition, Made, list[tuple[Term, Made]]]:
    """A key, and what is asked: often of the key, at times of the same columns."""
    dice = random.Random(seed)
    values = Values(dice)
    kept = values.of_time() if (is_time := seed % 4 == 0) else values.any()
    asked = []
    for _ in range(ASKED):
        of = kept if dice.random() < 0.6 else None
        asked.append(values.of_time() if is_time else values.of(dice.choice(list(Kind)), 2, of))
    return _defined(kept), kept, [(Term.of(expression(one.text)), one) for one in asked]


def _defined(made: Made) -> Definition:
    select = f"SELECT {made.text} AS kept, count(*) AS c FROM trips GROUP BY 1"
    return analyze(select, table="trips", time_column="t", bucket_ms=DAY_MS, columns=dict(sql_values.COLUMNS))


def _served(shape: ViewShape, term: Term, *, exactly: bool) -> bool:
    try:
        return shape.derived(term, exactly=exactly) is not None
    except Missed:
        return False


def told_wrongly(seed: int, counts: dict[str, int]) -> Iterator[str]:
    """What a view by a random key tells, though not all rows of a group have it."""
    definition, kept, asked = _drawn(seed)
    shape = ViewShape(definition, dict(sql_values.COLUMNS))
    for term, made in asked:
        for exact, same in ((False, grouped), (True, exactly)):
            if not _served(shape, term, exactly=exact):
                continue
            counts["told"] = counts.get("told", 0) + 1
            groups: dict[Any, set[Any]] = {}
            for row in ROWS:
                groups.setdefault(grouped(kept, row), set()).add(same(made, row))
            if any(len(found) > 1 for found in groups.values()):
                yield f"seed {seed}: {made.text} is told by {kept.text}"


def test_what_a_random_view_tells_is_had_by_all_rows_of_a_group() -> None:
    """INV-12, for keys and questions that nobody thought of."""
    counts: dict[str, int] = {}
    assert [wrong for seed in range(SEEDS) for wrong in told_wrongly(seed, counts)] == []
    assert counts["told"] > SEEDS, "a view that tells nothing is never wrong"


def _joined_arrays_are_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(representatives, "_joined", lambda *_: representatives._Family.TEXT)


def _a_choice_of_free_values_is_free(patch: pytest.MonkeyPatch) -> None:
    def one_of(values: Any, columns: Mapping[str, str]) -> Any:
        known = [representatives._known(value, columns) for value in values]
        return None if None in known else known[0]

    patch.setattr(representatives, "_one_of", one_of)


def _maps_have_one_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(representatives, "_SEVERAL", ("float", "double"))


def _only_a_float_itself_has_two_zeros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(representatives, "_SEVERAL", ("map<",))


def _unknown_functions_are_free(patch: pytest.MonkeyPatch) -> None:
    readers = [(forms, read) for forms, read in representatives._READERS if exp.Anonymous not in forms]
    either = representatives._of_call

    def of_call(tree: exp.Expr, columns: Mapping[str, str]) -> Any:
        return either(tree, columns) or representatives._Family.PART

    patch.setattr(representatives, "_READERS", (*readers, ((exp.Anonymous,), of_call)))


def _the_largest_of_equal_values_is_any(patch: pytest.MonkeyPatch) -> None:
    tells = shapes.tells_values_apart
    patch.setattr(shapes, "tells_values_apart", lambda tree, keys, **_: tells(tree, keys, exactly=False))


@pytest.mark.parametrize(
    "mistake",
    [*OF_THE_TABLE, _joined_arrays_are_text, _a_choice_of_free_values_is_free, _maps_have_one_order,
     _only_a_float_itself_has_two_zeros, _unknown_functions_are_free, _the_largest_of_equal_values_is_any],
)  # fmt: skip
def test_with_a_mend_taken_out_the_random_ones_find_it(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Within the size of the gate. If not, they do not draw what it takes, and would not find the next one either."""
    mistake(monkeypatch)
    assert any(next(told_wrongly(seed, {}), None) for seed in range(SEEDS))
