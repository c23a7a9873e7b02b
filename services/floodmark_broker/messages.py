"""What goes over HTTP, as models: requests are checked against them, and the OpenAPI document is made from them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

QUERY_ID_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SqlRequest(Message):
    sql: str = Field(max_length=65_536, description="one statement", examples=["SHOW TABLES"])
    settings: dict[Literal["rewrite", "freshness"], str] = Field(
        default_factory=dict, description="rewrite: on, off; freshness: strict, bounded 10s"
    )
    format: Literal["json", "arrow", "csv"] | None = Field(default=None, description="wins over Accept")
    query_id: str | None = Field(default=None, pattern=QUERY_ID_PATTERN, description="to cancel it by")
    rows_max: int | None = Field(default=None, ge=1, description="refuse an answer with more rows")
    time_max_ms: int | None = Field(default=None, ge=1, description="stop the query after so long")


class Column(Message):
    name: str
    type: str


class SqlAnswer(Message):
    query_id: str
    columns: list[Column]
    rows: list[list[Any]]
    receipt: dict[str, Any] | None = None
    settings: dict[str, str] = Field(default_factory=dict)


class Refusal(Message):
    rule: str
    reason: str


class RunningQuery(Message):
    query_id: str
    sql: str
    running: bool
    age_ms: int


class Accepted(Message):
    path: str
    trace_id: str


Document = dict[str, Any]
