"""The OpenAPI document, made from the models that requests and answers are checked against."""

from typing import Any

from pydantic import BaseModel

from floodmark import __version__
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.core.names import NAME_PATTERN
from floodmark_broker.formats import ARROW, CSV, JSON
from floodmark_broker.messages import QUERY_ID_PATTERN, Accepted, Refusal, RunningQuery, SqlAnswer, SqlRequest

Document = dict[str, Any]
_REF = "#/components/schemas/{model}"
_OBJECT: Document = {"type": "object"}
_LIST: Document = {"type": "array", "items": _OBJECT}


def document() -> Document:
    schemas: Document = {}
    for model in (SqlRequest, SqlAnswer, Refusal, RunningQuery, Accepted):
        schemas |= _schemas(model)
    announced = _announcement()
    view, table = _parameter("view", f"^{NAME_PATTERN}$"), _parameter("table", f"^{NAME_PATTERN}$")
    query_id = _parameter("query_id", QUERY_ID_PATTERN)
    rows = {JSON: _ref(SqlAnswer), ARROW: {"type": "string", "format": "binary"}, CSV: {"type": "string"}}
    accepted = {"type": "object", "properties": {"accepted": {"type": "array", "items": _ref(Accepted)}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Floodmark", "version": __version__, "description": "SQL in, right rows out, with a receipt"},
        "paths": {
            "/v1/sql": {"post": _operation("sql", "Run one statement", {200: rows}, body=_ref(SqlRequest))},
            "/v1/queries": {
                "get": _operation("queries", "Queries on their way", {200: {JSON: _list(_ref(RunningQuery))}})
            },
            "/v1/queries/{query_id}": {
                "delete": _operation("cancel", "Stop a query", {202: {JSON: _OBJECT}}, parameters=[query_id])
            },
            "/v1/views": {"get": _operation("views", "Every view and how it stands", {200: {JSON: _LIST}})},
            "/v1/views/{view}": {"get": _operation("view", "One view", {200: {JSON: _OBJECT}}, parameters=[view])},
            "/v1/views/{view}/buckets": {
                "get": _operation("buckets", "Runs of like buckets", {200: {JSON: _LIST}}, parameters=[view])
            },
            "/v1/tables": {"get": _operation("tables", "Every table", {200: {JSON: _LIST}})},
            "/v1/tables/{table}": {"get": _operation("table", "One table", {200: {JSON: _OBJECT}}, parameters=[table])},
            "/v1/tables/{table}/segments": {
                "get": _operation("segments", "What is registered", {200: {JSON: _LIST}}, parameters=[table]),
                "post": _operation(
                    "announce",
                    "Announce files to the ingester",
                    {202: {JSON: accepted}},
                    parameters=[table],
                    body={"anyOf": [announced, {**_list(announced), "minItems": 1, "maxItems": 1_000}]},
                ),
            },
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(
    name: str,
    summary: str,
    answers: dict[int, dict[str, Document]],
    *,
    parameters: list[Document] | None = None,
    body: Document | None = None,
) -> Document:
    told = {"description": "refused; the rule says why", "content": {JSON: {"schema": _ref(Refusal)}}}
    responses = {
        str(status): {"description": "done", "content": {kind: {"schema": schema} for kind, schema in kinds.items()}}
        for status, kinds in answers.items()
    }
    made: Document = {"operationId": name, "summary": summary, "responses": {**responses, "default": told}}
    if parameters:
        made["parameters"] = parameters
    if body is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return made


def _parameter(name: str, pattern: str) -> Document:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": pattern}}


def _announcement() -> Document:
    """An announcement without what the address says already."""
    schema = SegmentAnnounced.model_json_schema()
    definitions = schema.pop("$defs", {})
    for given in ("kind", "table"):
        schema["properties"].pop(given, None)
    schema["required"] = ["action"]
    return {key: _inlined(value, definitions) for key, value in schema.items()}


def _inlined(node: Any, definitions: Document) -> Any:
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}


def _schemas(model: type[BaseModel]) -> Document:
    schema = model.model_json_schema(ref_template=_REF)
    return {**schema.pop("$defs", {}), model.__name__: schema}


def _ref(model: type[BaseModel]) -> Document:
    return {"$ref": _REF.format(model=model.__name__)}


def _list(items: Document) -> Document:
    return {"type": "array", "items": items}
