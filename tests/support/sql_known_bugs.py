"""Faults that the SQL layer once had, each as a patch that brings it back: the generator has to find every one.

A row says which part of the code is replaced by what it was. Cases are drawn with every mend in place; an exception, a
refusal too, is wrong as well.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from sqlglot import exp

from floodmark.query import asked, expansion, planner, rewriting, shapes, statements
from floodmark.query.asked import Term
from floodmark.query.expansion import SourceNames
from floodmark.query.plan import QueryPlan
from floodmark.query.shapes import ViewShape
from floodmark.sql import columns, lambdas, parsing
from floodmark.sql.grammar import DefinitionGenerator
from tests.support.sql_dice import Case, difference, random_case, right_answers, wrong_answers


@cache
def _drawn(seed: int) -> tuple[Case, list[QueryPlan], list[list[tuple[Any, ...]]]]:
    """A case, what is planned for its queries and what is right. Every bug is looked for in the same ones."""
    case = random_case(random.Random(seed))
    return case, [case.bench.plan(query.asked) for query in case.queries], right_answers(case)


def _wrong(seed: int) -> str | None:
    """Only plans that are other ones than with the mend can answer otherwise."""
    case, plans, right = _drawn(seed)
    for query, planned, expected in zip(case.queries, plans, right, strict=True):
        made = case.bench.plan(query.asked)
        if (made.sql, made.sources) != (planned.sql, planned.sources):
            wrong = difference(case, query, made, expected)
            if wrong is not None:
                return wrong
    return None


@dataclass(frozen=True)
class Bug:
    item: int
    """Of the audit that found it; 0 for those that another one found."""
    title: str
    patches: Mapping[tuple[Any, str], Any]
    """What stands in the place of which attribute of which module or class."""
    within: int = 150
    """Seeds, which is what the gate tries."""

    def __str__(self) -> str:
        return f"{self.item}: {self.title}"

    @contextmanager
    def present(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for (owner, attribute), old in self.patches.items():
                patch.setattr(owner, attribute, old, raising=False)
            planner._parsed_before.cache_clear()
            try:
                yield
            finally:
                planner._parsed_before.cache_clear()

    def found_by(self) -> str | None:
        """What was seen, and with which seed. With the mend, the same case has no wrong answer."""
        for seed in range(self.within):
            case, *_ = _drawn(seed)
            with self.present():
                try:
                    wrong = _wrong(seed)
                except Exception as error:  # whatever it is: with the mend, each of these queries is planned
                    wrong = repr(error)
            if wrong is not None:
                assert next(wrong_answers(case), None) is None, f"seed {seed} is wrong with the mend as well"
                return f"seed {seed}: {wrong}"
        return None


# -- what the code was -------------------------------------------------------------------------------------------------


class _Wishes:
    """Names as they are wished for, whoever else has them."""

    def __init__(self, taken: object) -> None:
        pass

    def of(self, wish: str) -> str:
        return wish


def _own_name(names: SourceNames, table: str) -> str:
    names._tables[table] = table
    return table


def _all_but_itself(child: exp.Expr, above: exp.Expr) -> list[exp.Expr]:
    """A WITH as if its names were seen everywhere but in their own query."""
    if isinstance(above, exp.With):
        return [cte for cte in above.expressions if cte is not child]
    given = above.args.get("with_") if isinstance(above, exp.Query) else None
    return given.expressions if given is not None and given is not child else []


def _spelled_the_same(root: exp.Expr) -> None:
    """Parameters told from columns by their very letters."""
    for function in root.find_all(exp.Lambda):
        names = {parameter.name for parameter in function.expressions}
        for column in list(function.this.find_all(exp.Column)):
            if column.parts[0].name in names:
                column.replace(lambdas._as_parameter(column))


_asked_of = asked.asked_of


def _asked_of_a_table(tree: exp.Query, table: Any) -> Any:
    if isinstance(tree, exp.Select):
        assert tree.args["from_"] is not None, "there is a table"
    return _asked_of(tree, table)


def _as_it_is(root: exp.Expr) -> exp.Expr:
    return root


def _but_text(shape: ViewShape) -> frozenset[str]:
    """The keys that have several values, as if `||` always made text. Views are analysed before a bug is put in."""
    merging: frozenset[str] = vars(shape)["_merging"]
    return frozenset(name for text, name in shape.keys.items() if name in merging and "||" not in text)


BUGS = (
    Bug(1, "names of the rewrite are those of somebody's columns", {(planner, "Names"): _Wishes}),
    Bug(2, "a constant that rows are ordered by becomes a position", {(asked, "_is_constant"): lambda tree: False}),
    Bug(3, "a WITH of the table's name captures the query of a view", {(SourceNames, "of"): _own_name}),
    Bug(3, "a WITH is seen by what stands before it", {(statements, "_seen_from"): _all_but_itself}),
    Bug(
        6,
        "a column that lost its qualifier becomes a parameter",
        {(columns, "rename_parameters"): _as_it_is, (rewriting, "rename_parameters"): _as_it_is},
    ),
    Bug(6, "a column of a view becomes a parameter", {(rewriting, "rename_parameters"): _as_it_is}),
    Bug(6, "a column in a condition that is repeated inside becomes a parameter",
        {(expansion, "rename_parameters"): _as_it_is}),
    Bug(6, "a parameter in other letters is a column", {(parsing, "mark_parameters"): _spelled_the_same}),
    Bug(6, "a parameter is a key of the view", {(Term, "is_open"): lambda term, part: False}),
    Bug(9, "zeros are the same in every way", {(shapes, "tells_values_apart"): lambda *_, **__: False}),
    Bug(9, "what || makes of arrays is text", {(ViewShape, "_merging"): property(_but_text)}),
    Bug(0, "every WITH is moved to the top",
        {(DefinitionGenerator, "EXPRESSIONS_WITHOUT_NESTED_CTES"): {exp.Select, exp.Subquery, exp.SetOperation},
         (statements, "check_rendering"): lambda _: None}, within=20),
    Bug(17, "a query without FROM cannot be taken apart", {(planner, "asked_of"): _asked_of_a_table}),
)  # fmt: skip
