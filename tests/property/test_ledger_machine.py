"""The ledger against a model in plain dictionaries: any sequence of operations, by two processes, with lost answers.

Each process has its own memory of what it saw, so each acts on what the other has since changed. Builds are kept and
committed later, when their source, their bucket or their view may be another. Everything is by hour, around a boundary
of shards (hour 256) and several of slices.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from floodmark.core import segments
from floodmark.core.buckets import Entry, State
from floodmark.core.errors import OutcomeUnknown
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.segments import Segment
from floodmark.core.transitions import AlreadyTrue, Build, Changed, Mode, Reason, Rejected
from floodmark.ledger import engine
from floodmark.ledger.store import Committed, Conflicted, Op, Store
from floodmark.local.zookeeper import ZooKeeperServer
from tests.simulation.sizes import SmallWrites
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, cause, segment, zookeeper_store
from tests.support.memory_store import MemoryStore, OneByOne, Watched

SLICE_HOURS = 4
hours = st.integers(253, 258)
names = st.sampled_from(["a", "b", "c"])
crcs = st.integers(1, 2)
starts = st.integers(504, 516).map(lambda half: half / 2)
spans = st.sampled_from([0.5, 1, 2, 3, 6, 400])
"""In hours. The longest touches more slices than it may be listed in, so it is wide."""
processes = st.integers(0, 1)


@dataclass
class Lossy(OneByOne, Watched):
    """Answers to coming commits get lost as the script says: `lost` after the commit was made, `gone` before."""

    script: Iterator[str] = field(default_factory=lambda: iter(()))

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        word = next(self.script, "ok")
        if word == "gone":
            raise OutcomeUnknown("the connection broke before the request arrived")
        answer = self.inner.commit(ops)
        if word == "lost":
            raise OutcomeUnknown("the connection broke before the answer arrived")
        return answer


# -- the model -----------------------------------------------------------------------------------------------------


@dataclass
class Bucket:
    state: str
    source: frozenset[tuple[str, int]] | None
    """Names and CRCs it was built from; None when it was never built."""
    attempt: str


@dataclass
class Model:
    """What the ledger should hold, in hours."""

    segments: dict[str, Segment] = field(default_factory=dict)
    buckets: dict[int, Bucket] = field(default_factory=dict)
    coverage: int | None = None
    watermark: int | None = None
    incarnation: int = 0

    def source(self, hour: int) -> frozenset[tuple[str, int]]:
        start_ms, end_ms = hour * HOUR_MS, (hour + 1) * HOUR_MS
        return frozenset(
            (s.name, s.crc)
            for s in self.segments.values()
            if s.start_ms is None or s.last_ms is None or (s.start_ms < end_ms and s.last_ms >= start_ms)
        )

    @property
    def data_end_hours(self) -> float:
        return max((s.last_ms + 1 for s in self.segments.values() if s.last_ms is not None), default=-(10**9)) / HOUR_MS

    def covers(self, hour: int) -> bool:
        return self.coverage is not None and self.watermark is not None and self.coverage <= hour < self.watermark

    def judge(self, build: "Kept") -> Reason | None:  # noqa: PLR0911 - one for each reason
        """Why this build must be rejected now."""
        bucket, append = self.buckets.get(build.hour), build.made.mode is Mode.APPEND
        if build.incarnation != self.incarnation:
            return Reason.DROPPED
        if bucket is not None and bucket.attempt == build.made.attempt_id:
            return None
        if append == (bucket is not None):
            return Reason.NOT_VACANT if append else Reason.VACANT
        if bucket is not None and bucket.state == "VALID":
            return Reason.NOT_STALE
        if self.source(build.hour) != build.source:
            return Reason.SOURCE_NOT_EMPTY if build.made.mode is Mode.DELETE else Reason.SUPERSEDED
        if append and self.coverage is None:
            return Reason.NOT_COVERED
        return Reason.BEYOND_SOURCE if append and build.hour + 1 > self.data_end_hours else None

    def commit(self, builds: Sequence["Kept"]) -> None:
        written = [b for b in builds if self.judge(b) is None and not self.has(b)]
        for build in written:
            self.buckets[build.hour] = Bucket("VALID", build.source, build.made.attempt_id)
        if written:
            self.move_watermark()

    def move_watermark(self) -> None:
        while self.watermark is not None and self.watermark + 1 <= self.data_end_hours:
            at = self.buckets.get(self.watermark)
            if at is None or at.source is None:
                break
            self.watermark += 1

    def has(self, build: "Kept") -> bool:
        bucket = self.buckets.get(build.hour)
        return bucket is not None and bucket.attempt == build.made.attempt_id

    def revert(self, hour: int) -> None:
        bucket = self.buckets.get(hour)
        if bucket is not None and bucket.state == "STALE" and bucket.source == self.source(hour):
            bucket.state = "VALID"
            self.move_watermark()

    def mark(self, marked: Sequence[int]) -> None:
        for hour in marked:
            if hour in self.buckets:
                self.buckets[hour].state = "STALE"
            elif self.covers(hour):
                self.buckets[hour] = Bucket("STALE", None, "")

    def extend(self, hour: int) -> None:
        if self.coverage is None:
            self.coverage = self.watermark = hour
        for older in range(hour, self.coverage):
            self.buckets.setdefault(older, Bucket("STALE", None, ""))
        self.coverage = min(self.coverage, hour)


@dataclass(frozen=True)
class Kept:
    """A build made earlier: what it read, by the model's account, and of which view."""

    made: Build
    source: frozenset[tuple[str, int]]
    incarnation: int

    @property
    def hour(self) -> int:
        return self.made.start_ms // HOUR_MS


# -- the machine ---------------------------------------------------------------------------------------------------


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self, store: Store, close: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.close = close
        self.stores = [Lossy(store), Lossy(store)]
        self.kits = [Kit(lossy, seed=n) for n, lossy in enumerate(self.stores)]
        self.model = Model()
        self.incarnations: list[str] = []
        self.builds: list[Kept] = []
        self.attempts = 0
        self.before: dict[int, Entry] = {}
        self.watermark_before: int | None = None

    def teardown(self) -> None:
        self.close()

    @initialize(coverage=st.none() | hours, listed=st.lists(st.tuples(names, starts, spans, crcs), max_size=3))
    def begin(self, coverage: int | None, listed: list[tuple[str, float, float, int]]) -> None:
        self._create_table(self.kits[0])
        self._create(self.kits[0], coverage)
        for name, start, span, crc in listed:
            self.put(0, name, start, span, crc)

    # -- the registry

    @rule(process=processes, name=names, start=starts, span=spans, crc=crcs)
    def put(self, process: int, name: str, start: float, span: float, crc: int) -> None:
        """Add, replace or move."""
        made = segment(name, start, start + span, crc)
        self.kits[process].put(made)
        self.model.segments[name] = made

    @rule(process=processes, name=names, crc=crcs)
    def put_without_times(self, process: int, name: str, crc: int) -> None:
        made = segment(name, 0, 1, crc, start_ms=None, last_ms=None)
        self.kits[process].put(made)
        self.model.segments[name] = made

    @rule(process=processes, some=st.lists(names, min_size=1, max_size=2, unique=True))
    def remove(self, process: int, some: list[str]) -> None:
        self.kits[process].remove(*some)
        for name in some:
            self.model.segments.pop(name, None)

    # -- builds and commits

    @rule(process=processes, hour=hours, mode=st.sampled_from([Mode.APPEND, Mode.OVERWRITE]))
    def build(self, process: int, hour: int, mode: Mode) -> None:
        """Read a source now, to be committed whenever."""
        self._kept(process, hour, mode)

    @rule(process=processes, hour=hours)
    def do_now(self, process: int, hour: int) -> None:
        """What a scheduler and a worker would do with this bucket: append, refresh or clear."""
        empty = not self.model.source(hour)
        mode = Mode.APPEND if hour not in self.model.buckets else Mode.DELETE if empty else Mode.OVERWRITE
        self._commit(process, [self._kept(process, hour, mode)])

    @rule(process=processes, hour=hours, name=names, crc=crcs)
    def change_under_a_build(self, process: int, hour: int, name: str, crc: int) -> None:
        """The race this ledger is for: the other process registers a segment after the source was read."""
        kept = self._kept(process, hour, Mode.OVERWRITE if hour in self.model.buckets else Mode.APPEND)
        self.put(1 - process, name, hour, 1, crc)
        self._commit(process, [kept])

    @rule(process=processes, hour=hours)
    def shrink_under_an_entry(self, process: int, hour: int) -> None:
        """A bucket ahead of the frontier is built, then the data is taken away from under it."""
        self.put(process, "a", hour - 1, 2, 1)
        self._commit(process, [self._kept(process, hour, Mode.APPEND)])
        self.put(1 - process, "a", hour - 1, 1, 1)

    @rule(process=processes, first=hours, count=st.integers(2, 5))
    def append_in_a_row(self, process: int, first: int, count: int) -> None:
        """A group commit of neighbours, as at the frontier."""
        self._commit(process, [self._kept(process, hour, Mode.APPEND) for hour in range(first, first + count)])

    @precondition(lambda self: self.builds)
    @rule(process=processes, data=st.data())
    def commit_kept(self, process: int, data: st.DataObject) -> None:
        """A group of builds made earlier, of one incarnation: one that is outdated takes no other down."""
        chosen = data.draw(st.lists(st.sampled_from(self.builds[-6:]), min_size=1, max_size=4))
        group = {b.hour: b for b in chosen if b.incarnation == chosen[0].incarnation}
        self._commit(process, list(group.values()))

    def _kept(self, process: int, hour: int, mode: Mode) -> Kept:
        self.attempts += 1
        made = self.kits[process].build(hour, mode, f"attempt-{self.attempts}")
        kept = Kept(made, self.model.source(hour), self.model.incarnation)
        self.builds.append(kept)
        return kept

    def _commit(self, process: int, builds: list[Kept]) -> None:
        expected = {b.hour: self.model.judge(b) for b in builds}
        incarnation = self.incarnations[builds[0].incarnation]
        decisions = self.kits[process].commit(*(b.made for b in builds), incarnation=incarnation)
        self.model.commit(builds)
        # Looked at now, because the same step may go on to change the source.
        self.what_became_valid_has_the_fingerprint_of_its_source()
        self.the_watermark_keeps_its_promises()
        assert {h: d.reason if isinstance(d, Rejected) else None for h, d in decisions.items()} == expected
        assert all(isinstance(d, Changed | AlreadyTrue) for h, d in decisions.items() if expected[h] is None)

    # -- marks, reverts, coverage, drops

    @rule(process=processes)
    def revert(self, process: int) -> None:
        """Try it on every bucket, as a scheduler does: what is not STALE, or has another source, stays as it is."""
        kit = self.kits[process]
        for hour in range(252, 262):
            kit.ledger.views.revert_valid(VIEW.name, kit.header.incarnation, hour * HOUR_MS)
            self.model.revert(hour)

    @rule(process=processes, some=st.lists(hours, min_size=1, max_size=3))
    def mark(self, process: int, some: list[int]) -> None:
        self.kits[process].mark(*some)
        self.model.mark(some)

    @rule(process=processes)
    def mark_everything(self, process: int) -> None:
        self.kits[process].ledger.views.mark_stale(VIEW.name, None, cause())
        self.model.mark(range(300))

    @rule(process=processes, hour=st.integers(248, 258))
    def extend(self, process: int, hour: int) -> None:
        self.kits[process].ledger.views.extend_coverage(VIEW.name, hour * HOUR_MS + 5, cause("coverage"))
        self.model.extend(hour)

    @rule(process=processes, coverage=st.none() | hours)
    def drop_and_create(self, process: int, coverage: int | None) -> None:
        _until_known(lambda: self.kits[process].ledger.views.drop(VIEW.name))
        self._create(self.kits[process], coverage)
        self.before, self.watermark_before = {}, None

    @rule(process=processes, coverage=st.none() | hours)
    def drop_the_table_and_create_it(self, process: int, coverage: int | None) -> None:
        """The other process remembers the table that was there before."""
        ledger = self.kits[process].ledger
        _until_known(lambda: ledger.views.drop(VIEW.name))
        assert _until_known(lambda: ledger.dropping.drop(TABLE.name))
        self._create_table(self.kits[process])
        self._create(self.kits[process], coverage)
        self.before, self.watermark_before = {}, None

    def _create_table(self, kit: Kit) -> None:
        kit.ledger.registry.create_table(replace(TABLE, slice_span_ms=SLICE_HOURS * HOUR_MS))
        self.model.segments.clear()

    def _create(self, kit: Kit, coverage: int | None) -> None:
        start_ms = None if coverage is None else coverage * HOUR_MS
        header = _until_known(lambda: kit.ledger.views.create(VIEW, coverage_start_ms=start_ms))
        self.model.incarnation = len(self.incarnations)
        self.incarnations.append(header.incarnation)
        self.model.buckets.clear()
        self.model.coverage = self.model.watermark = coverage

    @rule(process=processes, script=st.lists(st.sampled_from(["ok", "lost", "gone"]), min_size=1, max_size=3))
    def lose_answers(self, process: int, script: list[str]) -> None:
        """To this process's coming commits."""
        self.stores[process].script = iter(script)

    # -- what must hold after every step

    @invariant()
    def states_coverage_and_watermark_are_the_models(self) -> None:
        state = self.kits[0].ledger.views.state(VIEW.name)
        assert {start // HOUR_MS: (str(e.state), e.ever_valid, e.attempt_id) for start, e in state.entries.items()} == {
            h: (b.state, b.source is not None, b.attempt) for h, b in self.model.buckets.items()
        }
        assert (_hour(state.header.coverage_start_ms), _hour(state.header.watermark_ms)) == (
            self.model.coverage, self.model.watermark,
        )  # fmt: skip

    @invariant()
    def what_became_valid_has_the_fingerprint_of_its_source(self) -> None:
        """INV-3, INV-4, by the ledger's own account and not the model's."""
        entries = self.kits[1].ledger.views.state(VIEW.name).entries
        for start_ms, entry in entries.items():
            if entry.state is State.VALID and entry != self.before.get(start_ms):
                live = self.kits[1].ledger.registry.read_window("rides", Interval(start_ms, start_ms + HOUR_MS))
                assert entry.fingerprint == fingerprint(live.segments.values()), f"hour {start_ms // HOUR_MS}"
        self.before = entries

    @invariant()
    def the_watermark_keeps_its_promises(self) -> None:
        """INV-5: never back, never past the data when it moves, nothing VACANT below it within coverage (INV-6)."""
        state = self.kits[1].ledger.views.state(VIEW.name)
        watermark_ms, coverage_ms = state.header.watermark_ms, state.header.coverage_start_ms
        before_ms, self.watermark_before = self.watermark_before, watermark_ms
        if watermark_ms is None or coverage_ms is None:
            assert before_ms is None
            return
        assert before_ms is None or watermark_ms >= before_ms
        if before_ms is not None and watermark_ms > before_ms:
            last_ms = self.kits[1].ledger.registry.header("rides").max_last_ms
            assert last_ms is not None
            assert watermark_ms <= last_ms + 1
        assert all(start in state.entries for start in range(coverage_ms, watermark_ms, HOUR_MS))


def _hour(ms: int | None) -> int | None:
    return None if ms is None else ms // HOUR_MS


def _until_known(act: Callable[[], Any]) -> Any:
    """Removing a subtree takes several writes; one whose answer was lost is done again by asking again."""
    for _ in range(5):
        try:
            return act()
        except OutcomeUnknown:
            continue
    raise AssertionError("more answers were lost than the script has")


def test_the_ledger_is_its_model_in_memory() -> None:
    """Any sequence of operations (INV-1 to INV-6, INV-13)."""
    many = settings(max_examples=150, stateful_step_count=40)
    run_state_machine_as_test(lambda: LedgerMachine(MemoryStore()), settings=many)


@pytest.mark.scenario("I9", "K12")
@pytest.mark.parametrize("items_max", [1, 2])
def test_the_ledger_is_its_model_with_writes_halved_and_slices_cut(
    items_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every group is too large for one write, and every slice is cut into parts of one or two segments."""
    monkeypatch.setattr(segments, "PART_BYTES_MAX", 150)

    def machine() -> LedgerMachine:
        store = MemoryStore()
        monkeypatch.setattr(engine, "check_sizes", SmallWrites(store, items_max).check)
        return LedgerMachine(store)

    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=30))


@pytest.mark.stack
def test_the_ledger_is_its_model_on_zookeeper(zookeeper: ZooKeeperServer) -> None:
    """The same machine on the real thing, with fewer examples."""

    def machine() -> LedgerMachine:
        stack = ExitStack()
        store = stack.enter_context(zookeeper_store(f"{zookeeper.hosts}/{uuid.uuid4().hex}"))
        return LedgerMachine(store, stack.close)

    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=30))
