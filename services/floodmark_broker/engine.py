"""One request from its text to its rows: read the statement, check the role, carry it out or plan and run it.

    plan --> run --files vanished--> plan again --> run --again--> ... --> plan without views --> run

A plan is out of date as soon as a view it reads is rebuilt or dropped. That is no error: the next plan knows better,
and the last one reads base tables only (Q9).
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import structlog

from floodmark.catalog.durations import parse_duration_ms
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.ports import Clock
from floodmark.query.plan import Bounded, Freshness, QueryPlan, Strict
from floodmark.service.access import Role, require
from floodmark.sql.reading import read_statement
from floodmark.sql.statements import CHANGING, Explain, Select, SetOption, Statement, StatementRule
from floodmark_broker.base_files import FilesUnreadable, FilesVanished
from floodmark_broker.books import Books
from floodmark_broker.commands import Commands, relation
from floodmark_broker.execution import Executed, Execution
from floodmark_broker.receipts import document_of, explanation
from floodmark_broker.stopping import Queries, Ticket

log = structlog.get_logger()

PLANS_MAX = 4
"""How often a query is planned before its files are given up. The last plan uses no view."""
WAIT_BETWEEN_PLANS_MS = 250

Settings = Mapping[str, str]
Document = dict[str, Any]


class Plans(Protocol):
    def planned(self, select: str, *, freshness: Freshness, rewrite: bool) -> AbstractContextManager[QueryPlan]: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and how its client waits for it."""

    sql: str
    query_id: str
    settings: Settings
    role: Role
    rows_max: int
    within_ms: int
    has_gone: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Answered:
    query_id: str
    rows: pa.Table
    receipt: Document | None = None
    settings: Settings = field(default_factory=dict)
    """What a SET has changed, for the client to send with what it asks next."""


@dataclass(frozen=True, slots=True)
class Engine:
    planner: Plans
    execution: Execution
    commands: Commands
    queries: Queries
    clock: Clock
    books: Books
    after_command: Callable[[], None]
    """So that whoever creates a view and asks at once is answered from what is there now."""

    def answer(self, asked: Asked) -> Answered:
        kind = "unknown"
        try:
            statement = read_statement(asked.sql)
            kind = type(statement).__name__
            answered = self._answer(statement, asked)
        except Exception as error:
            self.books.refused(asked.query_id, kind, error)
            raise
        self.books.answered(asked.query_id, kind, answered.receipt)
        return answered

    def _answer(self, statement: Statement, asked: Asked) -> Answered:
        if isinstance(statement, CHANGING):
            require(asked.role, Role.ADMIN)
        if isinstance(statement, SetOption):
            name, value = checked_setting(statement.name, statement.value)
            return Answered(asked.query_id, relation(("setting", "value"), [(name, value)]), settings={name: value})
        if isinstance(statement, Explain):
            with self._planned(statement.select, asked.settings) as plan:
                return Answered(asked.query_id, explanation(plan), document_of(plan.receipt))
        if isinstance(statement, Select):
            return self._select(statement.text, asked)
        rows = self.commands.run(statement)
        self.after_command()
        return Answered(asked.query_id, rows)

    def _select(self, text: str, asked: Asked) -> Answered:
        ticket = Ticket(asked.query_id, text, self.clock.monotonic_ms())
        return self.queries.run(
            ticket,
            lambda ticket: self._run(text, asked, ticket),
            within_ms=asked.within_ms,
            has_gone=asked.has_gone,
        )

    def _run(self, text: str, asked: Asked, ticket: Ticket) -> Answered:
        for number in range(1, PLANS_MAX + 1):
            settings = {**asked.settings, "rewrite": "off"} if number == PLANS_MAX else asked.settings
            try:
                return self._run_once(text, settings, asked, ticket, number)
            except FilesVanished as error:
                log.info("query_planned_again", query_id=ticket.query_id, plans=number, reason=str(error))
                vanished = error
                self.clock.sleep_ms(WAIT_BETWEEN_PLANS_MS * (number - 1))
        if isinstance(vanished, FilesUnreadable):
            raise InvalidInput("file-unreadable", str(vanished))
        raise Unavailable(f"files of the table are registered and not there, or not as registered: {vanished}")

    def _run_once(self, text: str, settings: Settings, asked: Asked, ticket: Ticket, number: int) -> Answered:
        began_ms = self.clock.monotonic_ms()
        with self._planned(text, settings) as plan:
            planned_ms = self.clock.monotonic_ms()
            ticket.check()
            executed = self.execution.run(plan, ticket, rows_max=asked.rows_max)
        times = {"planning_ms": planned_ms - began_ms, "execution_ms": self.clock.monotonic_ms() - planned_ms}
        receipt = {**document_of(plan.receipt), "plans": number, **times, **_read(executed)}
        return Answered(asked.query_id, executed.rows, receipt)

    def _planned(self, select: str, settings: Settings) -> AbstractContextManager[QueryPlan]:
        return self.planner.planned(
            select,
            freshness=freshness_of(settings.get("freshness", "strict")),
            rewrite=settings.get("rewrite", "on") != "off",
        )


def _read(executed: Executed) -> Document:
    read = executed.read
    return {"read": {"files": read.files, "bytes": read.bytes, "rows": read.rows}, "rows": executed.rows.num_rows}


def checked_setting(name: str, value: str) -> tuple[str, str]:
    """A setting by its short name, with a value that it can have."""
    short, wanted = name.lower().removeprefix("floodmark."), " ".join(value.lower().split())
    if short == "rewrite" and wanted in ("on", "off"):
        return short, wanted
    if short == "freshness":
        freshness_of(wanted)
        return short, wanted
    raise InvalidInput(
        StatementRule.SETTING,
        f"there is no setting {name[:80]} = {value[:80]!r}; "
        "write SET floodmark.rewrite = on | off or SET floodmark.freshness = strict | bounded 10s",
    )


def freshness_of(text: str) -> Freshness:
    mode, _, bound = text.partition(" ")
    if mode == "strict" and not bound:
        return Strict()
    if mode == "bounded" and bound:
        return Bounded(parse_duration_ms(bound, what="freshness"))
    raise InvalidInput(StatementRule.SETTING, f"freshness {text[:80]!r} must be strict or bounded 10s")
