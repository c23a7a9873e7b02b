"""Why a query is refused, and why a view does not serve it. docs/queries.md lists each of them."""

from enum import StrEnum

from floodmark.core.errors import InvalidInput


class Refusal(StrEnum):
    """What cannot be asked at all."""

    UNKNOWN_TABLE = "unknown-table"
    TABLE_FUNCTION = "table-function"
    READS_OUTSIDE = "reads-outside"
    UNKNOWN_COLUMN = "unknown-column"


class Miss(StrEnum):
    """Why a view is not used. The rows come from elsewhere; they are the same."""

    REWRITE_OFF = "rewrite-off"
    SEVERAL_TABLES = "several-tables"
    NOT_UNDERSTOOD = "not-understood"
    NO_DEFINITION = "no-definition"
    NOT_ROWS = "not-rows"
    FILTER_OF_VIEW = "filter-of-view"
    FILTER_NOT_IN_VIEW = "filter-not-in-view"
    KEY_NOT_IN_VIEW = "key-not-in-view"
    COLUMN_NOT_IN_VIEW = "column-not-in-view"
    AGGREGATE_NOT_IN_VIEW = "aggregate-not-in-view"
    TYPE_UNKNOWN = "type-unknown"
    SIGN_OF_ZERO = "sign-of-zero"
    ORDER_OF_MAP = "order-of-map"
    DECIMAL_AVERAGE = "decimal-average"
    NOTHING_CURRENT = "nothing-current"
    COSTS_MORE = "costs-more"


class Missed(Exception):
    """A view cannot serve a query; says which rule it was."""

    def __init__(self, rule: Miss, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def refused(rule: Refusal, message: str) -> InvalidInput:
    return InvalidInput(rule.value, message)


def no_table(name: str) -> InvalidInput:
    return refused(Refusal.UNKNOWN_TABLE, f"there is no table {name!r}")
