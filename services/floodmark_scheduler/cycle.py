"""One cycle: look, decide for each view, revert what needs no task, give out what fits into the lanes.

    STALE, oldest cause first      live source empty -> DELETE, unchanged -> revert, else OVERWRITE
    VACANT up to the cutoff        APPEND: newest in the live lane, oldest in the backfill lane

A task is recorded in the ledger before it is sent, so in-flight work survives any crash: whoever leads next sees it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from floodmark.core.buckets import Entry
from floodmark.core.dispatch import Policy, Progress, Record, Refusal, in_flight
from floodmark.core.errors import BudgetExhausted, InvalidInput
from floodmark.core.ports import Clock
from floodmark.core.scheduling import (
    Lane,
    Revert,
    append_cutoff_ms,
    behind_ms,
    fair,
    lane_of,
    oldest_cause_first,
    rebuild,
    remedy,
    vacant_starts,
)
from floodmark.core.tables import TableHeader, ViewStatus
from floodmark.core.transitions import Mode
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.registry import WindowSource
from floodmark_scheduler.eyes import Eyes, SeenView, Unsettled
from floodmark_scheduler.sending import Task, TaskSender
from floodmark_scheduler.watch import ViewWatch

log = structlog.get_logger()

LANE_TURN_MS = 300
"""A lane that takes longer, because much of it needs no task, goes on in the next cycle: the others get their turn."""
SETTLE_AGAIN_MS = 5_000
"""Where nothing could be settled, more data seldom changes that."""
STALE_BESIDE_MIN = 8
"""So many STALE buckets of a shard beside a run are looked at together; fewer get a task each."""
STALE_ENOUGH = 1_024
"""While so many buckets are STALE, no more are taken out of STALE runs."""


@dataclass(frozen=True, slots=True)
class LanePlan:
    """How much may be out at once in each lane, and what counts as live."""

    quotas: dict[Lane, int]
    live_buckets: int
    append_buffer_ms: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A bucket that needs work, and how urgent it is."""

    view: str
    start_ms: int
    lane: Lane
    entry: Entry | None


@dataclass(slots=True)
class Scheduler:
    """Decides and gives out. Called by the leader; two at once are safe."""

    ledger: Ledger
    eyes: Eyes
    sender: TaskSender
    clock: Clock
    instance: str
    alive: Callable[[str], set[str]]
    policy: Policy
    lanes: LanePlan
    watch: ViewWatch

    def cycle(self) -> int:
        """One look at everything that changed. Returns how many tasks were given out."""
        self.sender.flush()
        self._fail_refused()
        self.eyes.look()
        alive = self.alive("worker") | self.alive("scheduler")
        free = self._free(alive)
        queues: dict[Lane, list[list[Wanted]]] = {lane: [] for lane in Lane}
        self.watch.forget_all_but(self.eyes.views)
        for name in list(self.eyes.views):
            by_lane: dict[Lane, list[Wanted]] = {lane: [] for lane in Lane}
            self._settle(self.eyes.views[name])
            # Settling reads the view again, which may have been dropped or replaced since the look.
            view = self.eyes.views.get(name)
            if view is None:
                continue
            try:
                self._tidy(view)
                for want in self._wanted(view, free, alive):
                    by_lane[want.lane].append(want)
            except (InvalidInput, BudgetExhausted) as error:
                _tell_trouble(name, error)
            for lane, queue in by_lane.items():
                queues[lane].append(queue)
        return sum(self._fill(fair(queues[lane]), free[lane], alive) for lane in Lane)

    def _fill(self, waiting: Iterator[Wanted], room: int, alive: set[str]) -> int:
        """Give out until the lane is full. What turns out to need no task takes no room, so it holds up nobody."""
        given, until_ms = 0, self.clock.monotonic_ms() + LANE_TURN_MS
        while given < room and self.clock.monotonic_ms() < until_ms and (chosen := list(islice(waiting, room - given))):
            given += self._give_out(chosen, alive)
        return given

    # -- what needs work -------------------------------------------------------------------------------------------

    def _free(self, alive: set[str]) -> dict[Lane, int]:
        """How many more tasks each lane takes, counting what is out with the living."""
        free, now_ms = dict(self.lanes.quotas), self.clock.now_ms()
        for view in self.eyes.views.values():
            for record in view.dispatched().values():
                if in_flight(record, now_ms=now_ms, alive=alive, policy=self.policy):
                    free[Lane(record.lane)] -= 1
        return {lane: max(0, count) for lane, count in free.items()}

    def _wanted(self, view: SeenView, free: dict[Lane, int], alive: set[str]) -> Iterator[Wanted]:
        header = view.header
        table = self.eyes.tables.get(header.definition.table)
        if table is None or header.status is ViewStatus.PAUSED:
            self.watch.forget(header.definition.name)
            return
        now_ms = self.clock.now_ms()
        cutoff_ms = append_cutoff_ms(table, now_ms=now_ms, buffer_ms=self.lanes.append_buffer_ms)
        stale, records = view.stale(), view.dispatched()
        self.watch.observe(header, stale, records, view.stale_runs(), cutoff_ms=cutoff_ms, now_ms=now_ms)
        starts = [*oldest_cause_first(stale), *self._vacant(view, cutoff_ms, sum(free.values()) + len(records))]
        for start_ms in starts:
            record, entry = records.get(start_ms), stale.get(start_ms)
            is_news = view.decided_on.get(start_ms) != (table.version, entry)
            if record is not None and not is_news and not self._is_due(record, now_ms=now_ms, alive=alive):
                continue
            lane = lane_of(
                start_ms,
                entry,
                grid=header.definition.grid,
                cutoff_ms=cutoff_ms,
                live_buckets=self.lanes.live_buckets,
            )
            yield Wanted(header.definition.name, start_ms, lane, entry)

    def _vacant(self, view: SeenView, cutoff_ms: int | None, most: int) -> list[int]:
        """VACANT buckets to append: the newest few for the live lane, then from the watermark on."""
        if cutoff_ms is None or not behind_ms(view.header, cutoff_ms):
            return []
        newest = vacant_starts(view.header, view.exists, view.runs, cutoff_ms, newest_first=True)
        oldest = vacant_starts(view.header, view.exists, view.runs, cutoff_ms, newest_first=False)
        return list(dict.fromkeys((*islice(newest, self.lanes.live_buckets), *islice(oldest, most))))

    def _is_due(self, record: Record, *, now_ms: int, alive: set[str]) -> bool:
        """Whether a bucket about which there is no news is to be given out again. The ledger has the last word.

        SUBTLE: news comes before everything else. A task that is out may be done already, with its bucket STALE again
        for another input: were it only waited for, work already done would hold up the next (INV-10).
        """
        if record.progress in (Progress.OFFERED, Progress.CLAIMED):
            return not in_flight(record, now_ms=now_ms, alive=alive, policy=self.policy)
        return record.progress is Progress.FAILED and now_ms >= record.not_before_ms

    def _tidy(self, view: SeenView) -> None:
        """Drop records of buckets that are VALID by now: the task is done, whoever did it.

        What was decided matters beside a record only. Kept longer, it would grow by every bucket that is ever built.
        """
        records = view.dispatched()
        for start_ms in view.decided_on.keys() - records.keys():
            del view.decided_on[start_ms]
        if not records:
            return
        stale = view.stale()
        done = {s: r.task_id for s, r in records.items() if s not in stale and view.exists(s)}
        self.ledger.dispatch.finish_all(view.header, done)

    def _settle(self, view: SeenView) -> None:
        """Settle what can be, which saves tasks. Whatever is wrong with that, no task waits for it (INV-14)."""
        try:
            self._settle_runs(view)
        except (InvalidInput, BudgetExhausted) as error:
            log.warning("runs_not_settled", view=view.header.definition.name, error=str(error))

    def _settle_runs(self, view: SeenView) -> None:
        """Long stretches without a source need no tasks: they become VALID-empty as they are."""
        header, name = view.header, view.header.definition.name
        table = self.eyes.tables.get(header.definition.table)
        if table is None or header.status is ViewStatus.PAUSED or header.coverage_start_ms is None:
            return
        cutoff_ms = append_cutoff_ms(table, now_ms=self.clock.now_ms(), buffer_ms=self.lanes.append_buffer_ms)
        beside = view.stale_beside_runs(STALE_BESIDE_MIN)
        if cutoff_ms is None or not self._may_settle(view, table, beside, cutoff_ms):
            return
        settled = self.ledger.views.settle(name, header.incarnation, end_ms=cutoff_ms, beside=beside)
        for error in settled.given_up:
            log.warning("runs_not_settled", view=name, error=error)
        if settled.empty or settled.opened:
            log.info("runs_settled", view=name, empty_buckets=settled.empty, shards_to_build=settled.opened)
            self.eyes.look_at(name, settled.shards)
        else:
            again_at_ms = self.clock.monotonic_ms() + SETTLE_AGAIN_MS
            view.unsettled = Unsettled(
                view.runs, beside, header.definition.grid.start_of(cutoff_ms), table.version, again_at_ms
            )

    def _may_settle(self, view: SeenView, table: TableHeader, beside: tuple[int, ...], cutoff_ms: int) -> bool:
        """Whether there is anything that may be settled. What comes out of STALE runs waits for what did before."""
        is_owed = bool(view.stale_runs()) and sum(len(s.whole.stale) for s in view.shards.values()) < STALE_ENOUGH
        if not is_owed and not beside and not any(True for _ in view.vacant(cutoff_ms)):
            return False
        last, end_ms = view.unsettled, view.header.definition.grid.start_of(cutoff_ms)
        if last is None or (last.runs, last.beside, last.end_ms) != (view.runs, beside, end_ms):
            return True
        return last.table_version != table.version and self.clock.monotonic_ms() >= last.again_at_ms

    # -- giving out ------------------------------------------------------------------------------------------------

    def _give_out(self, chosen: Sequence[Wanted], alive: set[str]) -> int:
        """Read the sources of all views, write the records of all, send: a few waits, however many views there are."""
        by_view: dict[str, list[Wanted]] = {}
        for want in chosen:
            by_view.setdefault(want.view, []).append(want)
        tasks: dict[str, dict[int, Task]] = {}
        for name, sources in self._sources(by_view).items():
            try:
                tasks[name] = self._tasks(self.eyes.views[name], by_view[name], sources)
            except (InvalidInput, BudgetExhausted) as error:
                _tell_trouble(name, error)
        offers = [
            (self.eyes.views[name].header, [task.offer for task in mine.values()]) for name, mine in tasks.items()
        ]
        offered = self.ledger.dispatch.offer_all(offers, offered_by=self.instance, alive=alive, policy=self.policy)
        accepted: list[tuple[Task, Record]] = []
        for (name, mine), its in zip(tasks.items(), offered, strict=True):
            accepted += self._accepted(self.eyes.views[name], by_view[name], mine, its.answers)
        self.sender.send(accepted)
        self._fail_refused()
        for name, trouble in ((name, t) for name, its in zip(tasks, offered, strict=True) for t in its.troubles):
            if not isinstance(trouble, InvalidInput | BudgetExhausted):
                raise trouble  # of the store, so no view's own; what was recorded is on its way
            _tell_trouble(name, trouble)
        return len(accepted)

    def _sources(self, by_view: Mapping[str, Sequence[Wanted]]) -> dict[str, list[WindowSource]]:
        """The live source of each bucket that is wanted, by view: one read for each table."""
        by_table: dict[str, list[str]] = {}
        for name in by_view:
            by_table.setdefault(self.eyes.views[name].header.definition.table, []).append(name)
        found: dict[str, list[WindowSource]] = {}
        for table, names in by_table.items():
            found |= self._sources_in(table, {name: by_view[name] for name in names})
        return found

    def _sources_in(self, table: str, by_view: Mapping[str, Sequence[Wanted]]) -> dict[str, list[WindowSource]]:
        grids = {name: self.eyes.views[name].header.definition.grid for name in by_view}
        windows = [grids[name].window(w.start_ms) for name, wanted in by_view.items() for w in wanted]
        try:
            sources = iter(self.ledger.registry.read_windows(table, windows))
        except (InvalidInput, BudgetExhausted) as error:
            if len(by_view) > 1:  # whose trouble it is shows when each reads for itself
                return {n: s for name in by_view for n, s in self._sources_in(table, {name: by_view[name]}).items()}
            _tell_trouble(next(iter(by_view)), error)
            return {}
        return {name: list(islice(sources, len(wanted))) for name, wanted in by_view.items()}

    def _tasks(self, view: SeenView, wanted: Sequence[Wanted], sources: Sequence[WindowSource]) -> dict[int, Task]:
        """The tasks of one view, by bucket start. What needs none is reverted here."""
        table = self.eyes.tables[view.header.definition.table]
        tasks: dict[int, Task] = {}
        for want, source in zip(wanted, sources, strict=True):
            mode = self._mode(view, want, source)
            if mode is not None:
                trace_id = _trace_id(want, table, source)
                tasks[want.start_ms] = Task.of(
                    view.header, want.start_ms, mode, want.lane, source.source, trace_id=trace_id
                )
        return tasks

    def _accepted(
        self,
        view: SeenView,
        wanted: Sequence[Wanted],
        tasks: Mapping[int, Task],
        answers: Mapping[int, Record | Refusal],
    ) -> Iterator[tuple[Task, Record]]:
        """The tasks that are to be sent."""
        header = view.header
        table = self.eyes.tables[header.definition.table]
        view.decided_on.update({w.start_ms: (table.version, w.entry) for w in wanted if w.start_ms in answers})
        for start_ms, answer in answers.items():
            if isinstance(answer, Refusal):
                continue
            if answer.progress is Progress.OFFERED:
                yield tasks[start_ms], answer
            else:
                event = "bucket_quarantined" if answer.progress is Progress.QUARANTINED else "task_not_made"
                log.error(event, view=header.definition.name, bucket_ms=start_ms, error=answer.error)

    def _fail_refused(self) -> None:
        """What the bus never takes backs off and is quarantined in the end, as what no worker can build (INV-10)."""
        for task, error in self.sender.take_refused():
            try:
                self.ledger.dispatch.fail(
                    task.view, task.start_ms, task_id=task.task_id, error=str(error), policy=self.policy
                )
            except (InvalidInput, BudgetExhausted) as trouble:
                _tell_trouble(task.view.definition.name, trouble)

    def _mode(self, view: SeenView, want: Wanted, source: WindowSource) -> Mode | None:
        """What to do with a bucket; None when nothing is left to do."""
        if want.entry is None:
            return Mode.APPEND
        definition_hash = view.header.definition.hash
        decision = remedy(want.entry, source.source.fingerprint, definition_hash=definition_hash)
        if not isinstance(decision, Revert):
            return decision
        try:
            reverted = self.ledger.views.revert_valid(want.view, view.header.incarnation, want.start_ms).result
        except BudgetExhausted:
            return rebuild(source.source.fingerprint)  # one avoidable task, instead of a bucket that waits
        if reverted:
            log.info("bucket_reverted", view=want.view, bucket_ms=want.start_ms, why="its source is as it was")
        return None


def _trace_id(want: Wanted, table: TableHeader, source: WindowSource) -> str | None:
    """The trace of the change that asked for this work: the mark's, or the newest change of the source."""
    if want.entry is not None and want.entry.cause is not None:
        return want.entry.cause.trace_id or None
    return table.last_trace_of(source.source.slice_versions)


def _tell_trouble(view: str, error: Exception) -> None:
    """One view's trouble stays its own (INV-14)."""
    log.error("view_not_scheduled", view=view, error=str(error))
