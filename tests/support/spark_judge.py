"""Spark itself says how a text is to be read: its parser what binds to what, its analyzer of which type it is.

Random expressions are written without parentheses on purpose, and with every sign that Spark has.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from floodmark.core.errors import InvalidInput
from floodmark.sql.parsing import parse_query, render

Tree = tuple[Any, ...]

_SAME = {
    "shiftleft": "ShiftLeft",
    "shiftright": "ShiftRight",
    "shiftrightunsigned": "ShiftRightUnsigned",
    "positive": "UnaryPositive",
}
"""Functions that are the same to Spark as a sign."""
_NEGATED = {"IsNotNull": "IsNull", "IsNotUnknown": "IsUnknown"}
_NOT_COMPARED = {"class", "num-children", "evalMode", "evalContext", "branches", "elseValue"}


@dataclass(frozen=True, slots=True)
class Difference:
    text: str
    ours: str
    spark: str


# -- binding -----------------------------------------------------------------------------------------------------------

_NAMES = ("a", "b", "c", "d", "st.x", "arr[0]", "f(a, b)", "`a b`")
_VALUES = ("1", "2.5", "'x'", "1L", "3Y", "1e3", "1.5BD", "2F", "7D", "NULL", "TRUE", "INTERVAL '1' DAY", "INTERVAL 2 HOURS")
_SIGNS = ("|", "^", "&", "<<", ">>", ">>>", "+", "-", "||", "*", "/", "%", "DIV", "div")
_COMPARISONS = ("=", "==", "<", "<=", ">", ">=", "<>", "!=", "<=>")
_UNARY = ("-", "+", "~", "- ", "-")
_POSTFIX = ("::INT", "::STRING", "::DECIMAL(10, 2)", "[1]", " COLLATE UTF8_LCASE", ".y")


class Unbound:
    """Expressions of Spark's grammar, with few parentheses."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def expression(self, depth: int = 2) -> str:
        return self._boolean(depth)

    def _boolean(self, depth: int) -> str:
        dice = self._dice
        kind = dice.random()
        if depth <= 0 or kind < 0.5:
            return self._predicated(depth)
        if kind < 0.65:
            return f"{dice.choice(('NOT ', '! ', '!', 'not '))}{self._boolean(depth - 1)}"
        return f" {dice.choice(('AND', 'OR'))} ".join(self._boolean(depth - 1) for _ in range(dice.choice((2, 2, 3))))

    def _predicated(self, depth: int) -> str:
        dice = self._dice
        value = self._value(depth)
        if dice.random() < 0.6:
            return value
        negated = dice.choice(("", "", "NOT "))
        other = self._value(depth - 1)
        return value + " " + dice.choice((
            f"IS {negated}NULL", f"IS {negated}TRUE", f"IS {negated}UNKNOWN", f"IS {negated}DISTINCT FROM {other}",
            f"{negated}BETWEEN {other} AND {self._value(depth - 1)}", f"{negated}IN ({other}, {self._boolean(depth - 1)})",
            f"{negated}LIKE {other}", f"{negated}ILIKE {other}", f"{negated}LIKE {other} ESCAPE '!'", f"{negated}RLIKE {other}",
            f"{negated}LIKE ANY ('x', 'y')",
        ))  # fmt: skip

    def _value(self, depth: int) -> str:
        dice = self._dice
        parts = [self._unary(depth)]
        for _ in range(dice.choice((0, 1, 1, 2, 3) if depth > 1 else (0, 0, 0, 1))):
            sign = dice.choice(_SIGNS if dice.random() < 0.75 else _COMPARISONS)
            space = " " if sign.isalpha() else dice.choice((" ", " ", ""))
            operand = self._unary(depth - 1)
            if sign == "-" and operand.startswith("-"):
                space = " "  # two of them begin a comment
            parts.append(f"{space}{sign}{space}{operand}")
        return "".join(parts)

    def _unary(self, depth: int) -> str:
        sign = "".join(self._dice.choice(_UNARY) for _ in range(self._dice.choice((0, 0, 0, 1, 1, 2))))
        return sign.replace("--", "- -") + self._primary(depth)

    def _primary(self, depth: int) -> str:
        dice = self._dice
        kind = dice.random()
        if depth <= 0 or kind < 0.85:
            made = dice.choice(_NAMES if dice.random() < 0.7 else _VALUES)
        elif kind < 0.9:
            made = f"({self._boolean(depth - 1)})"
        elif kind < 0.93:
            made = f"CASE WHEN {self._boolean(depth - 1)} THEN {self._boolean(depth - 1)} ELSE {self._value(depth - 1)} END"
        elif kind < 0.96:
            made = f"CAST({self._boolean(depth - 1)} AS BIGINT)"
        else:
            made = f"g({self._boolean(depth - 1)}, x -> {self._boolean(depth - 1)})"
        return made + (dice.choice(_POSTFIX) if dice.random() < 0.15 else "")


class Parser:
    """Spark's own, as values that can be compared."""

    def __init__(self, spark: SparkSession) -> None:
        self._parser = spark._jsparkSession.sessionState().sqlParser()  # type: ignore[attr-defined]

    def tree(self, text: str) -> Tree | None:
        """None for what is no expression to Spark."""
        try:
            found = self._parser.parseExpression(text)
        except ParseException:
            return None
        return _built(iter(json.loads(found.toJSON())))


def _built(nodes: Iterator[Mapping[str, Any]]) -> Tree:
    node = next(nodes)
    name = node["class"].rpartition(".")[2]
    if name == "UnresolvedFunction":
        name = _SAME.get(node["nameParts"].strip("[]").lower(), f"call of {node['nameParts'].lower()}")
    # What is in a number is a place among the children, or nothing that a text says.
    said = tuple((k, v) for k, v in sorted(node.items()) if k not in _NOT_COMPARED and isinstance(v, str))
    children = tuple(_built(nodes) for _ in range(node["num-children"]))
    if name in _NEGATED:
        return ("Not", (), ((_NEGATED[name], said, children),))
    return (name, () if name in _SAME.values() or name.startswith("call") else said, children)


def rendered(text: str) -> str | None:
    """What we make of an expression; None when it is refused."""
    try:
        return render(parse_query(f"SELECT {text}").expressions[0])
    except InvalidInput:
        return None


def binding(parser: Parser, text: str) -> Difference | None:
    """Spark must find the same in what we write as in what was written, and an error must not become a meaning."""
    ours = rendered(text)
    if ours is None:
        return None
    written, again = parser.tree(text), parser.tree(ours)
    return None if written == again else Difference(text, ours, repr(written))
