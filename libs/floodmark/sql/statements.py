"""What a request asks for, as a value: every statement that the broker understands.

CREATE TABLE [IF NOT EXISTS] t [(column type, ...)] USING parquet LOCATION '...' TBLPROPERTIES (...) [DRY RUN]
ALTER TABLE t SET TBLPROPERTIES (...) | UNSET TBLPROPERTIES (...)
DROP TABLE [IF EXISTS] t
CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] v [LOCATION '...'] TBLPROPERTIES (...) AS SELECT ... [DRY RUN]
REFRESH MATERIALIZED VIEW v [FROM time TO time | BUCKET time]
PAUSE | RESUME MATERIALIZED VIEW v
DROP MATERIALIZED VIEW [IF EXISTS] v
SHOW TABLES | REFUSED FILES t | MATERIALIZED VIEWS | CREATE TABLE t | CREATE MATERIALIZED VIEW v
DESCRIBE [TABLE | MATERIALIZED VIEW] name
EXPLAIN SELECT ...
WHY STALE v [time]
SET floodmark.rewrite = on | off;  SET floodmark.freshness = strict | bounded 10s
SELECT ...
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class StatementRule(StrEnum):
    """What a statement may break before anything is looked up. docs/broker.md lists each of them."""

    ONE_STATEMENT = "one-statement"
    UNKNOWN_STATEMENT = "unknown-statement"
    STATEMENT_SYNTAX = "statement-syntax"
    FORMAT = "format"
    COLUMN_TYPE = "column-type"
    DUPLICATE_PROPERTY = "duplicate-property"
    ALTER_TABLE = "alter-table"
    SETTING = "setting"


@dataclass(frozen=True, slots=True)
class CreateTable:
    name: str
    location: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    """Name and SQL type of each, as written; none means those of the first file."""
    properties: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class AlterTable:
    """Properties to set; None for one that is to be as if it had never been set."""

    name: str
    properties: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DropTable:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateView:
    name: str
    select: str
    location: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    or_replace: bool = False
    if_not_exists: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RefreshView:
    """Times as written. A bucket is named by any time inside it; nothing at all means the whole view."""

    name: str
    start: str | None = None
    end: str | None = None
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class PauseView:
    name: str


@dataclass(frozen=True, slots=True)
class ResumeView:
    name: str


@dataclass(frozen=True, slots=True)
class DropView:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowTables:
    pass


@dataclass(frozen=True, slots=True)
class ShowRefusedFiles:
    table: str


@dataclass(frozen=True, slots=True)
class ShowViews:
    pass


@dataclass(frozen=True, slots=True)
class ShowCreate:
    kind: Literal["table", "view"]
    name: str


@dataclass(frozen=True, slots=True)
class Describe:
    name: str
    kind: Literal["table", "view"] | None = None


@dataclass(frozen=True, slots=True)
class Explain:
    select: str


@dataclass(frozen=True, slots=True)
class WhyStale:
    view: str
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class SetOption:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Select:
    text: str


Statement = (
    CreateTable
    | AlterTable
    | DropTable
    | CreateView
    | RefreshView
    | PauseView
    | ResumeView
    | DropView
    | ShowTables
    | ShowRefusedFiles
    | ShowViews
    | ShowCreate
    | Describe
    | Explain
    | WhyStale
    | SetOption
    | Select
)

CHANGING = (CreateTable, AlterTable, DropTable, CreateView, RefreshView, PauseView, ResumeView, DropView)
"""Statements that change something: they need the admin role."""
