"""The rules a definition may break, by the id that a refusal carries. docs/sql.md lists each of them."""

from enum import StrEnum

from floodmark.core.errors import InvalidInput

SHOWN_CHARS_MAX = 120  # enough to recognise the offender; the sender decides how long it is


class Rule(StrEnum):
    NOT_SQL = "not-sql"
    UNSUPPORTED_SYNTAX = "unsupported-syntax"
    PARAMETER = "parameter"
    WRONG_TABLE = "wrong-table"
    ONE_TABLE = "one-table"
    SELECT_STAR = "select-star"
    DISTINCT = "distinct"
    HAVING = "having"
    ORDER_BY = "order-by"
    LIMIT = "limit"
    OFFSET = "offset"
    SAMPLING = "sampling"
    PIVOT = "pivot"
    HINT = "hint"
    WINDOW_FUNCTION = "window-function"
    GENERATOR = "generator"
    NONDETERMINISTIC = "nondeterministic"
    UNKNOWN_COLUMN = "unknown-column"
    UNNAMED_OUTPUT = "unnamed-output"
    DUPLICATE_NAME = "duplicate-name"
    RESERVED_NAME = "reserved-name"
    GROUP_BY = "group-by"
    GROUPING_SETS = "grouping-sets"
    NOT_GROUPED = "not-grouped"
    KEY_NOT_SELECTED = "key-not-selected"
    AGGREGATE_UNSUPPORTED = "aggregate-unsupported"
    AGGREGATE_ARGUMENT = "aggregate-argument"
    AGGREGATE_MISPLACED = "aggregate-misplaced"
    COMBINED_AGGREGATE = "combined-aggregate"
    COLLATION = "collation"
    TIME_KEY = "time-key"


def refused(rule: Rule, message: str) -> InvalidInput:
    """The refusal, for the caller to raise."""
    return InvalidInput(rule.value, message)


def shown(text: str) -> str:
    """Text as a message quotes it: on one line, and not longer than a message should be."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS_MAX else f"{line[:SHOWN_CHARS_MAX]}..."
