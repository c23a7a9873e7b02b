"""The reconciling sweep: finds what no event reported, for all views, VALID-empty buckets or not (INV-7).

Every entry remembers the slice versions it was built from. Where they are still the live ones there is nothing to
compute; where one moved, the fingerprint decides. A difference younger than the grace period may still have its event
on the way, so it is only noted; the same difference a grace period later means that its event was lost, or is so late
that it is as good as lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

import structlog

from floodmark.catalog.renewal import renewed
from floodmark.core.buckets import MEANING_CHANGED, Cause, Entry, Mark, State
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import Fingerprint, fingerprint
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.ports import Clock
from floodmark.core.segments import EMPTY_SLICE, segments_in
from floodmark.core.tables import TableHeader, ViewHeader, ViewStatus
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.registry import Snapshot
from floodmark.ledger.views import Marked, ViewState
from floodmark_consistency.marking import follows

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Difference:
    """What a bucket was built from, and what its source is now. Both None: nobody has looked at it."""

    entry: Entry | None = None
    live: Fingerprint | None = None
    buckets: int = 1
    """So many from this one on. Of those in a run it is only known that there is a source now, and not which."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    difference: Difference
    since_ms: int


@dataclass(slots=True)
class Sweeper:
    """Sweeps one view at a time. What it suspects is remembered from sweep to sweep.

    SUBTLE: a busy bucket may be found different at two sweeps and have been rebuilt in between. So a suspicion is of
    one difference: when the entry or its source is another one, its event has the whole grace period again.
    """

    ledger: Ledger
    clock: Clock
    grace_ms: int
    _suspected: dict[str, dict[int, _Suspicion]] = field(default_factory=dict)

    def sweep(self, view: str) -> int:
        """Repair what has been wrong for longer than the grace period. Returns how many buckets were marked."""
        try:
            state = self.ledger.views.state(view)
            if renewed(self.ledger, state.header) != state.header:
                state = self.ledger.views.state(view)
        except InvalidInput as error:
            if error.rule == "unknown-view":
                return 0  # dropped meanwhile
            raise
        if state.header.status is ViewStatus.DROPPING:
            return 0
        self._outdate(state)
        snapshot = self.ledger.registry.snapshot(state.header.definition.table)
        found = outdated(state, snapshot) | outdated_in_runs(state, snapshot)
        found |= holes(state) | uncovered(state.header, snapshot.header)
        overdue = self._overdue(view, found)
        return self._repair(state.header, [_stretch(state.header, s, found[s]) for s in overdue]) if overdue else 0

    def _outdate(self, state: ViewState) -> None:
        """Mark what was built under another definition, which after an upgrade may be the same text. No event tells of
        it, so there is none to wait for."""
        definition = state.header.definition
        view, width_ms = definition.name, definition.bucket_ms

        def is_other(entry: Entry) -> bool:
            return entry.state is State.VALID and entry.definition_hash != definition.hash

        if not any(map(is_other, chain(state.entries.values(), (run.entry for run in state.runs)))):
            return
        stretches = [
            Interval(start_ms, start_ms + count * width_ms)
            for start_ms, count, entry in state.stretches()
            if is_other(entry)
        ]
        now_ms = self.clock.now_ms()
        cause = Cause(MEANING_CHANGED, f"{MEANING_CHANGED}/{now_ms}", now_ms)
        marked = self.ledger.views.mark(view, [Mark(IntervalSet.of(stretches), cause)])
        log.warning("view_outdated", view=view, buckets=marked.count, meaning="its query is understood otherwise now")

    def forget_all_but(self, views: list[str]) -> None:
        for gone in self._suspected.keys() - set(views):
            del self._suspected[gone]

    def _overdue(self, view: str, found: Mapping[int, Difference]) -> list[int]:
        """The buckets whose difference is older than the grace period. They stay suspected until they are mended."""
        now_ms = self.clock.monotonic_ms()
        before, suspected = self._suspected.get(view, {}), {}
        for start_ms, difference in found.items():
            known = before.get(start_ms)
            same = known is not None and known.difference == difference
            suspected[start_ms] = known if known is not None and same else _Suspicion(difference, now_ms)
        self._suspected[view] = suspected
        return sorted(s for s, suspicion in suspected.items() if now_ms - suspicion.since_ms >= self.grace_ms)

    def _repair(self, header: ViewHeader, stretches: list[Interval]) -> int:
        view, first_ms = header.definition.name, stretches[0].start_ms
        now_ms = self.clock.now_ms()
        cause = Cause(kind="sweep", event_id=f"sweep/{now_ms}", marked_at_ms=now_ms)
        extends = follows(header, first_ms)
        marked = self.ledger.views.extend_coverage(view, first_ms, cause) if extends else Marked()
        marked += self.ledger.views.mark(view, [Mark(IntervalSet.of(stretches), cause)])
        repaired = marked.count
        if repaired or extends:
            log.warning(
                "sweep_repaired",
                view=view,
                buckets=repaired,
                first_bucket_ms=first_ms,
                last_bucket_ms=stretches[-1].end_ms - header.definition.bucket_ms,
                coverage_extended=extends,
                meaning=f"an event was lost, or is later than {self.grace_ms} ms",
            )
        return repaired


def outdated(state: ViewState, snapshot: Snapshot) -> dict[int, Difference]:
    """VALID buckets whose source is no longer the one they were built from."""
    versions = snapshot.slice_node_versions
    different = {}
    for start_ms, entry in state.entries.items():
        if entry.state is State.VALID and _moved(entry, versions):
            live = _live(state.header, start_ms, snapshot)
            if live != entry.fingerprint:
                different[start_ms] = Difference(entry, live)
    return different


def _moved(entry: Entry, versions: Mapping[str, int]) -> bool:
    """Whether the source may be another. An entry that came out of a run remembers no versions."""
    built = entry.slice_versions
    return not built or any(versions.get(key) != version for key, version in built.items())


def outdated_in_runs(state: ViewState, snapshot: Snapshot) -> dict[int, Difference]:
    """Stretches of VALID-empty runs that have a source by now."""
    grid = state.header.definition.grid
    runs = {run.window(grid): run.entry for run in state.runs if run.entry.state is State.VALID}
    if not runs:
        return {}
    empty = IntervalSet.of(runs)
    listed = [s.interval for s in snapshot.by_name.values() if s.interval is None or empty.overlaps(s.interval)]
    timeless = None in listed
    sources = IntervalSet.of(grid.widened(interval) for interval in listed if interval is not None)
    different = {}
    for window, entry in runs.items():
        for part in (window,) if timeless else sources.clip(window):
            different[part.start_ms] = Difference(entry, buckets=(part.end_ms - part.start_ms) // grid.width_ms)
    return different


def _live(header: ViewHeader, start_ms: int, snapshot: Snapshot) -> Fingerprint:
    window = header.definition.grid.window(start_ms)
    keys = snapshot.header.definition.grid.keys_for_window(window)
    return fingerprint(segments_in(window, (snapshot.slices.get(key, EMPTY_SLICE) for key in keys)).values())


def holes(state: ViewState) -> dict[int, Difference]:
    """VACANT buckets inside coverage (INV-6)."""
    header = state.header
    if header.coverage_start_ms is None or header.watermark_ms is None:
        return {}
    if header.coverage_start_ms == header.watermark_ms:
        return {}
    grid = header.definition.grid
    shards = IntervalSet.of(run.window(grid) for run in state.runs)
    listed = shards.union(Interval(s, s + grid.width_ms) for s in state.entries)
    vacant = listed.gaps(Interval(header.coverage_start_ms, header.watermark_ms))
    return {gap.start_ms: Difference(buckets=(gap.end_ms - gap.start_ms) // grid.width_ms) for gap in vacant}


def _stretch(header: ViewHeader, start_ms: int, difference: Difference) -> Interval:
    return Interval(start_ms, start_ms + difference.buckets * header.definition.bucket_ms)


def uncovered(header: ViewHeader, table: TableHeader) -> dict[int, Difference]:
    """The first bucket of the data, when it lies before the coverage that ought to follow it."""
    if table.min_start_ms is None or not follows(header, table.min_start_ms):
        return {}
    return {header.definition.grid.start_of(table.min_start_ms): Difference()}
