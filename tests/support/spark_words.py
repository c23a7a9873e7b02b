"""Texts whose comments, quotes, hints and words are easily cut up otherwise than Spark does, and what it finds there.

Each piece alone is ordinary. Side by side they make `'a' 'b'`, `/* -- */`, `--\\` at the end of a line, and `all` as a
name.
"""

import random
import re

from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from floodmark.core.errors import InvalidInput
from floodmark.sql.parsing import parse_query, render
from tests.support.spark_judge import Difference

_VALUES = (
    "a", "`a`", "`a``b`", "1", "'x'", "'it''s'", "'it\\'s'", '"x"', '"say ""x"""', "'\\\\'", "r'\\'", 'R"a\\"', "X'1F'",
    "''", "' -- '", "'/* '", "'*/'", '" /*+ "', "'{# '", "`--`", "`/*`", "all", "ALL", "`all`", "f(a)", "f(all)",
    "f(all a)", "f(DISTINCT a)", "count(all a)", "all.x", "a = all", "CURRENT_PATH", "current_path()", "`current_path`",
    "'a' 'b'", "'a' \"b\"", "X'1F' 'b'", "-1", "a -1", "a - -1", "(all)", "a IN (all)", "a = ANY (SELECT 1)", "all * 2",
)  # fmt: skip
_BETWEEN = (
    " ", " ", " ", "  ", "\n", "\t", " -- c\n", "--\n", " -- it's\n", " -- \\\nb, \n", " --+ c\n", "/**/", " /* c */ ",
    " /* it's */ ", " /* ` */ ", " /* -- */ ", "/* a /* b */ c */", "/* /*+ */", " -- /*\n", "/*--*/", "/* \\*/", " # ",
    " {# c #} ", ",", " , ", "\r\n", "/*/*/**/*/*/", "*/", "/*", " --'\n",
)  # fmt: skip
_HINTS = (
    "", "", "", " /*+ BROADCAST(a) */", " /*+ COALESCE(1) */ /*+ REPARTITION(2) */", "/*+ MERGE(t), COALESCE(3) */",
    " /*+ 'x' */", " /*+ a /*+ b */ */", " /* c */ /*+ COALESCE(1) */", " -- c\n/*+ COALESCE(1) */",
)  # fmt: skip
_QUANTIFIERS = ("", "", "", " ALL", " DISTINCT", " all")
_ENDS = ("", "", " GROUP BY ALL", " GROUP BY all, a", " GROUP BY `all`", " GROUP BY (all)", " UNION ALL SELECT 2",
         " UNION SELECT all FROM t", " ORDER BY all", " ORDER BY ALL", " LIMIT ALL", " LIMIT 1", " HAVING all > 1",
         " -- end", " /* end */", ";", " EXCEPT ALL SELECT 3")  # fmt: skip


def worded(dice: random.Random) -> str:
    """A SELECT, often one that is none."""

    def between() -> str:
        return dice.choice(_BETWEEN) if dice.random() < 0.35 else " "

    values = [
        dice.choice(_VALUES)
        + (f"{between()}AS{between()}{dice.choice(('n', '`a b`', 'all'))}" if dice.random() < 0.2 else "")
        for _ in range(dice.choice((1, 1, 2, 3)))
    ]
    selected = f"{between()},{between()}".join(values)
    source = dice.choice(("t", "t", "`t`", "t AS all", "t all", "`from`"))
    condition = (
        f"{between()}WHERE{between()}{dice.choice(_VALUES)} = {dice.choice(_VALUES)}" if dice.random() < 0.3 else ""
    )
    head = f"SELECT{dice.choice(_HINTS)}{dice.choice(_QUANTIFIERS)}"
    return f"{head}{between()}{selected}{between()}FROM{between()}{source}{condition}{dice.choice(_ENDS)}"


_SAMPLES = (
    "", "", "", "", "", "", "", " TABLESAMPLE (10 PERCENT)", " TABLESAMPLE (5 ROWS) REPEATABLE (3)",
    " TABLESAMPLE (2.5 PERCENT) REPEATABLE (7)", " TABLESAMPLE (BUCKET 1 OUT OF 3) REPEATABLE (1)", " TABLESAMPLE (10)",
    " TABLESAMPLE SYSTEM (10 PERCENT)", " TABLESAMPLE (1 ROWS) SEED (3)", " TABLESAMPLE (BUCKET 1 OUT OF 3 ON a)",
)  # fmt: skip
_NAMES = ("c", "c", "c", "c", "d", "t", "`C`", "`C`", "table")
"""So few that two WITHs often give the same one."""


def nested(dice: random.Random, depth: int = 3) -> str:
    """A query of queries: WITHs of one name, inside each other and side by side, samples, and tables without SELECT."""
    again = nested(dice, depth - 1) if depth > 1 and dice.random() < 0.8 else f"SELECT {dice.choice('abx')} AS x"
    other = nested(dice, depth - 2) if depth > 2 else "SELECT q.a AS x"
    name = dice.choice(_NAMES)
    source = f"{dice.choice((*_NAMES, '`table`'))}{dice.choice(_SAMPLES)}"
    return dice.choice((
        f"SELECT x FROM {source}",
        f"SELECT x FROM {source} AS q",
        f"WITH {name} AS ({again}) SELECT x FROM {source}",
        f"WITH {name} AS ({again}) SELECT x FROM {source}",
        f"WITH {name} AS ({again}), d AS ({other}) SELECT x FROM {name} AS q CROSS JOIN d",
        f"SELECT ({again}) AS x, ({other}) AS y FROM {source} AS q",
        f"SELECT x FROM ({again}) AS q",
        f"SELECT x FROM ({again}) AS q WHERE EXISTS ({other})",
        f"SELECT x FROM {source} WHERE x IN ({again})",
        f"({again}) UNION ALL ({other})",
        f"WITH {name} AS ({again}) ({other}) UNION ALL SELECT x FROM {name}",
        f"SELECT x FROM (TABLE {name}) AS q",
        f"WITH {name} AS (TABLE t) {other}",
        f"SELECT x FROM {name} CROSS JOIN LATERAL ({again}) AS q",
        f"TABLE {name}",
    ))  # fmt: skip


class PlanParser:
    """What Spark's parser makes of a whole query."""

    def __init__(self, spark: SparkSession) -> None:
        self._parser = spark._jsparkSession.sessionState().sqlParser()

    def plan(self, text: str) -> str | None:
        """None for what is no query to Spark."""
        try:
            found = str(self._parser.parsePlan(text).toString())
        except ParseException:
            return None
        # Numbers of expressions count up; the case of a function's name and of texts side by side say nothing.
        found = re.sub(r"#\d+L?", "", found).replace("'CONCAT(a, b)", "ab")
        return re.sub(r"'?\b\w+\(", lambda call: call.group().lower().lstrip("'"), found)


def read_differently(plans: PlanParser, text: str) -> tuple[Difference | None, bool]:
    """Where Spark finds something else in what we render, and whether we and Spark read the text at all."""
    try:
        ours = render(parse_query(text))
    except InvalidInput:
        return None, False
    written, again = plans.plan(text), plans.plan(ours)
    return (None if written == again else Difference(text, ours, repr(written))), written is not None
