"""One batch of tasks from beginning to end. Whatever happens, each task ends in exactly one of these:

    committed     its bucket is VALID by this attempt
    covered       the ledger was past it, before or at the commit: dropped                         INV-10
    superseded    its input moved on, before or at the commit: the scheduler asks anew
    frozen        an input is missing or not what was registered: nothing committed, told why      INV-9
    failed        the computation failed, or its commit is too large: backs off, is quarantined in the end
    (given back)  a server or Spark is away, or the process stops: offered again, here or elsewhere

The order is what keeps it right. The hold comes before anything is listed (INV-11). Inputs are looked at before and
after they are read. The commit checks source, incarnation and hold in its own write. The dispatch record and the result
come after the commit, the offset last (INV-8).
"""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import structlog

from floodmark.bus.delivery import Delivery
from floodmark.catalog.renewal import renewed
from floodmark.contracts.envelope import Envelope
from floodmark.core import tasks
from floodmark.core.dispatch import Policy
from floodmark.core.errors import BudgetExhausted, EngineLost, InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.ports import Clock, new_id
from floodmark.core.tables import ViewHeader
from floodmark.core.tasks import TaskFacts, Verdict, Worth
from floodmark.core.transitions import Build, Mode, Source
from floodmark.ledger.dispatch import Failure
from floodmark.ledger.holds import HoldKeeper
from floodmark.ledger.ledger import Ledger
from floodmark.spark.complaints import complaint
from floodmark.spark.materialization import Built
from floodmark_worker.attempts import Attempt, Ending, Step, by_bytes, segments_of
from floodmark_worker.claims import Claims
from floodmark_worker.inputs import Fault, diagnose
from floodmark_worker.intake import Batch, task_of
from floodmark_worker.reporting import Reporter
from floodmark_worker.views import ViewBuilders

log = structlog.get_logger()
T = TypeVar("T")

AHEAD_TRIES_MAX = 5
"""A task that is ahead of the ledger this often, with a fresh reading each time, was not made from this ledger."""
HOLD_TRIES_MAX = 5
"""A task whose attempts lose their hold this often has failed, and says so: a machine where no attempt can keep its
hold is not to try for ever unseen (INV-10)."""

NOTHING_BUILT = Built({}, 0, 0)


@dataclass(frozen=True, slots=True)
class Tools:
    """What every batch is built with."""

    ledger: Ledger
    claims: Claims
    views: ViewBuilders
    reporter: Reporter
    clock: Clock
    randomness: random.Random
    instance: str
    policy: Policy
    hold_ttl_ms: int
    batch_bytes_max: int
    stopping: Callable[[], bool]
    reached: Callable[[str], None] = lambda _step: None
    """Told each named step of an attempt when it has been reached."""


def run(tools: Tools, batch: Batch) -> None:
    """Bring every task of the batch to its end, and tell its delivery."""
    attempts = {start: _attempt(delivery, tools.randomness) for start, delivery in batch.deliveries.items()}
    try:
        _Run(tools, batch.view, attempts).run()
    except (Unavailable, OutcomeUnknown) as error:
        for attempt in attempts.values():
            attempt.delivery.retry(error)
    except InvalidInput as error:
        if error.rule == "unknown-table":  # dropped meanwhile, after the view: the next look finds that out
            again = Unavailable(str(error))
            for attempt in attempts.values():
                attempt.delivery.retry(again)
            return
        # The ledger's own data on this view is damaged. When it is mended, the scheduler asks again.
        for attempt in attempts.values():
            attempt.delivery.refuse(error)
    except BaseException as error:
        if not attempts:
            raise
        bug = AssertionError(f"a batch of {batch.view} ended in {type(error).__name__} instead of outcomes")
        bug.__cause__ = error
        next(iter(attempts.values())).delivery.crash(error if isinstance(error, BudgetExhausted) else bug)


def _attempt(delivery: Delivery[Envelope], randomness: random.Random) -> Attempt:
    task = task_of(delivery)
    source = Source(Fingerprint(task.fingerprint.count, task.fingerprint.hash), task.slice_versions)
    facts = TaskFacts(task.bucket_start_ms, Mode(task.mode), task.incarnation, task.definition_hash, source)
    return Attempt(delivery, facts, new_id(randomness))


class _Run:
    """One batch on its way.

    `open` has the attempts that have not ended, `claimed` the tasks that were claimed and have no outcome: what ends is
    taken out of both, what is given back only of the first.
    """

    def __init__(self, tools: Tools, view: str, attempts: dict[int, Attempt]) -> None:
        self.tools = tools
        self.ledger = tools.ledger
        self.view = view
        self.open = attempts
        self.claimed: dict[int, str] = {}
        self.began_ms = tools.clock.monotonic_ms()

    def run(self) -> None:
        header = self._header()
        self._sort_out(header, {start: tasks.of_view(a.facts, header) for start, a in self.open.items()})
        if header is None or not self.open:
            return
        # Before anything is listed: from here on nothing that is listed can vanish rightly.
        ttl_ms = self.tools.hold_ttl_ms
        hold = self.ledger.holds.take(header.definition.table, self.tools.instance, ttl_ms=ttl_ms)
        with HoldKeeper(self.ledger.holds, hold, ttl_ms=ttl_ms, on_lost=self._tell_lost) as keeper:
            self._sort_out(header, self._worth(header))
            if not self.open:
                return
            self.claimed = {start: a.task_id for start, a in self.open.items()}
            try:
                self._drop(self.tools.claims.take(header, self.claimed).ended)
                self.tools.reached(Step.CLAIMED)
                for part in by_bytes(list(self.open.values()), self.tools.batch_bytes_max):
                    self._build(header, {a.start_ms: a for a in part}, keeper)
            except EngineLost:
                # SUBTLE: their claims stay in our name and end with this process: the scheduler offers them at once,
                # and counts a death, not a try. Given back, a task that kills every Spark would never end (INV-10).
                self.claimed = {}
                raise
            finally:
                self.tools.claims.let_go(header, self.claimed)

    def _tell_lost(self) -> None:
        log.warning("hold_lost", view=self.view)

    # -- what the tasks are worth ----------------------------------------------------------------------------------

    def _header(self) -> ViewHeader | None:
        """The view as it is now, by its query as this process understands it: what is built is named by that meaning.

        A lagging server could show the view before it.
        """
        self.ledger.store.sync()
        return _unless_dropped(lambda: renewed(self.ledger, self.ledger.views.header(self.view)))

    def _worth(self, header: ViewHeader) -> dict[int, Verdict]:
        """Each task against its bucket and the live source, which from now on is the attempt's source."""
        state = _unless_dropped(lambda: self.ledger.views.buckets(self.view, self.open))
        if state is None:  # while the hold was taken
            return {start: tasks.of_view(attempt.facts, None) for start, attempt in self.open.items()}
        windows = [header.definition.grid.window(start) for start in self.open]
        sources = self.ledger.registry.read_windows(header.definition.table, windows)
        verdicts = {}
        for (start, attempt), found in zip(self.open.items(), sources, strict=True):
            attempt.segments, attempt.source = found.segments, found.source
            verdicts[start] = tasks.of_bucket(attempt.facts, state.entries.get(start), found.source)
        return verdicts

    def _sort_out(
        self, header: ViewHeader | None, verdicts: Mapping[int, Verdict], *, built: Built | None = None
    ) -> None:
        """End what is not to be run or, once built, whatever became of its commit."""
        endings = {}
        for start, verdict in verdicts.items():
            if verdict.worth in (Worth.AHEAD, Worth.AGAIN):
                if ending := self._given_back(self.open[start], verdict):
                    endings[start] = ending
                else:
                    del self.open[start]
            elif verdict.worth is Worth.FAILED:
                endings[start] = Ending("failed", verdict.why, rule="too-large", object=self.view, wasted=True)
            elif verdict.worth is not Worth.RUN:
                endings[start] = Ending(str(verdict.worth), verdict.why, wasted=built is not None)
            elif built is not None:
                endings[start] = Ending("committed")
        self._end(header, endings, rows_read=built.rows_read if built else 0)

    def _drop(self, ended: Collection[int]) -> None:
        """A message that comes twice does not make a bucket fail twice. The record is left as it is."""
        why = "this try of it has failed already"
        self._end(None, {start: Ending(str(Worth.COVERED), why) for start in ended})

    def _given_back(self, attempt: Attempt, verdict: Verdict) -> Ending | None:
        """Let the task come again, but not for ever: in the end one of another ledger is refused, and one that cannot
        keep its hold has failed."""
        delivery = attempt.delivery
        times = delivery.count(verdict.worth)
        if verdict.worth is Worth.AGAIN and times >= HOLD_TRIES_MAX:
            why = f"{times} times: {verdict.why}"
            return Ending("failed", why, rule="hold-lost", object=self.view, wasted=True)
        if verdict.worth is Worth.AHEAD and times >= AHEAD_TRIES_MAX:
            delivery.refuse(InvalidInput("task-ahead", f"task {attempt.task_id}: {verdict.why}"))
        else:
            delivery.retry(Unavailable(verdict.why))
        return None

    # -- building --------------------------------------------------------------------------------------------------

    def _build(self, header: ViewHeader, part: dict[int, Attempt], keeper: HoldKeeper) -> None:
        """Build and commit some buckets; fewer at a time when they fail together, so that one cannot spoil the rest."""
        try:
            built = self._computed(header, part, keeper)
        except (Unavailable, OutcomeUnknown):
            raise
        except Exception as error:
            if self.tools.stopping():
                raise Unavailable("the worker stops") from error
            self._build_apart(header, part, keeper, error)
            return
        if part:
            self._commit(header, part, built, keeper)

    def _computed(self, header: ViewHeader, part: dict[int, Attempt], keeper: HoldKeeper) -> Built:
        """Compute the buckets whose inputs are what was registered, before and after they were read.

        A file that changed or went while it was read is why a job failed, whatever Spark says of it: its buckets are
        frozen, or have another source by now, and the others are built without it.
        """
        view = self.tools.views.of(header)
        checked = view.inputs.look(segments_of(part.values()))
        self._freeze(header, part, checked.faults, keeper)
        full = {start: a.attempt_id for start, a in part.items() if a.segments}
        if not full:
            return NOTHING_BUILT  # a bucket without a source needs no computation
        self.tools.reached(Step.READING)
        segments = segments_of(part.values())
        built = _tried(lambda: view.build(segments, full, lane=next(iter(part.values())).task.lane))
        if isinstance(built, EngineLost):
            raise built
        changed = view.inputs.changed_since(segments, checked)
        self._freeze(header, part, changed, keeper)
        if changed:
            # SUBTLE: the files were read together, so a changed one may have rows in buckets that do not name it.
            return self._computed(header, part, keeper)
        if isinstance(built, Exception):
            raise built
        self.tools.reached(Step.WRITTEN)
        return built

    def _build_apart(
        self, header: ViewHeader, part: Mapping[int, Attempt], keeper: HoldKeeper, error: Exception
    ) -> None:
        if len(part) > 1:
            log.warning("batch_split", view=self.view, buckets=len(part), error=_told(error))
            attempts = list(part.values())
            for half in (attempts[: len(attempts) // 2], attempts[len(attempts) // 2 :]):
                self._build(header, {a.start_ms: a for a in half}, keeper)
            return
        ending = Ending("failed", _told(error), rule=type(error).__name__, object=self.view)
        self._end(header, dict.fromkeys(part, ending))

    def _freeze(
        self, header: ViewHeader, part: dict[int, Attempt], faults: Mapping[str, Fault], keeper: HoldKeeper
    ) -> None:
        """Stop at every bucket with a faulty input, unless the registry has moved on and no longer names it."""
        hit = {start: a for start, a in part.items() if not a.segments.keys().isdisjoint(faults)}
        if not hit:
            return
        windows = [header.definition.grid.window(start) for start in hit]
        now = self.ledger.registry.read_windows(header.definition.table, windows)
        endings = {}
        for (start, attempt), found in zip(hit.items(), now, strict=True):
            fault = next(fault for name, fault in faults.items() if name in attempt.segments)
            if found.source.fingerprint != attempt.facts.source.fingerprint:
                endings[start] = Ending(str(Worth.SUPERSEDED), "the source changed since")
            else:
                diagnosis = diagnose(fault, hold_lost=keeper.lost)
                endings[start] = Ending("frozen", fault.told(diagnosis), diagnosis.name.lower(), fault.segment.path)
            del part[start]
        self._end(header, endings)

    # -- committing ------------------------------------------------------------------------------------------------

    def _commit(self, header: ViewHeader, part: Mapping[int, Attempt], built: Built, keeper: HoldKeeper) -> None:
        builds = [self._finished(attempt, built) for attempt in part.values()]
        decided = self.ledger.views.commit(self.view, header.incarnation, builds, hold=keeper.hold).result
        self.tools.reached(Step.COMMITTED)
        self._sort_out(header, {start: tasks.of_commit(d) for start, d in decided.items()}, built=built)

    def _finished(self, attempt: Attempt, built: Built) -> Build:
        assert attempt.source is not None, "an attempt whose task was never looked at"
        attempt.files = built.files.get(attempt.start_ms, ())
        return Build(
            start_ms=attempt.start_ms,
            mode=attempt.facts.mode,
            attempt_id=attempt.attempt_id,
            fingerprint=attempt.source.fingerprint,
            slice_versions=attempt.source.slice_versions,
            definition_hash=attempt.facts.definition_hash,
            built_at_ms=self.tools.clock.now_ms(),
            files=attempt.files,
        )

    # -- endings ---------------------------------------------------------------------------------------------------

    def _end(self, header: ViewHeader | None, endings: Mapping[int, Ending], *, rows_read: int = 0) -> None:
        """Record the end of some attempts, tell it, and only then let their offsets go."""
        if not endings:
            return
        if header is not None:
            self._record(header, endings)
        took_ms = self.tools.clock.monotonic_ms() - self.began_ms
        ended = [(self.open[start], ending) for start, ending in endings.items()]
        self.tools.reporter.report(self.view, ended, took_ms=took_ms, rows_read=rows_read)
        self.tools.reached(Step.ACKNOWLEDGED)
        for start in endings:
            self.open.pop(start).delivery.finish()
            self.claimed.pop(start, None)

    def _record(self, header: ViewHeader, endings: Mapping[int, Ending]) -> None:
        failed = {
            start: Failure(self.open[start].task_id, ending.why, frozen=ending.outcome == "frozen")
            for start, ending in endings.items()
            if ending.is_bad
        }
        if failed:
            self.ledger.dispatch.fail_all(header, failed, policy=self.tools.policy)
        if done := {start: self.open[start].task_id for start in endings if start not in failed}:
            self.ledger.dispatch.finish_all(header, done)


def _unless_dropped(look: Callable[[], T]) -> T | None:
    """What a look at a view shows; None when there is no such view any more."""
    try:
        return look()
    except InvalidInput as error:
        if error.rule != "unknown-view":
            raise
        return None


def _tried(build: Callable[[], Built]) -> Built | Exception:
    """What was built, or what it failed with."""
    try:
        return build()
    except Exception as error:
        return error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {complaint(str(error))}"
