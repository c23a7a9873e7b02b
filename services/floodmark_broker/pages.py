"""The broker's pages: each is a function of the request, guarded by a role, its refusals told as JSON."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import structlog
from pydantic import BaseModel, TypeAdapter, ValidationError

from floodmark.catalog.status import refused_count, table_standings, view_standing, view_standings
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.contracts.parsing import complaints
from floodmark.core.errors import BudgetExhausted, InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.ports import Clock
from floodmark.core.segments import Segment
from floodmark.core.tables import TableHeader
from floodmark.ledger.inspection import view_document
from floodmark.ledger.ledger import Ledger
from floodmark.service.access import Access, AccessRefused, Role, guarded
from floodmark.service.port import Answer, Page, Request, ServicePort
from floodmark_broker import formats, openapi
from floodmark_broker.engine import Answered, Asked, Engine, checked_setting
from floodmark_broker.messages import SqlRequest
from floodmark_broker.stopping import Queries, QueryStopped
from floodmark_broker.texts import create_table_text, create_view_text

log = structlog.get_logger()

ANNOUNCED_MAX = 1_000
_NOT_FOUND = {"unknown-table", "unknown-view", "unknown-name", "unknown-query"}
_IN_THE_WAY = {"table-exists", "view-exists", "query-id"}
_STOPPED = {"time-max": 408, "stopping": 503}

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)
Announce = Callable[[list[SegmentAnnounced]], list[str]]
"""Sends announcements to the ingester; returns their trace ids."""


@dataclass(frozen=True, slots=True)
class Limits:
    rows_max: int
    time_max_ms: int


@dataclass(frozen=True, slots=True)
class Pages:
    engine: Engine
    queries: Queries
    ledger: Ledger
    clock: Clock
    access: Access
    limits: Limits
    announce: Announce
    new_id: Callable[[], str]

    def serve(self, port: ServicePort) -> None:
        document = openapi.document()
        port.serve("GET", "/openapi.json", lambda _: Answer.json(200, document))
        for method, pattern, role, page in (
            ("POST", "/v1/sql", Role.READER, self.sql),
            ("GET", "/v1/queries", Role.READER, self.running),
            ("DELETE", "/v1/queries/{query_id}", Role.READER, self.cancel),
            ("GET", "/v1/views", Role.READER, self.views),
            ("GET", "/v1/views/{view}", Role.READER, self.view),
            ("GET", "/v1/views/{view}/buckets", Role.READER, self.buckets),
            ("GET", "/v1/tables", Role.READER, self.tables),
            ("GET", "/v1/tables/{table}", Role.READER, self.table),
            ("GET", "/v1/tables/{table}/segments", Role.READER, self.segments),
            ("POST", "/v1/tables/{table}/segments", Role.ADMIN, self.register),
        ):
            port.serve(method, pattern, self._guarded(role, page))

    def _guarded(self, needed: Role, page: Callable[[Request, Role], Answer]) -> Page:
        def answer(request: Request, role: Role) -> Answer:
            try:
                return page(request, role)
            except AccessRefused:
                raise
            except Exception as error:
                return _told(error)

        return guarded(self.access, needed, answer)

    # -- SQL -------------------------------------------------------------------------------------------------------

    def sql(self, request: Request, role: Role) -> Answer:
        asked = _body(SqlRequest, request)
        kind = formats.FORMATS[asked.format] if asked.format else _accepted(request.headers.get("accept", ""))
        settings = dict(checked_setting(name, value) for name, value in asked.settings.items())
        answered = self.engine.answer(
            Asked(
                sql=asked.sql,
                query_id=asked.query_id or self.new_id(),
                settings=settings,
                role=role,
                rows_max=min(asked.rows_max or self.limits.rows_max, self.limits.rows_max),
                within_ms=min(asked.time_max_ms or self.limits.time_max_ms, self.limits.time_max_ms),
                has_gone=request.has_gone,
            )
        )
        return _rendered(answered, kind)

    def running(self, _: Request, __: Role) -> Answer:
        now_ms = self.clock.monotonic_ms()
        shown = [
            {"query_id": t.query_id, "sql": t.text, "running": t.running, "age_ms": now_ms - t.began_ms}
            for t in self.queries.tickets()
        ]
        return Answer.json(200, shown)

    def cancel(self, request: Request, _: Role) -> Answer:
        query_id = request.parameters["query_id"]
        if not self.queries.cancel(query_id):
            raise InvalidInput("unknown-query", f"no query {query_id[:80]!r} is running")
        return Answer.json(202, {"query_id": query_id})

    # -- tables and views ------------------------------------------------------------------------------------------

    def views(self, _: Request, __: Role) -> Answer:
        return Answer.json(200, [asdict(s) for s in view_standings(self.ledger)])

    def view(self, request: Request, _: Role) -> Answer:
        name = self._view(request)
        text = create_view_text(self.ledger.views.header(name).definition)
        return Answer.json(200, {**asdict(view_standing(self.ledger, name)), "statement": text})

    def buckets(self, request: Request, _: Role) -> Answer:
        return Answer.json(200, view_document(self.ledger, self._view(request))["buckets"])

    def _view(self, request: Request) -> str:
        name = request.parameters["view"]
        if name not in self.ledger.views.names():
            raise InvalidInput("unknown-view", f"there is no view {name[:80]!r}")
        return name

    def tables(self, _: Request, __: Role) -> Answer:
        return Answer.json(200, [_table(s.header, s.refused) for s in table_standings(self.ledger)])

    def table(self, request: Request, _: Role) -> Answer:
        name = self._table(request)
        header = self.ledger.registry.header(name)
        facts = _table(header, refused_count(self.ledger, name))
        return Answer.json(200, {**facts, "statement": create_table_text(header.definition)})

    def segments(self, request: Request, _: Role) -> Answer:
        snapshot = self.ledger.registry.snapshot(self._table(request))
        found = sorted(snapshot.by_name.values(), key=lambda s: s.name)
        return Answer.json(200, [_segment(s) for s in found])

    def register(self, request: Request, _: Role) -> Answer:
        """Hand announcements to the ingester, which looks into the files and registers them or says why not."""
        table = self._table(request)
        announced = _announced(table, request)
        trace_ids = self.announce(announced)
        told = [{"path": a.path, "trace_id": t} for a, t in zip(announced, trace_ids, strict=True)]
        return Answer.json(202, {"accepted": told})

    def _table(self, request: Request) -> str:
        name = request.parameters["table"]
        if name not in self.ledger.registry.tables():
            raise InvalidInput("unknown-table", f"there is no table {name[:80]!r}")
        return name


def _table(header: TableHeader, refused: int | None) -> dict[str, Any]:
    definition = header.definition
    return {
        "name": definition.name,
        "location": definition.location,
        "time_column": definition.time_column,
        "columns": [{"name": name, "type": kind} for name, kind in definition.columns],
        "properties": dict(definition.properties),
        "segments": header.segment_count,
        "refused_files": refused,
        "min_start_ms": header.min_start_ms,
        "max_last_ms": header.max_last_ms,
        "version": header.version,
    }


def _segment(segment: Segment) -> dict[str, Any]:
    """64-bit numbers are text, because many JSON tools would round them."""
    return {**asdict(segment), "crc": str(segment.crc)}


# -- bodies ------------------------------------------------------------------------------------------------------------


def _body(model: type[Body], request: Request) -> Body:
    try:
        return model.model_validate_json(request.body)
    except ValidationError as error:
        raise InvalidInput("schema", complaints(error)) from error


_ITEMS: TypeAdapter[list[dict[str, Any]]] = TypeAdapter(list[dict[str, Any]])


def _announced(table: str, request: Request) -> list[SegmentAnnounced]:
    try:
        raw = json.loads(request.body)
        items = _ITEMS.validate_python(raw if isinstance(raw, list) else [raw])
        if not 1 <= len(items) <= ANNOUNCED_MAX:
            raise InvalidInput("too-many", f"the body has {len(items)} announcements, 1 to {ANNOUNCED_MAX} go")
        fixed = [{**item, "kind": "segment-announced.v1", "table": table} for item in items]
        return [SegmentAnnounced.model_validate_json(json.dumps(item)) for item in fixed]
    except ValidationError as error:
        raise InvalidInput("schema", complaints(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput("not-json", f"the body is not JSON: {error}") from error


# -- answers -----------------------------------------------------------------------------------------------------------


def _accepted(accept: str) -> str:
    """The first of our formats that the client names; JSON when it does not mind."""
    named = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((kind for kind in named if kind in formats.FORMATS.values()), formats.JSON)


def _rendered(answered: Answered, kind: str) -> Answer:
    about = {"query_id": answered.query_id, "receipt": answered.receipt, "settings": dict(answered.settings)}
    headers = {"Floodmark-Query-Id": answered.query_id}
    if kind == formats.ARROW:
        return Answer(200, kind, formats.arrow_stream(answered.rows, about), headers)
    if kind == formats.CSV:
        return Answer(200, kind, formats.csv_text(answered.rows), headers)
    return Answer.json(200, {**about, **formats.json_document(answered.rows)}, headers)


def _refusal(status: int, rule: str, reason: str, headers: dict[str, str] | None = None) -> Answer:
    return Answer.json(status, {"rule": rule, "reason": reason}, headers)


def _told(error: Exception) -> Answer:
    """What the client may do next: correct the request, come back later, or report a bug of ours."""
    match error:
        case InvalidInput():
            status = 404 if error.rule in _NOT_FOUND else 409 if error.rule in _IN_THE_WAY else 400
            return _refusal(status, error.rule, str(error).removeprefix(f"{error.rule}: "))
        case QueryStopped():
            return _refusal(_STOPPED.get(error.rule, 409), error.rule, str(error))
        case Unavailable() | OutcomeUnknown() | BudgetExhausted():
            return _refusal(503, "unavailable", str(error), {"Retry-After": "1"})
        case _:
            log.error("request_failed", exc_info=error)
            return _refusal(500, "internal", "this is a bug of the broker; its log has the details")
