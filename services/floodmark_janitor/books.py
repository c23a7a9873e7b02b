"""What the janitor did and what it left, as metrics."""

from collections import Counter as Tally
from collections.abc import Iterable

import prometheus_client as prometheus


class Books:
    """`kind` is `view`, `dropped view` or `table`, `of` its name."""

    def __init__(self, registry: prometheus.CollectorRegistry) -> None:
        labels = ["kind", "of"]
        self._files = prometheus.Counter("floodmark_files_deleted", "Files deleted", labels, registry=registry)
        self._bytes = prometheus.Counter("floodmark_bytes_deleted", "Bytes of deleted files", labels, registry=registry)
        self._kept = prometheus.Gauge(
            "floodmark_files_kept",
            "Candidates left at the last look, by reason",
            [*labels, "reason"],
            registry=registry,
        )
        self._retired = prometheus.Counter(
            "floodmark_segments_retired", "Segments removed past their retention", ["table"], registry=registry
        )
        self._reasons: dict[tuple[str, str], set[str]] = {}

    def deleted(self, kind: str, of: str, size: int) -> None:
        self._files.labels(kind, of).inc()
        self._bytes.labels(kind, of).inc(size)

    def retired(self, table: str, count: int) -> None:
        self._retired.labels(table).inc(count)

    def kept(self, kind: str, of: str, reasons: Iterable[str]) -> None:
        """All candidates that were left this time. A reason that no longer holds for any goes to zero."""
        tally = Tally(reasons)
        known = self._reasons.setdefault((kind, of), set())
        known.update(tally)
        for reason in known:
            self._kept.labels(kind, of, reason).set(tally[reason])
