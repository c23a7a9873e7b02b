"""Announcements by HTTP: `POST /v1/tables/{table}/segments` on the service port, answered when they are registered."""

import json
import uuid
from typing import Any

from pydantic import ValidationError

from floodmark.contracts.messages import SegmentAnnounced
from floodmark.contracts.parsing import complaints
from floodmark.core.errors import InvalidInput
from floodmark.service.port import Answer, Request
from floodmark_ingester.announcements import request_of
from floodmark_ingester.registrar import Registrar, Trouble

SEGMENTS_PATH = "/v1/tables/{table}/segments"
ANNOUNCED_MAX = 1_000


def register(registrar: Registrar, request: Request) -> Answer:
    """Register one announcement or a list of them; the answer says of each what became of it."""
    try:
        announced = _announced(request.parameters["table"], request.body)
    except InvalidInput as error:
        return Answer.json(400, {"rule": error.rule, "reason": str(error)})
    trace_ids = [uuid.uuid4().hex for _ in announced]
    troubles = registrar.register([request_of(a, t) for a, t in zip(announced, trace_ids, strict=True)])
    results = [
        {"path": a.path, "name": a.name, "trace_id": trace_id, **_verdict(trouble)}
        for a, trace_id, trouble in zip(announced, trace_ids, troubles, strict=True)
    ]
    return Answer.json(_status(troubles), {"results": results})


def _announced(table: str, body: bytes) -> list[SegmentAnnounced]:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("not-json", f"the body is not JSON: {error}") from error
    items = raw if isinstance(raw, list) else [raw]
    if not 1 <= len(items) <= ANNOUNCED_MAX:
        raise InvalidInput("too-many", f"the body has {len(items)} announcements, 1 to {ANNOUNCED_MAX} go")
    return [_one(table, item) for item in items]


def _one(table: str, item: object) -> SegmentAnnounced:
    if not isinstance(item, dict):
        raise InvalidInput("schema", "an announcement must be an object")
    fields: dict[str, Any] = {"kind": "segment-announced.v1", "table": table, **item}
    if fields["table"] != table:
        raise InvalidInput("schema", f"the announcement is for table {fields['table']!r}, the address for {table!r}")
    try:
        return SegmentAnnounced.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise InvalidInput("schema", complaints(error)) from error


def _verdict(trouble: Trouble | None) -> dict[str, str]:
    if trouble is None:
        return {"status": "registered"}
    rule = trouble.rule if isinstance(trouble, InvalidInput) else "unavailable"
    return {
        "status": "refused" if isinstance(trouble, InvalidInput) else "failed",
        "rule": rule,
        "reason": str(trouble),
    }


def _status(troubles: list[Trouble | None]) -> int:
    """200 when all is registered, 503 when trying again may help, 422 when it cannot."""
    if all(t is None for t in troubles):
        return 200
    return 422 if any(isinstance(t, InvalidInput) for t in troubles) else 503
