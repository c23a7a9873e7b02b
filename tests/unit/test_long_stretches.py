"""One row of 1970, one of 9999, in a table with a view of minutes: cost follows the data, not the time between."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from floodmark.core.buckets import DataFile, State
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.registry import Put, Remove
from floodmark.core.segments import Segment
from floodmark.core.tables import ViewDefinition, ViewHeader
from floodmark.core.transitions import Build, Mode
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Limits
from floodmark_consistency.sweep import Sweeper
from floodmark_scheduler.eyes import Eyes
from tests.support.bus_doubles import FrozenClock
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, cause, segment
from tests.support.memory_store import MemoryStore
from tests.support.scheduler_office import Office

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
TODAY_MS = 20_000 * DAY_MS
"""A day of 2024."""
YEAR_1_MS, YEAR_9999_MS = -62_135_596_800_000, 253_402_300_740_000
MINUTES = ViewDefinition("rides_hourly", "rides", "SELECT 1", "h1", MINUTE_MS, "/lake/views/minutes")
ISLAND_BUCKETS_MAX = 2 * 256 + 4
"""The entries that a row far from all others may cost: those of the shards it touches."""
TASKS_MAX = 6
"""The buckets with rows, but for the newest, which is not over."""


def row_at(name: str, time_ms: int, crc: int = 1) -> Segment:
    return Segment(name, crc, time_ms, time_ms, f"{name}.parquet", 1, 100)


TODAY = [row_at(f"today{n}", TODAY_MS + n * MINUTE_MS) for n in range(5)]


@dataclass
class Place:
    """A scheduler, and a worker that builds whatever it is given."""

    office: Office = field(default_factory=lambda: Office(clock=FrozenClock(TODAY_MS + DAY_MS)))
    tasks: int = 0

    def __post_init__(self) -> None:
        self.ledger = self.office.kit.ledger
        self.ledger.registry.create_table(TABLE)

    def put(self, *segments: Segment) -> None:
        self.ledger.registry.apply("rides", [Put(s) for s in segments])

    def create_view(self) -> None:
        start_ms = self.ledger.registry.header("rides").min_start_ms
        self.ledger.views.create(MINUTES, coverage_start_ms=start_ms)

    def run(self, *, tasks_max: int) -> None:
        """Schedule and build until nothing is left to do."""
        idle = 0
        while idle < 2:
            before = len(self.office.publisher.sent)
            self.office.cycle()
            tasks = self.office.tasks()[before:]
            self.tasks += len(tasks)
            assert self.tasks <= tasks_max, f"{self.tasks} tasks and no end"
            idle = idle + 1 if not tasks else 0
            for task in tasks:
                self.build(task.bucket_start_ms, Mode(task.mode))

    def build(self, start_ms: int, mode: Mode) -> None:
        read = self.ledger.registry.read_window("rides", Interval(start_ms, start_ms + MINUTE_MS))
        files = () if read.source.fingerprint.is_empty else (DataFile(f"{start_ms}", 1, 1),)
        build = Build(
            start_ms=start_ms,
            mode=mode,
            attempt_id=f"a{self.tasks}/{start_ms}",
            fingerprint=read.source.fingerprint,
            slice_versions=read.source.slice_versions,
            definition_hash="h1",
            built_at_ms=1,
            files=files,
        )
        self.ledger.views.commit("rides_hourly", self.header.incarnation, [build])

    @property
    def header(self) -> ViewHeader:
        return self.ledger.views.header("rides_hourly")

    def nodes(self) -> int:
        prefix = paths.view("rides_hourly")
        return sum(path.startswith(prefix) for path in self.office.store.nodes)

    def bytes(self) -> int:
        prefix = paths.view("rides_hourly")
        return max(len(node.data) for path, node in self.office.store.nodes.items() if path.startswith(prefix))

    def entries(self) -> int:
        return len(self.ledger.views.state("rides_hourly").entries)

    def writes(self) -> int:
        """How often a node of the view was written, by the versions of those there are."""
        prefix = paths.view("rides_hourly")
        return sum(node.version + 1 for path, node in self.office.store.nodes.items() if path.startswith(prefix))

    def files(self) -> set[int]:
        """The buckets that have files."""
        return {s for s, entry in self.ledger.views.state("rides_hourly").entries.items() if entry.files}

    def wrong(self) -> list[int]:
        """Buckets that are VALID from another source than theirs, in runs or not (INV-3, INV-4)."""
        state = self.ledger.views.state("rides_hourly")
        segments = list(self.ledger.registry.snapshot("rides").by_name.values())
        touched = {s for segment in segments if segment.interval for s in MINUTES.grid.starts_in(segment.interval)}
        wrong = []
        for start_ms in {*state.entries, *touched}:
            entry = state.at(start_ms)
            live = fingerprint(s for s in segments if s.overlaps(MINUTES.grid.window(start_ms)))
            if entry is not None and entry.state is State.VALID and entry.fingerprint != live:
                wrong.append(start_ms)
        return wrong

    def stale(self) -> list[int]:
        state = self.ledger.views.state("rides_hourly")
        assert all(run.entry.state is State.VALID for run in state.runs)
        return sorted(s for s, entry in state.entries.items() if entry.state is State.STALE)


@pytest.mark.scenario("K13")
@pytest.mark.parametrize("far_ms", [0, YEAR_1_MS], ids=["1970", "year 1"])
def test_a_view_over_an_ancient_row_costs_the_data_and_not_the_time_between(far_ms: int) -> None:
    place = Place()
    place.put(row_at("ancient", far_ms), *TODAY)
    place.create_view()
    place.run(tasks_max=TASKS_MAX)
    assert place.header.watermark_ms == TODAY_MS + 4 * MINUTE_MS
    assert place.nodes() < 20
    assert place.entries() < 2 * ISLAND_BUCKETS_MAX
    assert place.stale() == []


@pytest.fixture
def settled() -> Place:
    """A view over 1970 and today that is as it should be."""
    place = Place()
    place.put(row_at("ancient", 0), *TODAY)
    place.create_view()
    place.run(tasks_max=TASKS_MAX)
    place.tasks = 0
    return place


def minutes(*starts_ms: int) -> list[Interval]:
    return [Interval(s, s + MINUTE_MS) for s in starts_ms]


MIDDLE_MS = 10_000 * DAY_MS + 7 * MINUTE_MS


@pytest.mark.scenario("K13")
@pytest.mark.parametrize("far_ms", [0, YEAR_1_MS], ids=["1970", "year 1"])
def test_an_ancient_row_that_comes_later_costs_the_same(far_ms: int) -> None:
    """Coverage is extended backwards: what becomes covered is one STALE run, and then VALID-empty."""
    place = Place()
    place.put(*TODAY)
    place.create_view()
    place.run(tasks_max=TASKS_MAX)
    place.put(row_at("ancient", far_ms))
    writes = place.writes()
    marked = place.ledger.views.extend_coverage("rides_hourly", far_ms, cause())
    assert len(marked.synthesized) < ISLAND_BUCKETS_MAX
    assert marked.count == (TODAY_MS - far_ms) // MINUTE_MS
    assert place.writes() - writes < 8
    place.run(tasks_max=TASKS_MAX)
    assert (place.header.coverage_start_ms, place.header.watermark_ms) == (far_ms, TODAY_MS + 4 * MINUTE_MS)
    assert (place.stale(), place.wrong()) == ([], [])
    assert place.nodes() < 20


@pytest.mark.scenario("K13")
def test_a_row_of_9999_moves_the_frontier_to_now_and_no_further() -> None:
    place = Place()
    place.put(row_at("ancient", 0), *TODAY, row_at("far", YEAR_9999_MS))
    place.create_view()
    place.run(tasks_max=TASKS_MAX)
    assert place.header.watermark_ms == place.office.clock.now_ms() // MINUTE_MS * MINUTE_MS
    assert (place.stale(), place.wrong()) == ([], [])
    assert place.nodes() < 24


@pytest.mark.scenario("K13")
def test_a_late_file_in_the_middle_makes_exactly_its_buckets_stale(settled: Place) -> None:
    settled.put(row_at("late", MIDDLE_MS), row_at("later", MIDDLE_MS + 2 * MINUTE_MS))
    settled.ledger.views.mark_stale("rides_hourly", minutes(MIDDLE_MS, MIDDLE_MS + 2 * MINUTE_MS), cause())
    assert settled.stale() == [MIDDLE_MS, MIDDLE_MS + 2 * MINUTE_MS]
    settled.run(tasks_max=2)
    assert (settled.stale(), settled.wrong()) == ([], [])
    assert settled.files() == {0, MIDDLE_MS, MIDDLE_MS + 2 * MINUTE_MS, *(s.start_ms for s in TODAY[:-1])}


@pytest.mark.scenario("K13")
def test_a_lost_event_in_the_middle_is_found_by_the_sweep(settled: Place) -> None:
    """INV-7, and the sweep looks at stretches, not at each of their buckets."""
    clock = settled.office.clock
    sweeper = Sweeper(settled.ledger, clock, grace_ms=1_000)
    assert sweeper.sweep("rides_hourly") == 0
    settled.put(row_at("late", MIDDLE_MS))
    assert sweeper.sweep("rides_hourly") == 0
    clock.sleep_ms(1_001)
    assert sweeper.sweep("rides_hourly") == 1
    assert settled.stale() == [MIDDLE_MS]
    settled.run(tasks_max=1)
    clock.sleep_ms(1_001)
    assert sweeper.sweep("rides_hourly") == 0
    # Its neighbours came out of the run without slice versions: what comes to them is noticed all the same.
    settled.put(row_at("beside", MIDDLE_MS + MINUTE_MS))
    sweeper.sweep("rides_hourly")
    clock.sleep_ms(1_001)
    assert sweeper.sweep("rides_hourly") == 1
    assert settled.stale() == [MIDDLE_MS + MINUTE_MS]


@pytest.mark.scenario("K13")
def test_a_mark_of_everything_costs_the_data(settled: Place) -> None:
    """REFRESH of the whole view: the run is STALE in one write, and VALID-empty in another."""
    writes = settled.writes()
    marked = settled.ledger.views.mark_stale("rides_hourly", None, cause())
    assert marked.count == TODAY_MS // MINUTE_MS + 4
    assert settled.writes() - writes < 8
    settled.run(tasks_max=TASKS_MAX)
    assert (settled.stale(), settled.wrong()) == ([], [])
    assert settled.nodes() < 20


@pytest.mark.scenario("K13")
def test_a_mark_of_a_part_leaves_the_rest_valid(settled: Place) -> None:
    """A year in the middle that does not begin and end with a shard."""
    year = Interval(MIDDLE_MS + 1, MIDDLE_MS + 365 * DAY_MS + 1)
    marked = settled.ledger.views.mark_stale("rides_hourly", [year], cause())
    state = settled.ledger.views.state("rides_hourly")
    assert marked.count == 365 * 24 * 60 + 1
    for start_ms, is_stale in (
        (MIDDLE_MS - MINUTE_MS, False),
        (MIDDLE_MS, True),
        (MIDDLE_MS + 100 * DAY_MS, True),
        (MIDDLE_MS + 365 * DAY_MS, True),
        (MIDDLE_MS + 365 * DAY_MS + MINUTE_MS, False),
    ):
        entry = state.at(start_ms)
        assert entry is not None
        assert (entry.state is State.STALE) == is_stale, start_ms
    settled.run(tasks_max=TASKS_MAX)
    assert (settled.stale(), settled.wrong()) == ([], [])


@pytest.mark.scenario("K13")
def test_of_a_stale_run_only_buckets_with_a_source_are_built(settled: Place) -> None:
    settled.put(row_at("late", MIDDLE_MS))
    settled.ledger.views.mark_stale("rides_hourly", None, cause())
    settled.run(tasks_max=TASKS_MAX)
    assert (settled.stale(), settled.wrong()) == ([], [])
    assert MIDDLE_MS in settled.files()


@pytest.mark.scenario("K13")
def test_a_source_that_goes_again_leaves_an_empty_bucket(settled: Place) -> None:
    settled.put(row_at("late", MIDDLE_MS))
    settled.ledger.views.mark_stale("rides_hourly", minutes(MIDDLE_MS), cause())
    settled.run(tasks_max=1)
    settled.ledger.registry.apply("rides", [Remove("late")])
    settled.ledger.views.mark_stale("rides_hourly", minutes(MIDDLE_MS), cause())
    settled.run(tasks_max=2)
    assert (settled.stale(), settled.wrong(), settled.files() & {MIDDLE_MS}) == ([], [], set())


@pytest.mark.scenario("K12", "K13")
def test_a_stale_stretch_that_fits_into_no_write_gets_nodes_and_is_built_bucket_by_bucket() -> None:
    """INV-10: a run that could only grow does not grow, and what is in it is not waited for for ever."""
    kit, shard = Kit(MemoryStore()), 256
    incarnation = kit.set_up().incarnation
    kit.put(segment("a", 0, 1), segment("z", 12 * shard, 12 * shard + 1))
    kit.append(0)
    kit.append(12 * shard)
    kit.ledger.views.settle(VIEW.name, incarnation, end_ms=13 * shard * HOUR_MS)
    kit.put(segment("late", 5 * shard, 5 * shard + 1))
    marked = Interval(shard * HOUR_MS, 12 * shard * HOUR_MS)
    kit.ledger.views.mark_stale(VIEW.name, [marked], cause(segments=(random.Random(1).randbytes(1_000).hex(),)))
    node = kit.store.read(paths.runs(VIEW.name))
    assert node is not None
    narrow = Kit(kit.store, limits=Limits(node_bytes=len(node.data) + 20))
    settled = narrow.ledger.views.settle(VIEW.name, incarnation, end_ms=13 * shard * HOUR_MS)
    assert [error for error in settled.given_up if "shards/5" not in error] == []
    states = narrow.states()
    stale = {hour for hour in states if states[hour] == "STALE"}
    assert stale == set(range(5 * shard, 6 * shard)), (
        "what stays is the shard with a source, whose node is too large too"
    )
    settled = kit.ledger.views.settle(VIEW.name, incarnation, end_ms=13 * shard * HOUR_MS)
    assert (settled.opened, settled.given_up) == (1, ())


@pytest.mark.scenario("K13")
@pytest.mark.parametrize("replaced", [False, True], ids=["dropped", "replaced"])
def test_a_view_that_goes_while_it_is_settled_ends_no_scheduler(
    replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-14: what is decided for it is decided on what there is, and other views get their turn."""
    place = Place()
    place.put(row_at("ancient", 0), *TODAY)
    place.create_view()
    look_at = Eyes.look_at

    def look_late(eyes: Eyes, view: str, shards: Iterable[int]) -> None:
        place.ledger.views.drop(view)
        if replaced:
            place.ledger.views.create(MINUTES, coverage_start_ms=TODAY_MS)
        look_at(eyes, view, shards)

    with monkeypatch.context() as patch:
        patch.setattr(Eyes, "look_at", look_late)
        place.office.cycle()
    if not replaced:
        place.create_view()
    for task in place.office.tasks():
        place.build(task.bucket_start_ms, Mode(task.mode))
    place.run(tasks_max=TASKS_MAX)
    assert (place.stale(), place.wrong()) == ([], [])
    assert place.header.watermark_ms == TODAY_MS + 4 * MINUTE_MS


@pytest.mark.scenario("K13")
def test_a_registration_while_runs_are_settled_is_not_missed() -> None:
    """INV-4: the table's header is checked in the write, so what came in between costs another try."""
    place = Place()
    place.put(row_at("ancient", 0), *TODAY)
    place.create_view()
    waiting = [row_at("late", MIDDLE_MS)]

    def register() -> None:
        if waiting:
            place.put(waiting.pop())

    place.office.store.before_commit = register
    settled = place.ledger.views.settle("rides_hourly", place.header.incarnation, end_ms=TODAY_MS)
    assert settled.empty
    assert place.ledger.views.state("rides_hourly").at(MIDDLE_MS) is None
    assert place.wrong() == []


@pytest.mark.scenario("K13")
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "bucket appended meanwhile"])
def test_settling_survives_what_happens_meanwhile(lost: bool) -> None:
    """An append of a bucket in the stretch, by a scheduler that did not see the run, is neither lost nor doubled."""
    place = Place()
    place.put(row_at("ancient", 0), *TODAY)
    place.create_view()
    once = [1]

    def meanwhile() -> None:
        if once and once.pop():
            if lost:
                place.ledger.views.settle("rides_hourly", place.header.incarnation, end_ms=TODAY_MS)
            else:
                place.build(MIDDLE_MS, Mode.APPEND)

    place.office.store.before_commit = meanwhile
    place.ledger.views.settle("rides_hourly", place.header.incarnation, end_ms=TODAY_MS)
    state = place.ledger.views.state("rides_hourly")
    node = place.office.store.read(paths.runs("rides_hourly"))
    assert node is not None
    runs = codec.decode_runs(node.data, what="runs")
    assert (runs.at(MINUTES.grid.shard_of(MIDDLE_MS)) is not None) == lost, "a shard is a node or in a run"
    assert (MIDDLE_MS in state.entries) == (not lost)
    place.run(tasks_max=TASKS_MAX)
    assert (place.stale(), place.wrong()) == ([], [])


@pytest.mark.scenario("K13")
def test_a_paused_view_is_left_alone_and_a_fixed_one_begins_where_it_was_told() -> None:
    place = Place()
    place.put(row_at("ancient", 0), *TODAY)
    start_ms = TODAY_MS - 100 * DAY_MS
    place.ledger.views.create(MINUTES, coverage_start_ms=start_ms)
    place.run(tasks_max=TASKS_MAX)
    state = place.ledger.views.state("rides_hourly")
    assert place.header.watermark_ms == TODAY_MS + 4 * MINUTE_MS
    assert min(run.window(MINUTES.grid).start_ms for run in state.runs) >= start_ms


@pytest.mark.scenario("K13")
def test_many_islands_are_many_runs_in_one_small_node() -> None:
    """A row a day for ten years: a few bytes for each stretch, far below what a node may hold."""
    place = Place()
    place.put(*(row_at(f"d{n}", n * 2 * DAY_MS) for n in range(2_000)))
    place.create_view()

    while place.ledger.views.settle("rides_hourly", place.header.incarnation, end_ms=4_000 * DAY_MS).empty:
        pass
    state = place.ledger.views.state("rides_hourly")
    assert 1_900 < len(state.runs.runs) <= 2_000
    assert place.bytes() < 32 * 1024
