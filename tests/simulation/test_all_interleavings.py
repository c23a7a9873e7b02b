"""Every interleaving of the ledger's races: none ends wrong, and each guard, taken away, is missed at once.

`pytest -rP` prints how many interleavings each case has. The controls stay: they show that the explorer would notice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest

from floodmark.core import segments, transitions, watermark
from floodmark.core.buckets import Entry
from floodmark.core.errors import Unavailable
from floodmark.core.registry import Command, Draft, Put, Remove
from floodmark.core.segments import Segment
from floodmark.core.transitions import Build, Decision, Mode, Source
from floodmark.ledger import views
from floodmark.ledger.store import LIMITS, Limits
from floodmark.ledger.viewnodes import Look
from tests.simulation.explorer import Actor, Explorer, Nodes, Report
from tests.simulation.ledger_cases import (
    LedgerOracle,
    Wrap,
    event_count,
    marker,
    nodes_of,
    ready_for,
    registrar,
    replacer,
    reverter,
    settler,
    without_checks_of_other_shards,
    without_checks_of_the_table,
    without_fence,
    without_presence_check,
    without_runs_check,
    without_slice_checks,
    without_the_slices_own_node,
    worker,
)
from tests.support.ledger_kit import HOUR_MS, VIEW, Kit, cause, segment
from tests.support.memory_store import MemoryStore

LATE = [Put(segment("late", 0.5, 1))]
WIDE = [Put(segment("wide", 0, 24 * 20))]
LATE_GROWN = [Put(segment("late", 0.5, 24 * 20))]
TAKEN_BACK: list[Command] = [Remove("late")]
SOURCE_REMOVED: list[Command] = [Remove("a")]
MODES = [Mode.APPEND, Mode.OVERWRITE, Mode.DELETE]


def explored(start: Nodes, oracle: LedgerOracle, *actors: Actor, losses_max: int = 0) -> Report:
    report = Explorer(start, actors, oracle, losses_max=losses_max).explore()
    print(report)  # noqa: T201 - pytest shows it on request, and with every failure
    assert report.interleavings > 50, f"only {report.interleavings} interleavings is no race"
    return report


def marks(start: Nodes, count: int, **how: bool) -> list[Actor]:
    """One mark for each event to come."""
    return [marker(f"mark {n}", after_events=event_count(start) + n, **how) for n in range(1, count + 1)]


# -- one bucket: its task against changes of its source ------------------------------------------------------------


@pytest.mark.scenario("L9", "L10")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("mode", MODES)
def test_a_late_segment_is_never_lost_whatever_answers_are(mode: Mode, *, warm: bool) -> None:
    """One change, its event delivered twice, any two answers lost, whoever waits for them (INV-3, INV-4, INV-7)."""
    start, header = ready_for(mode)
    at = event_count(start) + 1
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, mode=mode, warm=warm, answers_get_lost=True),
        registrar("registrar", LATE, answers_get_lost=True),
        marker("mark", after_events=at, warm=warm, answers_get_lost=True),
        marker("mark again", after_events=at, warm=warm),
        losses_max=2,
    )
    assert not report.wrong, report


@pytest.mark.scenario("L9", "L10")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param([LATE], [WIDE], id="two-segments"),
        pytest.param([LATE], [SOURCE_REMOVED], id="one-comes-one-goes"),
        pytest.param([LATE, TAKEN_BACK], [], id="there-and-back"),
        pytest.param([LATE, LATE_GROWN], [], id="from-slice-to-wide"),
    ],
)
def test_two_changes_are_never_lost(
    mode: Mode, one: Sequence[Sequence[Command]], other: Sequence[Sequence[Command]]
) -> None:
    """Two changes in any order, their events and marks, and a lost answer (INV-3, INV-4, INV-7)."""
    if mode is Mode.DELETE and other == [SOURCE_REMOVED]:
        other = [[Put(segment("a", 0, 1))]]  # it is gone already; it comes back instead
    start, header = ready_for(mode)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, mode=mode, answers_get_lost=True),
        *(registrar(f"registrar {n}", *batches) for n, batches in enumerate((one, other)) if batches),
        *marks(start, 2),
        losses_max=1,
    )
    assert not report.wrong, report


@pytest.mark.scenario("L10")
def test_a_change_in_a_slice_that_did_not_exist_is_never_lost() -> None:
    """The absence of a slice is checked too: the bucket is built from nothing while its first segment arrives."""
    kit = Kit(MemoryStore())
    header = kit.set_up()
    kit.put(segment("z", 50, 51))
    start = nodes_of(kit)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0),
        registrar("registrar", LATE),
        registrar("other registrar", WIDE),
        *marks(start, 2),
    )
    assert not report.wrong, report


@pytest.mark.scenario("L10")
@pytest.mark.parametrize("mode", MODES)
def test_two_workers_on_one_task_and_a_late_segment_end_right(mode: Mode) -> None:
    """Active-active: each is told the truth about its own files (INV-2, INV-3, INV-11)."""
    start, header = ready_for(mode)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, mode=mode, answers_get_lost=True),
        worker("rival", header.incarnation, 0, mode=mode),
        registrar("registrar", LATE),
        *marks(start, 1),
        losses_max=1,
    )
    assert not report.wrong, report


# -- slices in parts -----------------------------------------------------------------------------------------------


SECOND_LATE = [Put(segment("second", 0.25, 0.5))]
LATE_AGAIN = [Put(segment("late", 0.5, 1, crc=2))]


@pytest.fixture(params=[200, 100], ids=["split-by-the-change", "split-before"])
def small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of two segments, so that the third one splits the slice, or of one, so that it is split at the start."""
    monkeypatch.setattr(segments, "PART_BYTES_MAX", request.param)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.scenario("I9", "L9", "L10")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([LATE, SECOND_LATE], id="two-new-parts"),
        pytest.param([LATE, LATE_AGAIN], id="replaced-in-its-part"),
        pytest.param([LATE, TAKEN_BACK], id="there-and-back"),
        pytest.param([LATE, LATE_GROWN], id="from-slice-to-wide"),
    ],
)
def test_a_slice_that_is_split_between_check_and_commit_loses_nothing(
    mode: Mode, batches: Sequence[Sequence[Command]]
) -> None:
    """A part that comes into being, changes or empties is seen by whoever checks the slice (INV-3, INV-4, INV-7)."""
    start, header = ready_for(mode)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, mode=mode, answers_get_lost=True),
        registrar("registrar", *batches, answers_get_lost=True),
        *marks(start, 2),
        losses_max=1,
    )
    assert not report.wrong, report


@pytest.mark.scenario("I9", "L10")
def test_two_registrars_that_split_one_slice_list_every_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adds a part; nobody's is written over, and wide splits as well."""
    monkeypatch.setattr(segments, "PART_BYTES_MAX", 100)
    start, header = ready_for(Mode.APPEND)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0),
        registrar("registrar", LATE, WIDE, answers_get_lost=True),
        registrar("other", SECOND_LATE),
        losses_max=1,
    )
    assert report.rules <= {"INV-7: a change is neither marked nor reflected: VALID and different from its source"}, (
        f"without marks the bucket may stay as it was; nothing else may happen: {report}"
    )


def marked_for_nothing() -> tuple[Nodes, str]:
    """Bucket 0 is STALE, and its source is what it was built from."""
    kit = Kit(MemoryStore())
    header = kit.set_up()
    kit.put(segment("a", 0, 1), segment("z", 5, 6))
    kit.append(0, "first")
    kit.mark(0)
    return nodes_of(kit), header.incarnation


@pytest.mark.scenario("L10")
def test_a_revert_never_hides_a_change() -> None:
    """STALE back to VALID against a task of the same bucket, a change, its way back, and the marks (INV-3)."""
    start, incarnation = marked_for_nothing()
    report = explored(
        start,
        LedgerOracle(incarnation),
        reverter(incarnation),
        worker("worker", incarnation, 0, mode=Mode.OVERWRITE),
        registrar("registrar", LATE, TAKEN_BACK),
        *marks(start, 2),
    )
    assert not report.wrong, report


@pytest.mark.scenario("L10", "L15")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_dropped_view_never_gets_a_commit_of_its_old_attempts(*, warm: bool) -> None:
    """DROP and CREATE of the same name at any moment of an append whose answer may be lost (INV-13)."""
    start, header = ready_for(Mode.APPEND)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, warm=warm, answers_get_lost=True),
        replacer(),
        losses_max=1,
    )
    assert not report.wrong, report


def three_names_for_one_file() -> tuple[Nodes, str, list[Actor]]:
    """Three registrars name it, each differently, while its first name goes and comes back."""
    kit = Kit(MemoryStore())
    header = kit.set_up()
    kit.put(segment("a", 0, 1))
    names = [replace(segment(name, 0, 1), path="a.parquet") for name in ("b", "c")]
    actors = [registrar(f"registrar {s.name}", [Put(s)], answers_get_lost=True) for s in names]
    return (
        nodes_of(kit),
        header.incarnation,
        [*actors, registrar("registrar a", SOURCE_REMOVED, [Put(segment("a", 0, 1))])],
    )


def test_a_file_never_gets_two_names() -> None:
    """Whoever comes first has it; whoever comes second is refused, and an answer that is lost changes nothing."""
    start, incarnation, registrars = three_names_for_one_file()
    report = explored(start, LedgerOracle(incarnation), *registrars, losses_max=1)
    assert not report.wrong, report


# -- controls: a guard taken away ----------------------------------------------------------------------------------


def must_find(report: Report, rule: str) -> None:
    assert any(found.startswith(rule) for found in report.rules), f"{rule} should have been broken: {report}"


def test_control_a_name_that_is_not_refused_in_the_write_becomes_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was looked up before."""
    start, incarnation, registrars = three_names_for_one_file()
    monkeypatch.setattr(Draft, "name_at", lambda *_: None)
    must_find(explored(start, LedgerOracle(incarnation), *registrars), "3: one file is registered under two names")


@pytest.mark.scenario("L10")
@pytest.mark.parametrize("mode", MODES)
def test_control_without_slice_checks_a_bucket_becomes_valid_from_an_old_source(mode: Mode) -> None:
    """The commit writes what it decided, whatever happened to the registry in between."""
    start, header = ready_for(mode)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, mode=mode, wrap=without_slice_checks),
        registrar("registrar", LATE),
        *marks(start, 1),
    )
    must_find(report, "INV-3")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.scenario("I9", "L10")
@pytest.mark.parametrize("mode", MODES)
def test_control_without_the_check_of_the_slices_own_node_a_split_hides_a_change(mode: Mode) -> None:
    """The new part lists a segment that the bucket was not built from."""
    start, header = ready_for(mode)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, mode=mode, wrap=without_slice_checks),
        registrar("registrar", LATE, SECOND_LATE),
        *marks(start, 1),
    )
    must_find(report, "INV-3")


@pytest.mark.scenario("I9", "L10")
def test_control_a_part_written_without_its_slice_hides_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that every commit checks has to move with each part."""
    monkeypatch.setattr(segments, "PART_BYTES_MAX", 100)
    start, header = ready_for(Mode.APPEND)
    builder = worker("worker", header.incarnation, 0)

    def built_if_readable(kit: Kit) -> object:
        try:
            return builder.run(kit)
        except Unavailable:  # a part that is not what its slice says is not used
            return {}

    report = explored(
        start,
        LedgerOracle(header.incarnation),
        replace(builder, run=built_if_readable),
        registrar("registrar", [Put(segment("a", 0, 1, crc=2))], wrap=without_the_slices_own_node),
        *marks(start, 1),
    )
    must_find(report, "INV-3")


@pytest.mark.scenario("L10")
@pytest.mark.parametrize("mode", MODES)
def test_control_marks_that_skip_what_is_not_valid_need_the_slice_checks(mode: Mode) -> None:
    """Looking only at the end: the mark found nothing VALID and went; then the old content came and stayed."""
    start, header = ready_for(mode)
    report = explored(
        start,
        LedgerOracle(header.incarnation, judges_writes=False),
        worker("worker", header.incarnation, 0, mode=mode, wrap=without_slice_checks),
        registrar("registrar", LATE),
        *marks(start, 1),
    )
    must_find(report, "INV-7")


@pytest.mark.scenario("L10")
@pytest.mark.parametrize("mode", [Mode.OVERWRITE, Mode.DELETE])
def test_control_a_mark_that_trusts_its_memory_loses_a_change(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """It remembers the bucket as STALE and skips it, although it has become VALID since."""
    monkeypatch.setattr(views, "Look", lambda *place, trusting, seen=None: Look(*place, trusting=True, seen=seen))
    start, header = ready_for(mode)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, mode=mode),
        registrar("registrar", LATE),
        *marks(start, 1, warm=True),
    )
    must_find(report, "INV-7")


@pytest.mark.scenario("L10")
@pytest.mark.parametrize("mode", MODES)
def test_control_an_event_before_its_change_loses_it(mode: Mode) -> None:
    """The mark may come before the registration it is about: it marks nothing, and nobody comes again."""
    start, header = ready_for(mode)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, mode=mode),
        registrar("registrar", LATE),
        marker("early mark", after_events=event_count(start)),
    )
    must_find(report, "INV-7")


@pytest.mark.scenario("L10")
@pytest.mark.parametrize("mode", MODES)
def test_control_the_source_checked_before_the_loop_is_not_enough(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fingerprints compared once, before; then every try writes at the versions it finds."""
    real = transitions.commit

    def not_comparing(entry: Entry | None, build: Build, live: Source) -> Decision:
        return real(entry, build, replace(live, fingerprint=build.fingerprint))

    monkeypatch.setattr(transitions, "commit", not_comparing)
    start, header = ready_for(mode)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, mode=mode, looks_twice=True),
        registrar("registrar", LATE),
        *marks(start, 1),
    )
    must_find(report, "INV-3")


@pytest.mark.scenario("L10", "L15")
def test_control_without_the_fence_an_old_attempt_commits_to_the_new_view() -> None:
    """The new view's nodes begin at the versions that the old one's had."""
    start, header = ready_for(Mode.APPEND)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, wrap=without_fence),
        replacer(),
    )
    must_find(report, "INV-13")


@pytest.mark.scenario("L10")
def test_control_a_revert_without_slice_checks_hides_a_change() -> None:
    """The change comes between the comparison and the write; its mark finds the bucket STALE and goes."""
    start, incarnation = marked_for_nothing()
    report = explored(
        start,
        LedgerOracle(incarnation, judges_writes=False),
        reverter(incarnation, without_slice_checks),
        registrar("registrar", LATE),
        *marks(start, 1),
    )
    must_find(report, "INV-7")


# -- the watermark at the boundary of two shards, 255 | 256 ---------------------------------------------------------


def at_boundary(first_hour: int, *, shard_exists: bool) -> tuple[Nodes, str]:
    """Coverage begins at this hour; the shard after the boundary is absent, or has a bucket further on."""
    kit = Kit(MemoryStore())
    header = kit.set_up(coverage_hour=first_hour)
    kit.put(segment("a", 200, 300))
    if shard_exists:
        kit.append(260, "further-on")
    return nodes_of(kit), header.incarnation


Groups = Sequence[tuple[int, ...]]
RACES: list[Groups] = [
    [(255,), (256,)],
    [(254,), (255,), (256,)],
    [(255,), (256,), (257,)],
    [(254, 255), (256,)],
    [(254,), (255, 256)],
    [(254, 255), (256, 257)],
    [(254, 256), (255,)],
]


def raced(
    groups: Groups, *, shard_exists: bool, warm: bool, wrap: Wrap = lambda store: store, losses_max: int = 0
) -> Report:
    hours = sorted(hour for group in groups for hour in group)
    start, incarnation = at_boundary(hours[0], shard_exists=shard_exists)
    workers = [
        worker(f"worker {n}", incarnation, *group, warm=warm, wrap=wrap, answers_get_lost=n == 0)
        for n, group in enumerate(groups)
    ]
    oracle = LedgerOracle(incarnation, watermark_hour=hours[-1] + 1)
    return explored(start, oracle, *workers, losses_max=losses_max)


@pytest.mark.scenario("L2", "L10")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("shard_exists", [False, True], ids=["new-shard", "old-shard"])
@pytest.mark.parametrize("groups", RACES, ids=str)
def test_the_watermark_passes_every_bucket_whoever_comes_first(
    groups: Groups, *, shard_exists: bool, warm: bool
) -> None:
    """Neighbours on both sides of a shard boundary, alone and in groups: nobody leaves the move to another (INV-5)."""
    report = raced(groups, shard_exists=shard_exists, warm=warm, losses_max=1 if len(groups) == 2 else 0)
    assert not report.wrong, report


@pytest.mark.scenario("L10")
@pytest.mark.parametrize("shard_exists", [False, True], ids=["new-shard", "old-shard"])
def test_control_without_checks_of_other_shards_the_watermark_stays_behind(*, shard_exists: bool) -> None:
    """The one who moves it looked into the next shard, and a bucket came there before the move was written."""
    report = raced([(255,), (256,)], shard_exists=shard_exists, warm=False, wrap=without_checks_of_other_shards)
    must_find(report, "5.4")


@pytest.mark.scenario("L10")
@pytest.mark.parametrize("groups", [[(255,), (256,)], [(254,), (255,), (256,)], [(254, 255), (256,)]], ids=str)
def test_control_without_the_check_of_the_header_the_watermark_stays_behind(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who does not move it believed that it was not next in line, and meanwhile became so."""
    monkeypatch.setattr(watermark, "depends_on_header", lambda *_, **__: False)
    must_find(raced(groups, shard_exists=True, warm=False), "5.4")


@pytest.mark.scenario("L10")
def test_coverage_extended_backwards_during_appends_stalls_nobody() -> None:
    """The live edge moves on over both sides of the boundary, and what becomes covered has entries (INV-5, INV-6)."""
    start, incarnation = at_boundary(255, shard_exists=True)
    extender = Actor(
        "consistency",
        partial(Kit, seed=15),
        lambda kit: kit.ledger.views.extend_coverage(VIEW.name, 253 * HOUR_MS, cause("older")),
    )
    workers = [worker(f"worker {hour}", incarnation, hour) for hour in (255, 256)]
    report = explored(start, LedgerOracle(incarnation, watermark_hour=257), extender, *workers)
    assert not report.wrong, report


@pytest.mark.scenario("L10")
def test_the_watermark_stays_within_data_whose_end_moves_back() -> None:
    """The last segment goes while the gap below its bucket closes: not past the end, and not short of it (INV-5)."""
    kit = Kit(MemoryStore())
    header = kit.set_up()
    kit.put(segment("a", 0, 1), segment("b", 1, 2))
    kit.append(1, "first")
    start = nodes_of(kit)
    report = explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 0, answers_get_lost=True),
        registrar("registrar", [Remove("b")]),
        marker("mark", 1, after_events=event_count(start) + 1),
        losses_max=1,
    )
    assert not report.wrong, report


# -- the end of the data, when a slice that the commit does not check decides where it is -----------------------------


@dataclass(frozen=True, slots=True)
class EndMoves:
    """Bucket 23 is appended. It lies in one slice; the segment that moves the end of the data lies in the next."""

    source: Sequence[Segment]
    change: Sequence[Command]
    next_is_built: bool
    """Whether bucket 24 is there already, so that the watermark passes both."""


LAST_HOUR, NEXT_DAY = segment("a", 23, 24), segment("b", 24, 25)
END_MOVES = {
    "back": EndMoves([LAST_HOUR, NEXT_DAY], [Remove("b")], next_is_built=True),
    "on": EndMoves([LAST_HOUR], [Put(NEXT_DAY)], next_is_built=True),
    "back-before-an-empty-bucket": EndMoves([segment("old", 0, 1), NEXT_DAY], [Remove("b")], next_is_built=False),
}


def end_moved(case: EndMoves, *, warm: bool, wrap: Wrap = lambda store: store) -> Report:
    kit = Kit(MemoryStore())
    header = kit.set_up(coverage_hour=23)
    kit.put(*case.source)
    if case.next_is_built:
        if NEXT_DAY not in case.source:
            kit.put(NEXT_DAY)
        kit.append(24, "first")
        if NEXT_DAY not in case.source:
            kit.remove("b")
            kit.mark(24)
    start = nodes_of(kit)
    return explored(
        start,
        LedgerOracle(header.incarnation),
        worker("worker", header.incarnation, 23, warm=warm, wrap=wrap, answers_get_lost=True),
        registrar("registrar", case.change),
        marker("mark", 24, after_events=event_count(start) + 1),
        losses_max=1,
    )


@pytest.mark.scenario("L10")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("case", END_MOVES.values(), ids=END_MOVES)
def test_the_watermark_stays_within_data_whose_end_another_slice_moves(case: EndMoves, *, warm: bool) -> None:
    """Nothing in the slices that the commit checks has moved: only the table's header shows it (INV-5)."""
    report = end_moved(case, warm=warm)
    assert not report.wrong, report


@pytest.mark.scenario("L10")
@pytest.mark.parametrize(
    ("case", "rule"),
    [
        pytest.param(case, "5.4" if name == "on" else "INV-5: the watermark moved past", id=name)
        for name, case in END_MOVES.items()
    ],
)
def test_control_without_the_check_of_the_table_the_watermark_and_the_data_part(case: EndMoves, rule: str) -> None:
    """The end was read, and was another by the time of the write."""
    must_find(end_moved(case, warm=False, wrap=without_checks_of_the_table), rule)


# -- a long stretch without a source -------------------------------------------------------------------------------

IN_STRETCH = 300
"""An hour in the middle of it: in shard 1, and the stretch is shards 1 and 2."""
PIECE_BY_PIECE = Limits(write_bytes=1_900)
"""The whole settlement takes 1,970 bytes: the run is one write, each of the shards beside it another."""


def over_a_stretch(*, settled: bool, built: bool = True) -> tuple[Nodes, str]:
    """Data in shards 0 and 3, and nothing between."""
    kit = Kit(MemoryStore())
    incarnation = kit.set_up().incarnation
    kit.put(segment("a", 0, 1), segment("z", 3 * 256 + 5, 3 * 256 + 6))
    if built:
        kit.append(0, "first")
    if settled:
        kit.ledger.views.settle(VIEW.name, incarnation, end_ms=4 * 256 * HOUR_MS)
    return nodes_of(kit), incarnation


def settled_against_late(wrap: Wrap = lambda store: store, *, losses_max: int = 0, limits: Limits = LIMITS) -> Report:
    start, incarnation = over_a_stretch(settled=False)
    return explored(
        start,
        LedgerOracle(incarnation),
        settler(incarnation, wrap=wrap, answers_get_lost=losses_max > 0, limits=limits),
        registrar("registrar", [Put(segment("late", IN_STRETCH, IN_STRETCH + 1))]),
        marker("mark", IN_STRETCH, after_events=event_count(start) + 1),
        losses_max=losses_max,
    )


def settled_against_append(wrap: Wrap = lambda store: store, *, limits: Limits = LIMITS) -> Report:
    start, incarnation = over_a_stretch(settled=False)
    return explored(
        start,
        LedgerOracle(incarnation),
        settler(incarnation, wrap=wrap, limits=limits),
        worker("worker", incarnation, IN_STRETCH, warm=True, wrap=wrap),
    )


@pytest.mark.scenario("K13")
def test_a_segment_that_comes_while_a_stretch_is_settled_is_not_missed() -> None:
    """INV-4: never VALID-empty over a source, and its mark finds the bucket in the run, in a node or VACANT."""
    report = settled_against_late(losses_max=1)
    assert not report.wrong, report


@pytest.mark.scenario("K13")
def test_control_without_the_check_of_the_table_a_stretch_is_empty_over_a_source() -> None:
    must_find(settled_against_late(without_checks_of_the_table), "INV-3")


@pytest.mark.scenario("K13")
def test_a_bucket_appended_while_its_stretch_is_settled_is_in_one_place() -> None:
    report = settled_against_append()
    assert not report.wrong, report


@pytest.mark.scenario("K13")
@pytest.mark.parametrize("wrap", [without_presence_check, without_runs_check], ids=["presence", "runs"])
def test_control_without_either_check_a_shard_is_a_node_and_in_a_run(wrap: Wrap) -> None:
    must_find(settled_against_append(wrap), "3: a shard")


@pytest.mark.scenario("K12", "K13")
def test_a_settlement_too_large_for_one_write_is_as_safe_in_several() -> None:
    """INV-4: each of its writes checks what the whole checks."""
    start, incarnation = over_a_stretch(settled=False)
    kit = Kit(MemoryStore(), limits=PIECE_BY_PIECE)
    kit.store.nodes = dict(start)
    settled = kit.ledger.views.settle(VIEW.name, incarnation, end_ms=4 * 256 * HOUR_MS)
    assert (len(kit.outcomes), settled.given_up) == (3, ())
    for report in (settled_against_late(limits=PIECE_BY_PIECE), settled_against_append(limits=PIECE_BY_PIECE)):
        assert not report.wrong, report


@pytest.mark.scenario("K13")
@pytest.mark.parametrize("limits", [LIMITS, PIECE_BY_PIECE], ids=["at once", "piece by piece"])
@pytest.mark.parametrize("hour", [0, 3 * 256 + 5])
def test_the_watermark_passes_a_stretch_whoever_comes_last(hour: int, limits: Limits) -> None:
    """The bucket before it, or the one behind it, and the stretch (INV-5)."""
    start, incarnation = over_a_stretch(settled=False, built=hour != 0)
    ends_hour = 3 * 256 + 5 + (hour != 0)
    report = explored(
        start,
        LedgerOracle(incarnation, watermark_hour=ends_hour),
        settler(incarnation, limits=limits),
        worker("worker", incarnation, hour),
    )
    assert not report.wrong, report


@pytest.mark.scenario("K13")
def test_two_marks_of_one_run_lose_no_change() -> None:
    """Each of them takes its bucket's shard out of the run."""
    start, incarnation = over_a_stretch(settled=True)
    late, later = segment("late", IN_STRETCH, IN_STRETCH + 1), segment("later", IN_STRETCH + 9, IN_STRETCH + 10)
    report = explored(
        start,
        LedgerOracle(incarnation),
        registrar("registrar", [Put(late), Put(later)]),
        marker("mark", IN_STRETCH, after_events=event_count(start) + 1),
        marker("mark later", IN_STRETCH + 9, after_events=event_count(start) + 1),
    )
    assert not report.wrong, report
