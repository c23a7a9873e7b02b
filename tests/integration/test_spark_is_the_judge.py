"""What we make of a text is what Spark makes of it: operators, names, types and times, by thousands of random ones.

`FLOODMARK_JUDGED=100000 FLOODMARK_JUDGE_SEED=7` asks for more of them, and for others.
"""

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import map_from_entries
from sqlglot import exp
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from floodmark.query import bounds, kinds, moments, representatives
from floodmark.query.representatives import has_several_values
from floodmark.spark.columns import spark_schema
from floodmark.spark.session import open_session
from floodmark.sql import columns, grammar, parsing
from floodmark.sql.columns import Columns
from floodmark.sql.lexing import Lexed
from floodmark.sql.parsing import render
from tests.support import sql_values
from tests.support.spark_judge import (
    COLUMNS,
    MIXED,
    Analyzer,
    Difference,
    Parser,
    Typed,
    Unbound,
    binding,
    merged_unnoticed,
    mixed,
    reference,
    tree_of,
    typing,
)
from tests.support.spark_times import KINDS, Timed, bounding, frame, understood
from tests.support.spark_words import PlanParser, nested, read_differently, worded
from tests.support.sql_values import ROWS, Kind, Values

pytestmark = pytest.mark.timeout(900 if "FLOODMARK_JUDGED" not in os.environ else 7200)

JUDGED = int(os.environ.get("FLOODMARK_JUDGED", "1500"))
SEED = int(os.environ.get("FLOODMARK_JUDGE_SEED", "1"))
AT_ONCE = 100


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    options = {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1", "spark.sql.codegen.wholeStage": "false"}
    session = open_session(options, name="judge")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def parser(spark: SparkSession) -> Parser:
    return Parser(spark)


@pytest.fixture(scope="module")
def plans(spark: SparkSession) -> PlanParser:
    return PlanParser(spark)


@pytest.fixture(scope="module")
def analyzer(spark: SparkSession) -> Analyzer:
    return Analyzer(spark, COLUMNS)


@pytest.fixture(scope="module")
def mixer(spark: SparkSession) -> Analyzer:
    return Analyzer(spark, MIXED)


@pytest.fixture(scope="module")
def times(spark: SparkSession) -> SparkSession:
    frame(spark)
    return spark


def bound_differently(parser: Parser, counts: Counter[str]) -> Iterator[Difference]:
    for n in range(JUDGED):
        text = Unbound(random.Random(f"{SEED} {n}")).expression()
        if (tree := tree_of(text)) is not None:
            counts["read"] += 1
            if (difference := binding(parser, text, tree)) is not None:
                yield difference


def worded_differently(
    plans: PlanParser, counts: Counter[str], made: Callable[[random.Random], str] = worded
) -> Iterator[Difference]:
    for n in range(JUDGED):
        text = made(random.Random(f"{SEED} {n}"))
        difference, is_read = read_differently(plans, text)
        counts["read"] += is_read
        if difference is not None:
            yield difference


def typed_differently(analyzer: Analyzer, counts: Counter[str]) -> Iterator[Difference]:
    texts = [Typed(random.Random(f"{SEED} {n}")).expression() for n in range(JUDGED)]
    for first in range(0, len(texts), AT_ONCE):
        differences, known = typing(analyzer, texts[first : first + AT_ONCE])
        counts["known"] += known
        yield from differences


def merged_unnoticed_by_us(mixer: Analyzer, counts: Counter[str]) -> Iterator[Difference]:
    texts = [mixed(random.Random(f"{SEED} {n}")) for n in range(JUDGED)]
    for first in range(0, len(texts), AT_ONCE):
        wrong, known = merged_unnoticed(mixer, texts[first : first + AT_ONCE], MIXED, has_several_values)
        counts["known"] += known
        yield from wrong


def timed_differently(spark: SparkSession, column: str) -> Iterator[Difference]:
    """A tenth as many, for each is evaluated over a few hundred rows."""
    conditions = [Timed(random.Random(f"{SEED} {n}"), column).condition() for n in range(JUDGED // 10)]
    for first in range(0, len(conditions), AT_ONCE // 2):
        yield from bounding(spark, column, conditions[first : first + AT_ONCE // 2])


@pytest.mark.scenario("Q13")
def test_operators_bind_as_they_do_for_spark(parser: Parser) -> None:
    """INV-12: also on the way to the base table, where the query is rendered as it was read."""
    counts: Counter[str] = Counter()
    assert list(bound_differently(parser, counts)) == []
    assert counts["read"] > 0.9 * JUDGED


@pytest.mark.scenario("Q13")
def test_comments_quotes_hints_and_words_are_sparks(plans: PlanParser) -> None:
    """INV-12: what stands in a comment or between quotes is nothing else, and no word is a name by mistake."""
    counts: Counter[str] = Counter()
    assert list(worded_differently(plans, counts)) == []
    assert counts["read"] > 0.4 * JUDGED, "many of them are no SQL on purpose"


@pytest.mark.scenario("Q13")
def test_a_with_a_sample_and_a_table_stand_where_they_stand_for_spark(plans: PlanParser) -> None:
    """INV-12: a WITH that is moved is another one's, or nobody's."""
    counts: Counter[str] = Counter()
    assert list(worded_differently(plans, counts, nested)) == []
    assert counts["read"] > 0.3 * JUDGED


@pytest.mark.scenario("Q13")
def test_a_number_has_the_type_that_spark_gives_it(analyzer: Analyzer) -> None:
    counts: Counter[str] = Counter()
    assert list(typed_differently(analyzer, counts)) == []
    assert counts["known"] > 0.9 * JUDGED


@pytest.mark.scenario("Q13")
def test_what_has_one_value_to_us_has_neither_floats_nor_maps_to_spark(mixer: Analyzer) -> None:
    """INV-12: a key that has them inside is a group of rows with several values."""
    counts: Counter[str] = Counter()
    assert list(merged_unnoticed_by_us(mixer, counts)) == []
    assert counts["known"] > 0.1 * JUDGED


def test_random_expressions_have_the_values_that_spark_gives_them(spark: SparkSession) -> None:
    """By which `tests/property/test_sql_known_bugs_values.py` judges."""
    values = [Values(random.Random(f"{SEED} {n}")).any() for n in range(min(JUDGED, 400))]
    values += [Values(random.Random(f"{SEED} {n}")).of_time() for n in range(min(JUDGED, 100))]
    frame = valued(spark)
    wrong = []
    for first in range(0, len(values), AT_ONCE):
        some = values[first : first + AT_ONCE]
        texts = (f"map_entries({made.text})" if made.kind is Kind.MAP else made.text for made in some)
        found = frame.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(texts))).collect()
        for made, *sparks in zip(some, *found, strict=True):
            ours = [_comparable(made.value(row)) for row in ROWS]
            if ours != (theirs := [_comparable(value) for value in sparks]):
                wrong.append(f"{made.text}: {ours} is {theirs}")
    assert wrong == []


def valued(spark: SparkSession) -> DataFrame:
    """The rows. Python's way to Spark does not keep the order of a map's entries, so they go there as a list."""
    columns = {**sql_values.COLUMNS, "tags": "list<struct<key: string, value: int64>>"}
    rows = [tuple(list(value) if isinstance(value, tuple) else value for value in row.values()) for row in ROWS]
    frame = spark.createDataFrame(rows, spark_schema(columns, list(columns), table="valued")).coalesce(1)
    return frame.withColumn("tags", map_from_entries("tags"))


def _comparable(value: Any) -> str:
    """In one spelling. A time without a zone is one in the zone of this machine, as the driver makes them."""
    if isinstance(value, datetime):
        return repr(value.astimezone(UTC))
    return f"({', '.join(map(_comparable, value))})" if isinstance(value, list | tuple) else repr(value)


@pytest.mark.parametrize("column", KINDS)
def test_a_condition_on_time_holds_where_we_say_and_nowhere_else(times: SparkSession, column: str) -> None:
    """INV-12: what need not be read, and which buckets are taken as they are."""
    assert list(timed_differently(times, column)) == []
    conditions = [Timed(random.Random(f"{SEED} {n}"), column).condition() for n in range(JUDGED // 10)]
    assert sum(understood(column, condition) for condition in conditions) > JUDGED // 100


def test_a_name_means_the_column_that_it_means_to_spark(analyzer: Analyzer) -> None:
    """Columns differ by type, so the type says which one was meant."""
    dice = random.Random(SEED)
    texts = [reference(dice, list(COLUMNS), "judged") for _ in range(min(JUDGED, 2_000))]
    known = Columns(COLUMNS, qualifier="judged", time_column="t")
    resolved = [render(known.resolved(tree)) for text in texts if (tree := tree_of(text)) is not None]
    assert len(resolved) == len(texts)
    written, ours = analyzer.types(texts), analyzer.types(resolved)
    assert None not in written
    assert [text for text, one, other in zip(texts, written, ours, strict=True) if one != other] == []


@pytest.mark.scenario("Q13")
def test_fields_of_a_struct_are_called_as_they_were_written(analyzer: Analyzer) -> None:
    """However the columns are called that a rewrite puts in their place: the type has the fields' names."""
    assert structs_named_differently(analyzer) == []


def structs_named_differently(analyzer: Analyzer) -> list[str]:
    dice = random.Random(SEED)
    forms = ("struct({}, {})", "({}, {})", "struct({} AS x, {})", "(({}), i + 1, {})", "struct(struct({}), {}, 1)",
             "array(struct({}, count(*)), struct({}, 2L))", "to_json(struct({}, {}))")  # fmt: skip
    texts = []
    for _ in range(min(JUDGED, 500)):
        one, other = dice.sample([name for name in COLUMNS if name not in "uv"], 2)
        texts.append(dice.choice(forms).format(*(reference(dice, [name], "judged") for name in (one, other))))
    known = Columns(COLUMNS, qualifier="judged", time_column="t")
    resolved = [render(known.resolved(tree)) for text in texts if (tree := tree_of(text)) is not None]
    assert len(resolved) == len(texts)
    written, ours = analyzer.types(texts), analyzer.types(resolved)
    return [text for text, one, other in zip(texts, written, ours, strict=True) if one != other]


# -- with a mend taken out again, it is found --------------------------------------------------------------------------


def _sqlglots_ladder(patch: pytest.MonkeyPatch) -> None:
    for name in ("_parse_bitwise", "_parse_term", "_parse_factor", "_parse_unary"):
        patch.setattr(grammar.DefinitionParser, name, getattr(SparkParser, name))


def _no_parentheses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grammar, "operand", lambda tree: tree)


def _sqlglots_predicates(patch: pytest.MonkeyPatch) -> None:
    for name in ("_parse_equality", "_parse_comparison", "_parse_range"):
        patch.setattr(grammar.DefinitionParser, name, getattr(SparkParser, name))


def _plus_is_nothing(patch: pytest.MonkeyPatch) -> None:
    unary = grammar.DefinitionParser._parse_unary

    def without_plus(self: grammar.DefinitionParser) -> exp.Expr | None:
        return without_plus(self) if self._match(TokenType.PLUS) else unary(self)

    patch.setattr(grammar.DefinitionParser, "_parse_unary", without_plus)


def _a_sign_after_the_cast(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grammar, "_negative", lambda tree: exp.Neg(this=tree))


def _chains_of_comparisons(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grammar, "_COMPARISON", -1)
    patch.setattr(grammar.DefinitionParser, "_parse_bitwise", lambda self: self._value(0))


def _suffixes_are_units(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grammar, "_PLAIN_NUMBER", re.compile(".*"))


def _exponents_take_a_sign(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parsing, "with_signs_after_exponents", lambda tokens, _: tokens)


@pytest.mark.parametrize(
    "mistake",
    [_sqlglots_ladder, _no_parentheses, _sqlglots_predicates, _plus_is_nothing, _a_sign_after_the_cast,
     _chains_of_comparisons, _suffixes_are_units, _exponents_take_a_sign],
)  # fmt: skip
def test_operators_that_bind_otherwise_are_found(
    parser: Parser, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    assert next(bound_differently(parser, Counter()), None) is not None


def _comments_and_quotes_are_sqlglots(patch: pytest.MonkeyPatch) -> None:
    class Uncut(Lexed):
        def check(self, _: object) -> None:
            pass

    patch.setattr(parsing, "lexed", lambda text: Uncut(text, frozenset(), 0))


def _all_is_never_a_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parsing, "with_names_called_all", lambda tokens: tokens)


def _commas_may_have_nothing_after_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grammar.DefinitionParser, "_parse_csv", SparkParser._parse_csv)


@pytest.mark.parametrize(
    "mistake", [_comments_and_quotes_are_sqlglots, _all_is_never_a_name, _commas_may_have_nothing_after_them]
)
def test_texts_that_are_cut_up_otherwise_are_found(
    plans: PlanParser, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    assert next(worded_differently(plans, Counter()), None) is not None


def _every_with_is_at_the_top(patch: pytest.MonkeyPatch) -> None:
    at_the_top = {exp.Select, exp.Subquery, exp.SetOperation}
    patch.setattr(grammar.DefinitionGenerator, "EXPRESSIONS_WITHOUT_NESTED_CTES", at_the_top)


def _a_sample_has_a_seed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grammar.DefinitionGenerator, "TABLESAMPLE_SEED_KEYWORD", "SEED")


def _samples_are_sqlglots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grammar.DefinitionParser, "_parse_table_sample", SparkParser._parse_table_sample)


def _table_is_a_name(patch: pytest.MonkeyPatch) -> None:
    normalised = parsing._normalised
    patch.setattr(parsing, "_normalised", lambda node: node if isinstance(node, exp.Table) else normalised(node))


@pytest.mark.parametrize(
    "mistake", [_every_with_is_at_the_top, _a_sample_has_a_seed, _samples_are_sqlglots, _table_is_a_name]
)
def test_queries_that_are_put_together_otherwise_are_found(
    plans: PlanParser, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    assert next(worded_differently(plans, Counter(), nested), None) is not None


def test_fields_that_are_called_after_other_columns_are_found(
    analyzer: Analyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "name_fields", lambda _: None)
    monkeypatch.setattr(columns, "check_field_names", lambda _: None)
    assert structs_named_differently(analyzer)


def _a_negative_number_has_the_size_of_its_type(patch: pytest.MonkeyPatch) -> None:
    written = kinds._written
    patch.setattr(kinds, "_written", lambda tree: None if isinstance(tree, exp.Neg) else written(tree))


def _division_of_floats_is_a_float(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kinds, "DOUBLE", kinds.FLOAT)


def _too_wide_a_choice_loses_digits_as_a_sum_does(patch: pytest.MonkeyPatch) -> None:
    wider = kinds._wider

    def bounded(one: kinds.Kind, other: kinds.Kind) -> kinds.Kind:
        made = wider(one, other)
        if not isinstance(made, kinds.Decimal) or isinstance(one, kinds.Real) or isinstance(other, kinds.Real):
            return made
        left, right = kinds._plain_decimal(one), kinds._plain_decimal(other)
        scale = max(left.scale, right.scale)
        return kinds._bounded(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)

    patch.setattr(kinds, "_wider", bounded)


def _a_number_is_one_of_all_digits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kinds, "_as_decimal", lambda _tree, kind: kinds._plain_decimal(kind))


@pytest.mark.parametrize(
    "mistake",
    [_a_negative_number_has_the_size_of_its_type, _division_of_floats_is_a_float,
     _too_wide_a_choice_loses_digits_as_a_sum_does, _a_number_is_one_of_all_digits],
)  # fmt: skip
def test_types_that_are_not_sparks_are_found(
    analyzer: Analyzer, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    assert next(typed_differently(analyzer, Counter()), None) is not None


def _joined_arrays_are_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(representatives, "_joined", lambda *_: representatives._Family.TEXT)


def _a_choice_is_of_what_it_chooses_from(patch: pytest.MonkeyPatch) -> None:
    def one_of(values: Iterable[exp.Expr], columns: Mapping[str, str]) -> object:
        known = [representatives._known(value, columns) for value in values]
        return None if None in known else known[0]

    patch.setattr(representatives, "_one_of", one_of)


@pytest.mark.parametrize("mistake", [_joined_arrays_are_text, _a_choice_is_of_what_it_chooses_from])
def test_floats_that_are_not_noticed_are_found(
    mixer: Analyzer, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    assert next(merged_unnoticed_by_us(mixer, Counter()), None) is not None


def _text_is_cut_to_a_day_as_a_timestamp(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bounds, "midnight_us", moments.moment_us)


def _zones_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    anything = re.compile(moments._TIME.pattern.replace("(?:Z|\\+00:00)?", r"(?:Z|[+-]\d\d:\d\d)?"), re.ASCII)
    patch.setattr(moments, "_TIME", anything)


def _a_millisecond_is_the_smallest(patch: pytest.MonkeyPatch) -> None:
    exact = bounds._bounds
    patch.setattr(bounds, "_bounds", lambda op, ns, **how: exact(op, ns // 1_000_000 * 1_000_000, **how))


@pytest.mark.parametrize(
    "mistake", [_text_is_cut_to_a_day_as_a_timestamp, _zones_are_not_looked_at, _a_millisecond_is_the_smallest]
)
def test_times_that_are_not_sparks_are_found(
    times: SparkSession, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    assert any(next(timed_differently(times, column), None) is not None for column in KINDS)
