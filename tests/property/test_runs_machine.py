"""Runs are invisible: with them, each bucket is what it would be with an entry of its own, after any operations.

The model has one entry for each hour of four shards. Two processes, each with its own memory, mark, settle, extend,
build and register. What a settlement takes up is its own choice, so it is judged by what it may and what it must do.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from floodmark.core.buckets import Entry, State
from floodmark.core.fingerprint import EMPTY
from floodmark.core.intervals import Interval
from floodmark.core.registry import Put, Remove
from floodmark.core.transitions import Changed, Mode
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Limits
from tests.support.ledger_kit import HOUR_MS, VIEW, Kit, cause, segment
from tests.support.memory_store import MemoryStore

HOURS = 4 * 256 + 20
hours = st.integers(0, HOURS - 1) | st.sampled_from([0, 255, 256, 300, 511, 512, 767, 768, 1_023, 1_024])
TIGHT_BYTES = 1_600
"""Of a write: one piece of a settlement fits, several seldom do."""
spans = st.sampled_from([1, 2, 20, 256, 700])
processes = st.integers(0, 1)
names = st.sampled_from(["a", "b", "c"])


class RunsMachine(RuleBasedStateMachine):
    @initialize(coverage=st.sampled_from([0, 5, 256, 700]), last=hours)
    def set_up(self, coverage: int, last: int) -> None:
        self.store = MemoryStore()
        self.kits = [Kit(self.store, seed=seed) for seed in (1, 2)]
        self.tight = Kit(self.store, seed=3, limits=Limits(write_bytes=TIGHT_BYTES))
        self.kits[0].set_up(coverage_hour=coverage)
        self.sources: dict[str, tuple[int, int]] = {}
        self.model: dict[int, tuple[State, bool]] = {}
        self.coverage = self.watermark = coverage
        self.attempts = 0
        self.put(0, "end", last, 1)

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(process=processes, name=names, hour=hours, span=st.sampled_from([1, 1, 1, 3]))
    def put(self, process: int, name: str, hour: int, span: int) -> None:
        """Its event is marked at once: where it was, and where it is."""
        before = self.sources.get(name)
        self.kits[process].ledger.registry.apply("rides", [Put(segment(name, hour, hour + span, crc=hour + 1))])
        self.sources[name] = (hour, hour + span)
        self._mark(1 - process, [self.sources[name], *([before] if before else [])])

    @rule(process=processes, name=names)
    def remove(self, process: int, name: str) -> None:
        if name in self.sources:
            self.kits[process].ledger.registry.apply("rides", [Remove(name)])
            self._mark(process, [self.sources.pop(name)])

    @rule(process=processes, hour=hours, span=spans)
    def mark(self, process: int, hour: int, span: int) -> None:
        self._mark(process, [(hour, hour + span)])

    @rule(process=processes)
    def mark_everything(self, process: int) -> None:
        marked = self.kits[process].ledger.views.mark_stale(VIEW.name, None, cause())
        assert marked.count == self._marked(range(min(self.model, default=0), HOURS + 1_000))

    def _mark(self, process: int, ranges: list[tuple[int, int]]) -> None:
        intervals = [Interval(first * HOUR_MS, end * HOUR_MS) for first, end in ranges]
        marked = self.kits[process].ledger.views.mark_stale(VIEW.name, intervals, cause())
        assert marked.count == self._marked({hour for first, end in ranges for hour in range(first, end)})

    def _marked(self, marked: "set[int] | range") -> int:
        count = 0
        for hour in marked:
            known = self.model.get(hour)
            if known is None and not self.coverage <= hour < self.watermark:
                continue
            count += known is None or known[0] is State.VALID
            self.model[hour] = (State.STALE, known is not None and known[1])
        return count

    @rule(process=processes, back=st.sampled_from([1, 30, 256, 600]))
    def extend(self, process: int, back: int) -> None:
        first = self.coverage - back
        self.kits[process].ledger.views.extend_coverage(VIEW.name, first * HOUR_MS, cause("coverage"))
        for hour in range(first, self.coverage):
            self.model.setdefault(hour, (State.STALE, False))
        self.coverage = first

    @rule(process=processes, hour=hours)
    def build(self, process: int, hour: int) -> None:
        known, kit = self.model.get(hour), self.kits[process]
        if known is not None and known[0] is State.VALID:
            return
        mode = Mode.APPEND if known is None else Mode.OVERWRITE if self._source(hour) else Mode.DELETE
        self.attempts += 1
        decision = kit.commit_one(kit.build(hour, mode, f"attempt-{self.attempts}"))
        assert isinstance(decision, Changed) == (mode is not Mode.APPEND or hour + 1 <= self._data_end())
        if isinstance(decision, Changed):
            self.model[hour] = (State.VALID, True)
            self._move_watermark()

    @rule(process=processes, end=hours)
    def settle(self, process: int, end: int) -> None:
        self._settle(self.kits[process], end)

    @rule(end=hours)
    def settle_piece_by_piece(self, end: int) -> None:
        """Where so little fits into a write that most settlements are halved."""
        self._settle(self.tight, end)

    def _settle(self, kit: Kit, end: int) -> None:
        """It may make VALID-empty what has no source, and it must where that is a whole shard."""
        while kit.ledger.views.settle(VIEW.name, kit.header.incarnation, end_ms=end * HOUR_MS).shards:
            self._take_settlement()
        self._take_settlement()
        end = min(end, self._data_end())
        for first in range(-(-self.coverage // 256) * 256, end - 255, 256):
            shard = range(first, first + 256)
            vacant = not any(hour in self.model for hour in shard)
            nodes = {int(name) for name in self.store.children(paths.shards(VIEW.name))}
            assert not vacant or first // 256 in nodes or any(map(self._source, shard)), f"hour {first} is VACANT"

    def _take_settlement(self) -> None:
        for hour, entry in self._entries().items():
            now = (entry.state, entry.ever_valid)
            if self.model.get(hour) != now:
                known = self.model.get(hour)
                assert known is None or known[0] is State.STALE, f"hour {hour} was {known}"
                assert entry.fingerprint == EMPTY, f"hour {hour}"
                assert not entry.files
                assert not self._source(hour), f"INV-4: hour {hour} has a source"
                self.model[hour] = now
        self._move_watermark()

    # -- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def each_bucket_is_what_the_model_says(self) -> None:
        found = {hour: (entry.state, entry.ever_valid) for hour, entry in self._entries().items()}
        assert found == self.model

    @invariant()
    def coverage_and_watermark_are_the_models(self) -> None:
        header = self.kits[1].header
        assert (header.coverage_start_ms, header.watermark_ms) == (self.coverage * HOUR_MS, self.watermark * HOUR_MS)

    @invariant()
    def a_shard_is_a_node_or_in_a_run(self) -> None:
        node = self.store.read(paths.runs(VIEW.name))
        assert node is not None
        nodes = {int(name) for name in self.store.children(paths.shards(VIEW.name))}
        runs = list(codec.decode_runs(node.data, what="runs"))
        assert not [run for run in runs if nodes & set(range(run.first, run.end))]

    @invariant()
    def what_is_valid_is_built_from_its_source(self) -> None:
        """INV-3, INV-4, INV-7: every change has been marked."""
        for hour, entry in self._entries().items():
            if entry.state is State.VALID and entry.fingerprint is not None:
                assert entry.fingerprint.count == self._source(hour), f"hour {hour}"

    def _entries(self) -> dict[int, Entry]:
        state = self.kits[1].ledger.views.state(VIEW.name)
        grid = VIEW.grid
        runs = [s for run in state.runs for n in range(run.first, run.end) for s in run.shard(n, grid)]
        return {start_ms // HOUR_MS: entry for start_ms, entry in [*runs, *state.entries.items()]}

    def _source(self, hour: int) -> int:
        return sum(first <= hour < end for first, end in self.sources.values())

    def _data_end(self) -> int:
        return max((end for _, end in self.sources.values()), default=-(10**6))

    def _move_watermark(self) -> None:
        while self.watermark + 1 <= self._data_end() and self.model.get(self.watermark, (None, False))[1]:
            self.watermark += 1


def test_runs_are_invisible() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        RunsMachine, settings=settings(max_examples=25, stateful_step_count=20, deadline=None)
    )
