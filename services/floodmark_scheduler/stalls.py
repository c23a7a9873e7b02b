"""Tells when a view stands still although its input moves, and which bucket pins it.

frozen           a bucket misses an input file, wherever it lies
stalled          the cutoff has admitted the bucket at the watermark for a while and the watermark has not moved
neither          otherwise; above all when there is no input: the cutoff admits no bucket past the watermark
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import structlog
from prometheus_client import Gauge

from floodmark.core.dispatch import Record
from floodmark.core.scheduling import admits_a_bucket
from floodmark.core.tables import ViewHeader

log = structlog.get_logger()

CONDITIONS = ("stalled", "frozen")


@dataclass(frozen=True, slots=True)
class Pin:
    """A view's trouble and the bucket that is to blame."""

    condition: str
    bucket_ms: int


@dataclass(slots=True)
class _Watched:
    watermark_ms: int | None = None
    """Where the watermark stands although it could move; None when it could not."""
    since_ms: int = 0
    reported: Pin | None = None


@dataclass(slots=True)
class StallWatch:
    stalled_after_ms: int
    gauge: Gauge
    _views: dict[str, _Watched] = field(default_factory=dict)

    def observe(self, view: ViewHeader, records: Mapping[int, Record], *, cutoff_ms: int | None, now_ms: int) -> None:
        watched = self._views.setdefault(view.definition.name, _Watched())
        could_move_from_ms = view.watermark_ms if admits_a_bucket(view, cutoff_ms) else None
        if could_move_from_ms != watched.watermark_ms:
            watched.watermark_ms, watched.since_ms = could_move_from_ms, now_ms
        pin = self._pin(watched, records, now_ms=now_ms)
        if pin != watched.reported:
            self._report(view, watched, pin, records, now_ms=now_ms)

    def forget(self, name: str) -> None:
        """The view is paused or gone: nothing is expected of it."""
        if self._views.pop(name, None):
            self._show(name, None)

    def forget_all_but(self, names: Container[str]) -> None:
        for name in [name for name in self._views if name not in names]:
            self.forget(name)

    def _pin(self, watched: _Watched, records: Mapping[int, Record], *, now_ms: int) -> Pin | None:
        frozen = {start_ms for start_ms, record in records.items() if record.frozen}
        if frozen:
            return Pin("frozen", watched.watermark_ms if watched.watermark_ms in frozen else min(frozen))
        if watched.watermark_ms is not None and now_ms - watched.since_ms >= self.stalled_after_ms:
            return Pin("stalled", watched.watermark_ms)
        return None

    def _report(
        self, view: ViewHeader, watched: _Watched, pin: Pin | None, records: Mapping[int, Record], *, now_ms: int
    ) -> None:
        name, was, watched.reported = view.definition.name, watched.reported, pin
        self._show(name, pin)
        if pin is None:
            assert was is not None, f"nothing was reported of {name}, and nothing is"
            log.info("view_moved_on", view=name, was=was.condition, bucket_ms=was.bucket_ms)
            return
        record = records.get(pin.bucket_ms)
        log.warning(
            f"view_{pin.condition}",
            view=name,
            table=view.definition.table,
            bucket_ms=pin.bucket_ms,
            waited_ms=now_ms - watched.since_ms,
            progress=str(record.progress) if record else "never dispatched",
            error=record.error if record else "",
        )

    def _show(self, name: str, pin: Pin | None) -> None:
        for condition in CONDITIONS:
            self.gauge.labels(name, condition).set(pin is not None and pin.condition == condition)
