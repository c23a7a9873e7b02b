"""Text that Spark reads as a time of its own clock: 'now' compared with a timestamp is the time of the query.

As text, where no time is near, these words are as good as any other.
"""

import re
from collections.abc import Iterator

from sqlglot import exp

from floodmark.sql.functions import OF_TIMES
from floodmark.sql.parsing import render
from floodmark.sql.rules import Rule, refused, shown

TEMPORAL = (
    exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ,
)  # fmt: skip
_CLOCK_WORD = re.compile(r"\s*(now|today|yesterday|tomorrow)\b.*", re.IGNORECASE | re.DOTALL)


def check_clock_words(root: exp.Expr, *, times: frozenset[str]) -> None:
    """Refuse 'now' where it becomes a time. `times` are the columns with dates or timestamps."""
    words = [node for node in root.find_all(exp.Literal) if node.is_string and _CLOCK_WORD.fullmatch(node.name)]
    if words:
        near_times = _with_a_time_inside(root, times)
        for literal in words:
            for node in _partners(literal):
                if id(node) in near_times:
                    raise refused(
                        Rule.NONDETERMINISTIC,
                        f"{shown(render(literal))} together with {shown(render(node))} is the time at which a bucket "
                        "is built; write a fixed date or time",
                    )


def _partners(literal: exp.Literal) -> Iterator[exp.Expr]:
    """What decides the literal's type: the expression it is in, or the other values of its CASE."""
    parent = literal.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    case = parent.parent if isinstance(parent, exp.If) and isinstance(parent.parent, exp.Case) else parent
    if isinstance(case, exp.Case | exp.If):
        branches = case.args["ifs"] if isinstance(case, exp.Case) else [case]
        default = case.args.get("default") or case.args.get("false")
        yield from filter(None, [*(branch.args["true"] for branch in branches), default])
        if isinstance(case, exp.Case) and case.this is not None:
            yield case.this
    elif parent is not None:
        yield parent


def _with_a_time_inside(root: exp.Expr, times: frozenset[str]) -> set[int]:
    """The nodes that are or contain a time, by identity: each is visited once, however long the expression."""
    found: set[int] = set()
    for time in root.walk():
        node: exp.Expr | None = time if _is_time(time, times) else None
        while node is not None and id(node) not in found:
            found.add(id(node))
            node = node.parent
    return found


def _is_time(node: exp.Expr, times: frozenset[str]) -> bool:
    return (
        (isinstance(node, exp.Column) and node.name in times)
        or (isinstance(node, exp.Cast) and node.to.this in TEMPORAL)
        or isinstance(node, exp.Extract)
        or (isinstance(node, exp.Anonymous) and node.name.lower() in OF_TIMES)
    )
