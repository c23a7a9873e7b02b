"""What a definition says, as values: the columns of a view's files, how each is computed, and the user's names."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Aggregate(StrEnum):
    """How a stored column is computed from rows, and merged from other stored columns."""

    SUM = "sum"
    COUNT = "count"
    COUNT_ROWS = "count_rows"
    MIN = "min"
    MAX = "max"
    SUM_FOR_AVG = "sum_for_avg"
    HLL = "hll"
    DISTINCT = "distinct"
    """A sketch of the values' hashes: `hll_sketch_agg` takes few types, and does not count an empty text."""
    THETA = "theta"
    KLL_BIGINT = "kll_bigint"
    KLL_DOUBLE = "kll_double"
    KLL_FLOAT = "kll_float"


@dataclass(frozen=True, slots=True)
class Key:
    """A column by which rows are told apart. The expression is Spark SQL over the table's columns."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A column of partial aggregates. Rows for which the condition does not hold are not counted."""

    name: str
    aggregate: Aggregate
    argument: str | None
    condition: str | None


@dataclass(frozen=True, slots=True)
class Output:
    """A column as the user named it, and the columns of the files that it comes from."""

    name: str
    kind: Literal["key", "measure"]
    function: str
    """Of a measure: the aggregate in lower case, such as "avg". Of a key: empty."""
    stored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A view's query, taken apart. Every expression is Spark SQL over the table's columns, without qualifiers."""

    table: str
    keys: tuple[Key, ...]
    stored: tuple[Stored, ...]
    outputs: tuple[Output, ...]
    where: str | None
    """The user's condition. That a row lies in the bucket is another one, and the worker's to add."""
    columns: tuple[str, ...]
    """The table's columns that are read, sorted; the time column is always among them."""
    is_projection: bool
    """Neither GROUP BY nor an aggregate: each row that satisfies the condition is kept."""

    @property
    def stored_columns(self) -> tuple[str, ...]:
        """The columns of the view's files, in order."""
        return tuple(key.name for key in self.keys) + tuple(column.name for column in self.stored)
