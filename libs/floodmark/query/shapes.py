"""What can be said about rows from what a view keeps of them: its keys, and whatever follows from its keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from sqlglot import exp

from floodmark.query.asked import Term, conjuncts
from floodmark.query.moments import DAY_US, UNITS_US
from floodmark.query.representatives import has_several_values, tells_values_apart
from floodmark.query.rules import Miss, Missed
from floodmark.sql.clock import TEMPORAL
from floodmark.sql.functions import AGGREGATES
from floodmark.sql.model import Definition, Stored
from floodmark.sql.parsing import parse_select
from floodmark.sql.rules import shown

_OF_DAYS = ("DOW", "DAYOFWEEK", "DAYOFWEEK_ISO", "DOY", "YEAROFWEEK")
_NEEDED_US: Mapping[str, int] = {**UNITS_US, **dict.fromkeys(_OF_DAYS, DAY_US)}
"""How fine a time must be kept for its parts to be known."""
_FUNCTIONS_US: Mapping[str, int] = {
    **{name: UNITS_US[name.upper()] for name in ("second", "minute", "hour", "day", "month", "quarter", "year")},
    "monthname": UNITS_US["MONTH"],
    **dict.fromkeys((
        "dayofmonth", "dayofweek", "dayofyear", "weekday", "weekofyear", "to_date", "date", "last_day", "dayname",
    ), DAY_US),
}  # fmt: skip
_OF_INSTANTS = ("date_trunc", "second", "minute", "hour")
"""What takes its argument for a timestamp; everything else here takes it for a date."""
_INSTANT_PARTS = ("SECOND", "MINUTE", "HOUR", "MICROSECOND", "MILLISECOND")
_MAKE_TIMES = frozenset({
    "date_trunc", "timestamp", "to_timestamp", "timestamp_seconds", "timestamp_millis", "timestamp_micros", "date",
    "to_date", "trunc", "last_day", "to_timestamp_ntz", "to_timestamp_ltz",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _TimeKey:
    """A key that is a time cut to a unit."""

    argument: str
    fineness_us: int
    of_instant: bool
    """Whether its argument was taken for a timestamp, or for a date."""


class ViewShape:
    """A view's definition, prepared for being asked many questions."""

    def __init__(self, definition: Definition, columns: Mapping[str, str]) -> None:
        """`columns` are the table's: name and Arrow type."""
        self.definition = definition
        self._columns = columns
        self.where = frozenset(_texts(definition.where))
        self.keys = {key.expression: key.name for key in definition.keys}
        self.stored: dict[tuple[str, str | None, frozenset[str]], Stored] = {
            (s.aggregate, s.argument, frozenset(_texts(s.condition))): s for s in definition.stored
        }
        self.conditions = sorted({condition for _, _, condition in self.stored}, key=len, reverse=True)
        """Of what is stored, those that say most first."""
        trees = {name: expression(text) for text, name in self.keys.items()}
        self._merging = frozenset(
            name for name, tree in trees.items() if not definition.is_projection and has_several_values(tree, columns)
        )
        """Keys that are 0.0 for rows with -0.0 as well, or a map for rows with its entries in another order."""
        self._times = {name: cut for name, tree in trees.items() if (cut := _cut(tree)) is not None}

    def derived(self, term: Term, *, exactly: bool = False) -> exp.Expr | None:
        """The same value, over the columns of the view's files; None when they do not tell it.

        Aggregates of rows are found only in a view that keeps rows; of groups they are another matter. `exactly`: a
        value that is merely equal, as 0.0 is to -0.0, will not do.
        """
        found = self._derived(term.tree, term)
        if found is not None and self._merging and tells_values_apart(found, self._merging, exactly=exactly):
            raise self._apart(term)
        return found

    def sees_values(self, condition: exp.Expr) -> bool:
        """Whether a condition on keys may hold for a group and not for each of its rows, as one on the text of 0.0."""
        merging = {name.lower() for name in self._merging}
        named = frozenset(found.name for found in condition.find_all(exp.Column) if found.name.lower() in merging)
        return tells_values_apart(condition, named, exactly=False)

    def _apart(self, term: Term) -> Missed:
        names = {found.name for found in term.tree.find_all(exp.Column)}
        if any("map<" in self._columns.get(name, "") for name in names):
            told = (
                f"{shown(term.text)} may depend on the order of a map's entries, which a group of the view has sorted"
            )
            return Missed(Miss.ORDER_OF_MAP, told)
        told = f"{shown(term.text)} is not the same for -0.0 and 0.0, which are one group of the view"
        return Missed(Miss.SIGN_OF_ZERO, told)

    def _derived(self, tree: exp.Expr, term: Term) -> exp.Expr | None:
        # A name is one of a field, a parameter or an alias, though a column may be called the same.
        if not isinstance(tree, exp.Identifier) and not term.is_open(tree):
            if (name := self.keys.get(term.text_of(tree))) is not None:
                return column(name)
            if (coarser := self._coarser(tree, term)) is not None:
                return coarser
        if isinstance(tree, exp.Column) or (_is_aggregate(tree) and not self.definition.is_projection):
            return None
        parts = list(tree.iter_expressions())
        if not parts:
            return tree.copy()
        found = [self._derived(part, term) for part in parts]
        if None in found:
            return None
        made = tree.copy()
        for part, derived in zip(list(made.iter_expressions()), found, strict=True):
            part.replace(derived)
        return made

    def _coarser(self, tree: exp.Expr, term: Term) -> exp.Expr | None:
        """A time cut to a unit tells every coarser one."""
        needed = _needed(tree) if self._times else None
        if needed is None:
            return None
        argument, fineness_us = needed
        text = term.text_of(argument)
        for name, key in self._times.items():
            is_same_time = key.of_instant == _of_instant(tree) or self._is_time(argument)
            if key.argument == text and fineness_us % key.fineness_us == 0 and is_same_time:
                made = tree.copy()
                _argument_of(made).replace(column(name))
                return made
        return None

    def _is_time(self, tree: exp.Expr) -> bool:
        """Of a time, the date and the timestamp are the same moment. Of text they are not: '... 23:00-05:00'."""
        tree = tree.unnest()
        if isinstance(tree, exp.Column):
            return self._columns.get(tree.name, "").startswith(("timestamp", "date"))
        if isinstance(tree, exp.Cast):
            return bool(tree.to.this in TEMPORAL)
        return isinstance(tree, exp.Anonymous) and tree.name.lower() in _MAKE_TIMES


def _of_instant(tree: exp.Expr) -> bool:
    part = None
    if isinstance(tree, exp.Anonymous) and tree.name.lower() in ("date_part", "datepart"):
        part = tree.expressions[0]
    elif isinstance(tree, exp.Extract):
        part = tree.this
    if part is not None:
        return str(part.name).upper().startswith(_INSTANT_PARTS)
    return isinstance(tree, exp.Anonymous) and tree.name.lower() in _OF_INSTANTS


def _is_aggregate(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Anonymous) and tree.name.lower() in AGGREGATES


def column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))


def expression(text: str) -> exp.Expr:
    """An expression that `render` wrote of one whose columns had no qualifiers: what follows a point is a field."""
    select = parse_select(f"SELECT {text}")
    for found in list(select.find_all(exp.Column)):
        first, *fields = found.parts
        if fields:
            column_itself: exp.Expr = exp.Column(this=first.copy())
            found.replace(reduce(_field_of, fields, column_itself))
    tree: exp.Expr = select.expressions[0]
    return tree.unnest()


def _field_of(tree: exp.Expr, field: exp.Expr) -> exp.Expr:
    return exp.Dot(this=tree, expression=field.copy())


def _texts(condition: str | None) -> list[str]:
    return [] if condition is None else [Term.of(part).text for part in conjuncts(expression(condition))]


def _cut(tree: exp.Expr) -> _TimeKey | None:
    """What a key keeps of a time, if it is one cut to a unit."""
    needed = _needed(tree)
    is_cut = isinstance(tree, exp.Cast) or (
        isinstance(tree, exp.Anonymous) and tree.name.lower() in ("date_trunc", "to_date", "date")
    )
    return _TimeKey(Term.of(needed[0]).text, needed[1], _of_instant(tree)) if needed is not None and is_cut else None


def _needed(tree: exp.Expr) -> tuple[exp.Expr, int] | None:
    """The time that an expression looks at, and how fine it must be kept for the expression to be known."""
    if isinstance(tree, exp.Cast):
        # TRY_CAST makes NULL of what CAST and functions stop at: neither tells the other.
        is_day = tree.to.this is exp.DType.DATE and not tree.args.get("safe")
        return (tree.this, DAY_US) if is_day else None
    if isinstance(tree, exp.Extract):
        return _with_unit(tree.expression, tree.this)
    return _needed_by(tree.name.lower(), tree.expressions) if isinstance(tree, exp.Anonymous) else None


def _needed_by(name: str, arguments: list[exp.Expr]) -> tuple[exp.Expr, int] | None:
    if name in ("date_trunc", "date_part", "datepart") and len(arguments) == 2:
        return _with_unit(arguments[1], arguments[0], exact_seconds=name != "date_trunc")
    if name == "trunc" and len(arguments) == 2 and isinstance(arguments[1], exp.Literal):
        return arguments[0], DAY_US
    if name in _FUNCTIONS_US and len(arguments) == 1:
        return arguments[0], _FUNCTIONS_US[name]
    return None


def _with_unit(argument: exp.Expr, unit: exp.Expr, *, exact_seconds: bool = True) -> tuple[exp.Expr, int] | None:
    if not isinstance(unit, exp.Literal | exp.Var):
        return None  # a column may be called DAY
    name = unit.name.upper()
    if exact_seconds and name.startswith("SECOND"):
        return None  # these have a fraction
    needed_us = _NEEDED_US.get(name)
    return None if needed_us is None else (argument, needed_us)


def _argument_of(tree: exp.Expr) -> exp.Expr:
    needed = _needed(tree)
    assert needed is not None, "it was a time a moment ago"
    return needed[0]
