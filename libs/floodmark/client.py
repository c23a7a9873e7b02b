"""The broker from Python.

    import floodmark
    broker = floodmark.connect("http://127.0.0.1:8185")
    answer = broker.sql("SELECT city, sum(fare) AS fares FROM trips GROUP BY city")
    answer.to_pandas()
    answer.receipt["view"]

Rows travel as an Arrow stream. A SET is remembered by the connection and sent with everything that follows.
"""

import http.client
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from floodmark.core.errors import FloodmarkError, InvalidInput, Unavailable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Answer", "Connection", "QueryFailed", "connect"]

_ARROW = "application/vnd.apache.arrow.stream"
_ABOUT = b"floodmark"


class QueryFailed(FloodmarkError):
    """The broker did not answer with rows. `rule` is the stable id of the reason, `status` that of HTTP."""

    def __init__(self, status: int, rule: str, reason: str) -> None:
        super().__init__(f"{rule}: {reason}")
        self.status = status
        self.rule = rule
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of one statement, and where they came from."""

    table: "pa.Table"
    query_id: str
    receipt: Mapping[str, Any] | None

    def to_arrow(self) -> "pa.Table":
        return self.table

    def to_pandas(self) -> "pd.DataFrame":
        """Raises InvalidInput for dates that Python does not have; other times pandas holds in any year."""
        try:
            return self.table.to_pandas()
        except (ValueError, OverflowError):
            self._columns(lambda column: column.to_pandas())  # names the column
            raise

    def to_spark(self, session: "SparkSession") -> "DataFrame":
        return session.createDataFrame(self.table)

    def rows(self) -> list[tuple[Any, ...]]:
        """Raises InvalidInput for times outside the years 1 to 9999, for which Python has no value."""
        return list(zip(*self._columns(lambda column: column.to_pylist()), strict=True))

    def _columns(self, read: Callable[["pa.ChunkedArray"], Any]) -> list[Any]:
        found = []
        for name, column in zip(self.table.column_names, self.table.columns, strict=True):
            try:
                found.append(read(column))
            except (ValueError, OverflowError) as error:
                raise InvalidInput(
                    "output-range",
                    f"column {name!r} ({column.type}) holds a value that Python cannot hold: {error}; "
                    "use to_arrow(), or write CAST(... AS STRING) in the query",
                ) from error
        return found


class Connection:
    """A conversation with a broker, which remembers what was SET. Each request has a connection of its own."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 600) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput("url", f"{url!r} must be like http://127.0.0.1:8185")
        self._tls = parts.scheme == "https"
        self._address = (parts.hostname, parts.port or (443 if self._tls else 80))
        self._token = token
        self._timeout_s = timeout_s
        self.settings: dict[str, str] = {}

    def sql(self, text: str, *, query_id: str | None = None, **limits: int) -> Answer:
        """Run one statement. `limits` may be rows_max and time_max_ms."""
        kind, body = self._ask(text, "arrow", query_id=query_id, **limits)
        assert kind == _ARROW, f"the broker answered with {kind}"
        from pyarrow import ipc  # noqa: PLC0415 - the command line does without it

        with ipc.open_stream(body) as reader:
            table = reader.read_all()
        about = json.loads(table.schema.metadata[_ABOUT])
        self.settings.update(about["settings"])
        return Answer(table.replace_schema_metadata(None), about["query_id"], about["receipt"])

    def document(self, text: str, *, query_id: str | None = None, **limits: int) -> dict[str, Any]:
        """The same as a JSON document: query_id, columns, rows, receipt and settings."""
        _, body = self._ask(text, "json", query_id=query_id, **limits)
        document: dict[str, Any] = json.loads(body)
        self.settings.update(document["settings"])
        return document

    def csv(self, text: str, **limits: int) -> str:
        return self._ask(text, "csv", query_id=None, **limits)[1].decode()

    def cancel(self, query_id: str) -> None:
        """Stop a query of this or another connection."""
        self._request("DELETE", f"/v1/queries/{query_id}", None)

    def get(self, path: str) -> Any:
        """A page of the broker, such as /v1/views, as JSON."""
        return json.loads(self._request("GET", path, None)[1])

    def post(self, path: str, document: object) -> Any:
        """Send JSON to a page of the broker, such as /v1/tables/trips/segments."""
        return json.loads(self._request("POST", path, json.dumps(document).encode())[1])

    def _ask(self, text: str, form: str, *, query_id: str | None, **limits: int) -> tuple[str, bytes]:
        body = {"sql": text, "format": form, "settings": self.settings, **limits}
        body["query_id"] = query_id or uuid.uuid4().hex
        return self._request("POST", "/v1/sql", json.dumps(body).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[str, bytes]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(*self._address, timeout=self._timeout_s)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            content = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"the broker at {self._address[0]}:{self._address[1]} does not answer: {error}"
            ) from error
        finally:
            connection.close()
        if reply.status >= 400:
            raise _failure(reply.status, content)
        return reply.headers.get_content_type(), content


def _failure(status: int, content: bytes) -> QueryFailed:
    try:
        told = json.loads(content)
        return QueryFailed(status, told["rule"], told["reason"])
    except (ValueError, TypeError, KeyError):
        return QueryFailed(status, "http", content.decode(errors="replace")[:500])


def connect(url: str = "http://127.0.0.1:8185", *, token: str | None = None, timeout_s: float = 600) -> Connection:
    """Talk to a broker. `token` is a bearer token, where the broker asks for one."""
    return Connection(url, token=token, timeout_s=timeout_s)
