"""What the broker says of its work: a line and a few numbers for each statement, and never its text."""

from collections.abc import Mapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from floodmark.core.errors import FloodmarkError, InvalidInput

log = structlog.get_logger()

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Books:
    def __init__(self, metrics: CollectorRegistry) -> None:
        self._statements = Counter(
            "floodmark_statements", "Statements by kind and outcome", ["kind", "outcome"], registry=metrics
        )
        self._bytes = Counter(
            "floodmark_bytes_read", "Bytes that queries read, by origin", ["origin"], registry=metrics
        )
        self._seconds = Histogram(
            "floodmark_query_seconds", "Planning and running a query", buckets=_SECONDS, registry=metrics
        )

    def answered(self, query_id: str, kind: str, receipt: Mapping[str, Any] | None) -> None:
        self._statements.labels(kind, "answered").inc()
        facts: dict[str, Any] = {}
        if receipt is not None and "execution_ms" in receipt:
            self._seconds.observe((receipt["planning_ms"] + receipt["execution_ms"]) / 1000)
            for origin in ("view", "base"):
                self._bytes.labels(origin).inc(receipt[f"from_{origin}"]["bytes"])
            facts = {name: receipt[name] for name in ("view", "plans", "planning_ms", "execution_ms", "rows")}
            facts["bytes_read"] = receipt["read"]["bytes"]
        log.info("statement_answered", query_id=query_id, kind=kind, **facts)

    def refused(self, query_id: str, kind: str, error: Exception) -> None:
        """Of what breaks a rule only the rule is told, since the reason may quote the statement."""
        self._statements.labels(kind, "refused" if isinstance(error, InvalidInput) else "failed").inc()
        rule = getattr(error, "rule", None)
        if rule is not None:
            log.info("statement_refused", query_id=query_id, kind=kind, rule=rule)
            return
        reason = str(error) if isinstance(error, FloodmarkError) else None  # our own words, and never the statement's
        log.warning("statement_failed", query_id=query_id, kind=kind, error=type(error).__name__, reason=reason)
