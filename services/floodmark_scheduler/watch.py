"""Watches how each view follows its input: shows it as metrics, and tells which bucket holds a view up, and why.

frozen           a bucket misses an input file, wherever it lies
quarantined      a bucket has failed as often as it may, and waits for somebody to act
stalled          a bucket that could be built has not been for a while: the one at the watermark, if the cutoff admits
                 it, or of the STALE ones the one that is owed longest; not one that is frozen or quarantined
none of them     otherwise; above all when there is no input

A view may be in several of these at once: a file that was lost years ago does not hide that new data is not built.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry, Gauge

from floodmark.core.buckets import BUCKETS_PER_SHARD, Entry
from floodmark.core.dispatch import Progress, Record
from floodmark.core.runs import Run
from floodmark.core.scheduling import behind_ms, owed_since_ms
from floodmark.core.tables import ViewHeader

log = structlog.get_logger()

FROZEN, QUARANTINED, STALLED = "frozen", "quarantined", "stalled"
CONDITIONS = (FROZEN, QUARANTINED, STALLED)


@dataclass(frozen=True, slots=True)
class Wait:
    """A bucket that could be built. Built and marked again, it is another wait."""

    bucket_ms: int
    owed_since_ms: int | None = None


@dataclass(slots=True)
class _Watched:
    waits: dict[Wait, int] = field(default_factory=dict)
    """When each was first seen."""
    told: dict[str, int] = field(default_factory=dict)
    """The bucket to blame, by condition."""


class ViewWatch:
    def __init__(self, stalled_after_ms: int, metrics: CollectorRegistry) -> None:
        self._stalled_after_ms = stalled_after_ms
        self._views: dict[str, _Watched] = {}
        self._pinned = Gauge(
            "floodmark_view_pinned", "1 while a bucket holds the view up", ["view", "condition"], registry=metrics
        )
        self._behind = Gauge(
            "floodmark_view_behind_seconds", "How far the watermark could move", ["view"], registry=metrics
        )
        self._stale = Gauge("floodmark_view_stale_buckets", "Buckets that are STALE", ["view"], registry=metrics)
        self._stale_for = Gauge(
            "floodmark_view_stale_seconds", "How long one of them has been STALE, at most", ["view"], registry=metrics
        )

    def observe(
        self,
        view: ViewHeader,
        stale: Mapping[int, Entry],
        records: Mapping[int, Record],
        runs: Sequence[Run] = (),
        *,
        cutoff_ms: int | None,
        now_ms: int,
    ) -> None:
        """`runs` are the STALE ones; each is as late as its first bucket."""
        grid = view.definition.grid
        stale = {**stale, **{run.window(grid).start_ms: run.entry for run in runs}}
        in_runs = sum((run.end - run.first) * BUCKETS_PER_SHARD - 1 for run in runs)
        watched = self._views.setdefault(view.definition.name, _Watched())
        stuck = {start_ms: condition for start_ms, record in records.items() if (condition := _stuck(record))}
        watched.waits = {w: watched.waits.get(w, now_ms) for w in _waits(view, stale, stuck, cutoff_ms)}
        self._report(view, watched, self._pins(view, watched, stuck, now_ms), records, now_ms)
        self._measure(view, stale, in_runs, cutoff_ms, now_ms)

    def forget(self, name: str) -> None:
        """The view is paused or gone, or another scheduler leads: nothing is expected of it here."""
        if self._views.pop(name, None) is None:
            return
        for condition in CONDITIONS:
            self._pinned.remove(name, condition)
        for gauge in (self._behind, self._stale, self._stale_for):
            gauge.remove(name)

    def forget_all_but(self, names: Container[str]) -> None:
        for name in [name for name in self._views if name not in names]:
            self.forget(name)

    def _pins(self, view: ViewHeader, watched: _Watched, stuck: Mapping[int, str], now_ms: int) -> dict[str, int]:
        """The bucket to blame, by condition: the one at the watermark, or else the first."""
        least_first = sorted(stuck, key=lambda start_ms: (start_ms == view.watermark_ms, -start_ms))
        pins = {stuck[start_ms]: start_ms for start_ms in least_first}  # of each condition the last one stays
        for wait, since_ms in watched.waits.items():
            if now_ms - since_ms >= self._stalled_after_ms:
                pins.setdefault(STALLED, wait.bucket_ms)
        return pins

    def _report(
        self, view: ViewHeader, watched: _Watched, pins: dict[str, int], records: Mapping[int, Record], now_ms: int
    ) -> None:
        name, told, watched.told = view.definition.name, watched.told, pins
        since_ms = {wait.bucket_ms: since_ms for wait, since_ms in watched.waits.items()}
        for condition in CONDITIONS:
            self._pinned.labels(name, condition).set(condition in pins)
            was_ms, bucket_ms = told.get(condition), pins.get(condition)
            if bucket_ms is None and was_ms is not None:
                log.info("view_moved_on", view=name, was=condition, bucket_ms=was_ms)
            elif bucket_ms is not None and bucket_ms != was_ms:
                waited_ms = now_ms - since_ms[bucket_ms] if bucket_ms in since_ms else None
                _tell(condition, view, bucket_ms, records.get(bucket_ms), waited_ms=waited_ms)

    def _measure(
        self, view: ViewHeader, stale: Mapping[int, Entry], in_runs: int, cutoff_ms: int | None, now_ms: int
    ) -> None:
        name = view.definition.name
        first_ms = min(map(owed_since_ms, stale.values()), default=now_ms)
        self._behind.labels(name).set(behind_ms(view, cutoff_ms) / 1000)
        self._stale.labels(name).set(len(stale) + in_runs)
        self._stale_for.labels(name).set(max(0, now_ms - first_ms) / 1000)


def _stuck(record: Record) -> str | None:
    if record.frozen:
        return FROZEN
    return QUARANTINED if record.progress is Progress.QUARANTINED else None


def _waits(
    view: ViewHeader, stale: Mapping[int, Entry], stuck: Container[int], cutoff_ms: int | None
) -> Iterator[Wait]:
    if view.watermark_ms is not None and view.watermark_ms not in stuck and behind_ms(view, cutoff_ms):
        yield Wait(view.watermark_ms)
    owed = [(owed_since_ms(entry), start_ms) for start_ms, entry in stale.items() if start_ms not in stuck]
    if owed:
        since_ms, start_ms = min(owed)
        yield Wait(start_ms, since_ms)


def _tell(condition: str, view: ViewHeader, bucket_ms: int, record: Record | None, *, waited_ms: int | None) -> None:
    log.warning(
        f"view_{condition}",
        view=view.definition.name,
        table=view.definition.table,
        bucket_ms=bucket_ms,
        waited_ms=waited_ms,
        progress=str(record.progress) if record else "never dispatched",
        worker=record.worker if record and record.progress is Progress.CLAIMED else "",
        tries=record.tries if record else 0,
        error=record.error if record else "",
    )
