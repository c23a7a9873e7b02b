"""Spark itself says how a text is to be read: its parser what binds to what, its analyzer of which type it is.

Random expressions are written without parentheses on purpose, and with every sign that Spark has.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from floodmark.core.errors import InvalidInput
from floodmark.query.kinds import kind_of
from floodmark.query.shapes import expression
from floodmark.spark.columns import spark_schema
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
_VALUES = (
    "1",
    "2.5",
    "'x'",
    "1L",
    "3Y",
    "1e3",
    "1.5BD",
    "2F",
    "7D",
    "NULL",
    "TRUE",
    "INTERVAL '1' DAY",
    "INTERVAL 2 HOURS",
)
_AFTER_AN_INTERVAL = (" + 2L", "-7D", "+3Y", " - 2F", " + 1e3", " + 1.5BD", " - 2", "")
"""What could be taken for its next part."""
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
            f"{negated}BETWEEN {other} AND {self._value(depth - 1)}",
            f"{negated}IN ({other}, {self._boolean(depth - 1)})", f"{negated}LIKE {other}", f"{negated}ILIKE {other}",
            f"{negated}LIKE {other} ESCAPE '!'", f"{negated}RLIKE {other}", f"{negated}LIKE ANY ('x', 'y')",
        ))  # fmt: skip

    def _value(self, depth: int) -> str:
        dice = self._dice
        parts = [self._unary(depth)]
        for _ in range(dice.choice((0, 1, 1, 2, 3) if depth > 1 else (0, 0, 0, 1))):
            sign = dice.choice(_SIGNS if dice.random() < 0.75 else _COMPARISONS)
            space = " " if sign.isalpha() else dice.choice((" ", " ", ""))
            operand = self._unary(depth - 1)
            if parts[-1].endswith("1e3") and dice.random() < 0.5:
                sign, space = dice.choice("+-"), ""  # no part of the number
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
            if made.startswith("INTERVAL"):
                made += dice.choice(_AFTER_AN_INTERVAL)
        elif kind < 0.9:
            made = f"({self._boolean(depth - 1)})"
        elif kind < 0.93:
            condition, other = self._boolean(depth - 1), self._value(depth - 1)
            made = f"CASE WHEN {condition} THEN {self._boolean(depth - 1)} ELSE {other} END"
        elif kind < 0.96:
            made = f"CAST({self._boolean(depth - 1)} AS BIGINT)"
        else:
            made = f"g({self._boolean(depth - 1)}, x -> {self._boolean(depth - 1)})"
        return made + (dice.choice(_POSTFIX) if dice.random() < 0.15 else "")


class Parser:
    """Spark's own, as values that can be compared."""

    def __init__(self, spark: SparkSession) -> None:
        self._parser = spark._jsparkSession.sessionState().sqlParser()

    def tree(self, text: str) -> Tree | None:
        """None for what is no expression to Spark."""
        try:
            found = self._parser.parseExpression(text)
        except ParseException:
            return None
        return _built(iter(json.loads(found.toJSON())))


def _built(nodes: Iterator[Mapping[str, Any]]) -> Tree:
    node = next(nodes)
    name = node["class"].rpartition(".")[2].partition("$")[0]
    if name == "UnresolvedFunction":
        name = _SAME.get(node["nameParts"].strip("[]").lower(), f"call of {node['nameParts'].lower()}")
    # What is in a number is a place among the children, or nothing that a text says.
    said = tuple((k, v) for k, v in sorted(node.items()) if k not in _NOT_COMPARED and isinstance(v, str))
    children = tuple(_built(nodes) for _ in range(node["num-children"]))
    if name in _NEGATED:
        return ("Not", (), ((_NEGATED[name], said, children),))
    return (name, () if name in _SAME.values() or name.startswith("call") else said, children)


def tree_of(text: str) -> exp.Expr | None:
    try:
        tree: exp.Expr = parse_query(f"SELECT {text}").expressions[0]
    except InvalidInput:
        return None
    return tree


def binding(parser: Parser, text: str, tree: exp.Expr) -> Difference | None:
    """Spark must find the same in what we write as in what was written, and an error must not become a meaning."""
    ours = render(tree)
    written, again = parser.tree(text), parser.tree(ours)
    return None if written == again else Difference(text, ours, repr(written))


# -- types -------------------------------------------------------------------------------------------------------------

COLUMNS: Mapping[str, str] = {
    "y": "int8", "h": "int16", "i": "int32", "l": "int64", "f": "float", "d": "double",
    "u": "uint32", "v": "uint64",
    "m": "decimal128(12, 2)", "r": "decimal128(15, 4)", "w": "decimal128(38, 18)", "z": "decimal128(38, 0)",
    "k": "decimal128(5, 5)", "s": "string", "p": "bool", "t": "timestamp[us, tz=UTC]", "c": "date32[day]",
}  # fmt: skip
_WHOLES = ("y", "h", "i", "l", "u", "1", "0", "-1", "10", "007", "3000000000", "-2147483648", "2147483648", "1Y", "12S",
           "34L", "-5L", "- 7", "9223372036854775807", "(1)", "-(1)", "+1")  # fmt: skip
_NUMBERS = (*_WHOLES, "f", "d", "m", "r", "w", "z", "k", "v", "m", "w", "r", "1.5", "0.05", "-0.5", "10.00", "0.0",
            ".25", "3.", "00.50", "1e3", "1.5e-2", "2F", "3D", "1.25BD", "-2BD", "99999999999999999999",
            "12345678901234567890.123456789012345678")  # fmt: skip
_CASTS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "DECIMAL(5)", "DECIMAL(20, 3)",
          "DECIMAL(38, 30)", "NUMERIC(9, 9)", "LONG", "REAL")  # fmt: skip
_FUNCTIONS = (
    "coalesce", "greatest", "least", "nullif", "ifnull", "nvl", "abs", "negative", "positive", "mod", "round", "bround",
    "ceil", "floor", "ceiling", "nvl2", "year", "length", "unix_millis",
)  # fmt: skip


class Typed:
    """Numbers of every kind, and what may be done to them."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def expression(self, depth: int = 2) -> str:
        if depth <= 0 or self._dice.random() < 0.15:
            return self._dice.choice(_NUMBERS)
        forms = (self._arithmetic, self._whole, self._signed, self._cast, self._choice, self._call)
        return self._dice.choices(forms, (50, 12, 6, 8, 8, 16))[0](depth - 1)

    def _arithmetic(self, depth: int) -> str:
        return f"{self._operand(depth)} {self._dice.choice('++--**//%')} {self._operand(depth)}"

    def _whole(self, _: int) -> str:
        dice = self._dice
        if dice.random() < 0.5:
            return f"({dice.choice(_WHOLES)} DIV {dice.choice((*_WHOLES, 'm', 'w', '1.5'))})"
        sign, other = dice.choice(("&", "|", "^", "<<", ">>")), dice.choice(("i", "y", "3", "2S"))
        return f"({dice.choice(_WHOLES)} {sign} {other})"

    def _signed(self, depth: int) -> str:
        made = self.expression(depth)
        return f"{self._dice.choice(('-', '- ', '+'))}{self._dice.choice((made, f'({made})'))}".replace("--", "- -")

    def _cast(self, depth: int) -> str:
        return f"CAST({self.expression(depth)} AS {self._dice.choice(_CASTS)})"

    def _choice(self, depth: int) -> str:
        one, other = self.expression(depth), self.expression(depth)
        return self._dice.choice((
            f"CASE WHEN p THEN {one} ELSE {other} END",
            f"CASE WHEN p THEN NULL WHEN i > 1 THEN {one} END",
            f"CASE i WHEN 1 THEN {one} WHEN 2 THEN {other} ELSE NULL END",
            f"IF(p, {one}, {other})",
        ))  # fmt: skip

    def _operand(self, depth: int) -> str:
        made = self.expression(depth)
        return made if self._dice.random() < 0.3 else f"({made})"

    def _call(self, depth: int) -> str:
        dice, again = self._dice, self.expression
        name = dice.choice(_FUNCTIONS)
        if name in ("abs", "negative", "positive", "ceil", "floor", "ceiling"):
            return f"{name}({again(depth)})"
        if name in ("round", "bround"):
            return f"{name}({again(depth)}{dice.choice(('', ', 0', ', 2', ', -1', ', 12', ', -40'))})"
        if name == "nvl2":
            return f"nvl2({again(depth)}, {again(depth)}, {again(depth)})"
        if name in ("year", "length", "unix_millis"):
            return f"{name}({'t' if name != 'length' else 's'})"
        return f"{name}({again(depth)}, {again(depth)})"


class Analyzer:
    """The types that Spark gives, many in one analysis."""

    def __init__(self, spark: SparkSession, columns: Mapping[str, str]) -> None:
        schema = spark_schema(columns, list(columns), table="judged")
        self._frame: DataFrame = spark.createDataFrame([], schema).alias("judged")

    def types(self, texts: Sequence[str]) -> list[str | None]:
        """None for what Spark refuses; those are looked for by halves."""
        try:
            made = self._frame.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(texts)))
            return [field.dataType.simpleString() for field in made.schema]
        except (AnalysisException, ParseException):
            if len(texts) == 1:
                return [None]
            half = len(texts) // 2
            return self.types(texts[:half]) + self.types(texts[half:])


def typing(
    analyzer: Analyzer, texts: Sequence[str], kind: Callable[[exp.Expr, Mapping[str, str]], object | None] = kind_of
) -> tuple[list[Difference], int]:
    """Where our type is not Spark's, and for how many texts we had one. The text is the one we render."""
    ours = [(text, tree) for text in texts if (tree := tree_of(text)) is not None]
    found = analyzer.types([text for text, _ in ours])
    again = analyzer.types([render(tree) for _, tree in ours])
    differences, known = [], 0
    for (text, tree), written, rewritten in zip(ours, found, again, strict=True):
        if written is None:
            continue
        made = kind(tree, COLUMNS)
        known += made is not None
        if written != rewritten:
            differences.append(Difference(text, f"rendered as {render(tree)}: {rewritten}", written))
        elif made is not None and str(made) != written:
            differences.append(Difference(text, str(made), written))
    return differences, known


# -- values of which one group may have several ------------------------------------------------------------------------

MIXED: Mapping[str, str] = {
    **COLUMNS,
    "fs": "list<item: double>", "ss": "list<item: string>", "ms": "list<item: decimal128(12, 2)>",
    "st": "struct<x: string, y: decimal128(5, 2)>", "sd": "struct<x: double, y: int64>", "kv": "map<string, int64>",
    "b": "binary",
}  # fmt: skip
_ANYTHING = (
    *MIXED, "fs", "fs", "ss", "ms", "sd", "kv", "s", "s", "m", "'x'", "'-0.0'", "1", "1.5", "1e3", "NULL", "TRUE",
    "X'1F'", "st.x", "st.y", "sd.x", "fs[0]", "ss[0]", "kv['a']", "INTERVAL 1 DAY", "'1'",
)  # fmt: skip
_OF_ONE = (
    "reverse({})", "array({})", "upper({})", "trim({})", "length({})", "sqrt({})", "to_json({})", "map_keys({})",
    "map_values({})", "sort_array({})", "flatten(array({}))", "CAST({} AS STRING)", "CAST({} AS DOUBLE)", "abs({})",
    "CAST({} AS DATE)", "hour({})", "trunc({}, 'MONTH')", "last_day({})", "date_part('SECOND', {})", "date({})",
    "timestamp({})", "unix_seconds({})", "date_format({}, 'y')", "months_between({}, t)", "substring({}, 1, 2)",
    "md5({})", "EXTRACT(SECOND FROM {})", "{} IS NULL", "NOT {}", "-{}", "~{}", "slice({}, 1, 1)", "concat({})",
    "element_at({}, 1)", "string({})", "left({}, 1)", "split({}, ',')", "IF(p, {}, NULL)", "array_max({})",
    "concat_ws(',', {})",
)  # fmt: skip
_OF_TWO = (
    "{} || {}", "concat({}, {})", "coalesce({}, {})", "nvl({}, {})", "ifnull({}, {})", "greatest({}, {})",
    "least({}, {})", "nullif({}, {})", "IF(p, {}, {})", "nvl2(i, {}, {})", "CASE WHEN p THEN {} ELSE {} END",
    "array({}, {})", "CASE i WHEN 1 THEN {} WHEN 2 THEN {} END", "named_struct('x', {}, 'y', {})", "map({}, {})",
    "{} = {}", "{} IN ({})", "{} + {}", "{} * {}", "replace({}, {})", "array_union({}, {})", "coalesce(NULL, {}, {})",
    "array_append({}, {})", "date_add({}, {})", "datediff({}, {})", "{} LIKE {}", "concat_ws(',', {}, {})",
    "try_add({}, {})",
)  # fmt: skip


def mixed(dice: random.Random, depth: int = 2) -> str:
    """Anything done to values of any type. Spark refuses about half of them."""
    if depth <= 0 or dice.random() < 0.1:
        return dice.choice(_ANYTHING)
    form = dice.choice(_OF_ONE if dice.random() < 0.4 else _OF_TWO)
    parts = [mixed(dice, depth - dice.choice((1, 1, 2))) for _ in range(form.count("{}"))]
    return form.format(*(f"({part})" if " " in part else part for part in parts))


def merged_unnoticed(
    analyzer: Analyzer, texts: Sequence[str], columns: Mapping[str, str], has_several: Callable[..., bool]
) -> tuple[list[Difference], int]:
    """Where Spark finds a float or a map that we do not, and how many we take for free of both."""
    ours = [(text, tree) for text in texts if (tree := tree_of(text)) is not None]
    known = [text for text, tree in ours if not has_several(expression(render(tree)), columns)]
    found = [(text, written) for text, written in zip(known, analyzer.types(known), strict=True) if written is not None]
    return [Difference(text, "one value", written) for text, written in found if _MERGED.search(written)], len(found)


_MERGED = re.compile("float|double|map<|collate")


# -- names -------------------------------------------------------------------------------------------------------------


def reference(dice: random.Random, columns: Sequence[str], table: str) -> str:
    """A column, in one of the ways in which it may be written."""
    name = dice.choice(columns)
    name = dice.choice((name, name.upper(), f"`{name}`", f"`{name.upper()}`"))
    qualifier = dice.choice(("", "", f"{table}.", f"{table.upper()}.", f"`{table}`."))
    return qualifier + name
