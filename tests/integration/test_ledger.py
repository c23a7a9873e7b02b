"""The ledger's promises, row by row, on the store in memory and on a real ZooKeeper."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from floodmark.core.buckets import Shard, State, synthesized
from floodmark.core.errors import BudgetExhausted, InvalidInput
from floodmark.core.fingerprint import EMPTY
from floodmark.core.intervals import Interval
from floodmark.core.registry import Put
from floodmark.core.transitions import AlreadyTrue, Changed, Mode, Reason, Rejected
from floodmark.ledger import codec, paths
from floodmark.ledger.engine import CRITICAL, REVERT, Budget, Budgets
from floodmark.ledger.store import Committed, Conflicted, Op, Set, Store
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, cause, segment
from tests.support.memory_store import Faulty, Watched


def rejected(decision: object) -> Reason | None:
    return decision.reason if isinstance(decision, Rejected) else None


@pytest.mark.scenario("L1")
def test_an_append_at_the_frontier_moves_the_watermark_in_the_same_write(store: Store) -> None:
    """Entry, files and watermark change in one multi (INV-2)."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(segment("a", 0, 1))
    build = kit.build(0)
    before = len(watched.commits)
    assert isinstance(kit.commit_one(build), Changed)
    (ops,) = watched.commits[before:]
    assert {op.path.rsplit("/", 2)[-2] for op in ops if isinstance(op, Set)} >= {"views"}
    assert kit.state(0) is State.VALID
    assert kit.watermark_hour == 1


@pytest.mark.scenario("L2")
def test_an_append_ahead_of_the_frontier_waits_for_the_gap_to_close(kit: Kit) -> None:
    """W1 before W0: the watermark stays at W0, then jumps over both."""
    kit.put(segment("a", 0, 2))
    kit.append(1)
    assert kit.watermark_hour == 0
    kit.append(0)
    assert kit.watermark_hour == 2


@pytest.mark.scenario("L3")
def test_an_append_where_another_attempt_built_is_rejected_without_a_write(store: Store) -> None:
    """A typed rejection, one try, nothing written."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(segment("a", 0, 1))
    kit.append(0, "a1")
    before = kit.entry(0)
    build = kit.build(0, Mode.APPEND, "a2")
    commits = len(watched.commits)
    assert rejected(kit.commit_one(build)) is Reason.NOT_VACANT
    assert kit.outcomes[-1][1].tries == 1
    assert len(watched.commits) == commits
    assert kit.entry(0) == before


@pytest.mark.scenario("L4")
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE, Mode.DELETE])
def test_a_landed_write_whose_answer_was_lost_is_a_success(store: Store, mode: Mode) -> None:
    """Our own write is recognised by its attempt id: one transition, files kept."""
    faulty, kit, build = _ready_for(store, mode)
    faulty.script = iter(["lost"])
    assert isinstance(kit.commit_one(build), AlreadyTrue)
    entry = kit.entry(0)
    assert entry is not None
    assert (entry.state, entry.attempt_id, entry.files) == (State.VALID, "mine", build.files)
    assert kit.outcomes[-1][1].unknowns == 1


@pytest.mark.scenario("L5")
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE, Mode.DELETE])
def test_a_write_that_did_not_land_is_made_again(store: Store, mode: Mode) -> None:
    """No answer and no effect: retried, success, one transition."""
    faulty, kit, build = _ready_for(store, mode)
    faulty.script = iter(["gone", "gone"])
    assert isinstance(kit.commit_one(build), Changed)
    assert kit.state(0) is State.VALID
    assert kit.outcomes[-1][1].tries == 3


@pytest.mark.scenario("L6")
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE, Mode.DELETE])
def test_a_landed_write_is_recognised_although_a_peer_marked_it_before_the_look(store: Store, mode: Mode) -> None:
    """The mark keeps the attempt id, so the lost answer is still resolved as ours."""
    faulty, kit, build = _ready_for(store, mode)
    peer = Kit(store, seed=2)
    faulty.script = iter(["lost"])
    faulty.after_loss = lambda: peer.mark(0, event_id="later")
    assert isinstance(kit.commit_one(build), AlreadyTrue)
    assert kit.state(0) is State.STALE


def _ready_for(store: Store, mode: Mode) -> tuple[Faulty, Kit, "object"]:
    """Bucket 0 in the state this mode needs, and a build of it."""
    faulty = Faulty(store)
    kit = Kit(faulty)
    kit.set_up()
    kit.put(segment("a", 0, 1), segment("z", 5, 6))
    if mode is not Mode.APPEND:
        kit.append(0, "first")
        kit.put(segment("a", 0, 1, crc=2))
        kit.mark(0)
    if mode is Mode.DELETE:
        kit.remove("a")
    return faulty, kit, kit.build(0, mode, "mine")


@pytest.mark.scenario("L7")
def test_a_refresh_needs_a_stale_bucket(kit: Kit) -> None:
    """STALE -> VALID; VALID by another attempt and VACANT are rejected."""
    kit.put(segment("a", 0, 2))
    assert rejected(kit.refresh(1, "r0")) is Reason.VACANT
    kit.append(0, "a1")
    assert rejected(kit.refresh(0, "r1")) is Reason.NOT_STALE
    kit.mark(0)
    assert isinstance(kit.refresh(0, "r2"), Changed)
    assert kit.state(0) is State.VALID


@pytest.mark.scenario("L8")
def test_a_clear_whose_source_fills_up_between_two_tries_leaves_the_bucket_stale(store: Store) -> None:
    """The source is read in every try: empty on the first (which loses a race), filled on the second (INV-4)."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(segment("a", 0, 1), segment("z", 5, 6))
    kit.append(0)
    kit.remove("a")
    kit.mark(0)
    build = kit.build(0, Mode.DELETE, "clear")
    peer = Kit(store, seed=2)

    def fill(_: int) -> None:
        watched.before_commit = lambda _: None
        peer.put(segment("b", 0, 1))

    watched.before_commit = fill
    before = kit.entry(0)
    assert rejected(kit.commit_one(build)) is Reason.SOURCE_NOT_EMPTY
    assert kit.entry(0) == before
    assert kit.state(0) is State.STALE


@pytest.mark.scenario("L9")
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE, Mode.DELETE])
@pytest.mark.parametrize("marked", ["before", "between", "after"])
def test_a_segment_registered_between_check_and_commit_always_supersedes(store: Store, mode: Mode, marked: str) -> None:
    """Whenever its event is consumed, the commit never makes old content VALID (INV-3)."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(segment("a", 0, 1), segment("z", 5, 6))
    if mode is not Mode.APPEND:
        kit.append(0, "first")
        kit.mark(0)
    if mode is Mode.DELETE:
        kit.remove("a")
    build = kit.build(0, mode, "mine")
    peer = Kit(store, seed=2)
    if marked == "before":
        peer.mark(0, event_id="late")

    def late(_: int) -> None:
        watched.before_commit = lambda _: None
        peer.put(segment("late", 0.5, 1))
        if marked == "between":
            peer.mark(0, event_id="late")

    watched.before_commit = late
    assert rejected(kit.commit_one(build)) in (Reason.SUPERSEDED, Reason.SOURCE_NOT_EMPTY)
    if marked == "after":
        peer.mark(0, event_id="late")
    assert kit.source_differs() == []
    assert kit.state(0) is (None if mode is Mode.APPEND else State.STALE)


def test_a_moved_slice_with_the_same_fingerprint_for_this_bucket_is_no_reason_to_lose_the_work(store: Store) -> None:
    """A neighbour in the same slice changed: read again, same fingerprint, try again, success at the new version."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(segment("a", 0, 1))
    build = kit.build(0)
    Kit(store, seed=2).put(segment("neighbour", 5, 6))
    assert isinstance(kit.commit_one(build), Changed)
    entry = kit.entry(0)
    assert entry is not None
    assert entry.slice_versions == kit.build(0).slice_versions != build.slice_versions


@pytest.mark.scenario("L11")
def test_a_revert_needs_the_live_fingerprint_to_be_the_one_it_was_built_from(kit: Kit) -> None:
    """Equal: VALID with its old fields. Different, VALID, VACANT, no view: nothing happens."""
    views, incarnation = kit.ledger.views, kit.header.incarnation
    kit.put(segment("a", 0, 1))
    kit.append(0)
    before = kit.entry(0)
    assert before is not None
    kit.mark(0)
    assert views.revert_valid(VIEW.name, incarnation, 0).result is True
    after = kit.entry(0)
    assert after is not None
    assert (after.state, after.files, after.attempt_id, after.fingerprint, after.refreshed_at_ms) == (
        State.VALID, before.files, before.attempt_id, before.fingerprint, before.refreshed_at_ms,
    )  # fmt: skip
    kit.mark(0)
    kit.put(segment("a", 0, 1, crc=2))
    assert views.revert_valid(VIEW.name, incarnation, 0).result is False
    assert kit.state(0) is State.STALE
    kit.refresh(0)
    assert views.revert_valid(VIEW.name, incarnation, 0).result is False  # VALID
    assert views.revert_valid(VIEW.name, incarnation, HOUR_MS).result is False  # VACANT
    assert views.revert_valid("no_such_view", incarnation, 0).result is False


def test_a_revert_checks_the_source_in_its_own_write(store: Store) -> None:
    """The source changes between the look and the write: the bucket stays STALE (INV-3)."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(segment("a", 0, 1))
    kit.append(0)
    kit.mark(0)

    def change(_: int) -> None:
        watched.before_commit = lambda _: None
        Kit(store, seed=2).put(segment("b", 0, 1))

    watched.before_commit = change
    assert kit.ledger.views.revert_valid(VIEW.name, kit.header.incarnation, 0).result is False
    assert kit.state(0) is State.STALE
    assert kit.source_differs() == []


def test_a_revert_moves_the_watermark_as_every_way_to_valid_does(kit: Kit) -> None:
    """The end of the data moved back and forth: the bucket it uncovers is VALID again, and the watermark passes it."""
    kit.put(segment("a", 0, 1), segment("b", 1, 2))
    kit.append(1)
    kit.remove("b")
    kit.mark(1)
    kit.append(0)
    assert kit.watermark_hour == 1
    kit.put(segment("b", 1, 2))
    kit.mark(1)
    assert kit.ledger.views.revert_valid(VIEW.name, kit.header.incarnation, HOUR_MS).result is True
    assert kit.watermark_hour == 2


def test_nothing_is_appended_before_coverage_begins(store: Store) -> None:
    """There is no watermark to move yet: whoever begins coverage could not know of the bucket."""
    kit = Kit(store)
    kit.set_up(coverage_hour=None)
    kit.put(segment("a", 0, 1))
    assert rejected(kit.append(0)) is Reason.NOT_COVERED
    kit.ledger.views.extend_coverage(VIEW.name, 0, cause())
    assert isinstance(kit.append(0), Changed)
    assert kit.watermark_hour == 1


@pytest.mark.scenario("L12")
def test_a_mark_touches_each_shard_once_and_only_what_it_must(store: Store) -> None:
    """VALID and in-coverage VACANT become STALE with the cause; STALE and beyond-frontier VACANT stay."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up(coverage_hour=10)
    kit.put(segment("a", 0, 14))
    for hour in (10, 11, 12):
        kit.append(hour)
    kit.mark(11, event_id="first")
    kit.ledger.views.extend_coverage(VIEW.name, 8 * HOUR_MS, cause("coverage"))
    assert kit.states() == {8: "STALE", 9: "STALE", 10: "VALID", 11: "STALE", 12: "VALID"}
    commits = len(watched.commits)
    kit.ledger.views.mark_stale(VIEW.name, [Interval(0, 20 * HOUR_MS)], cause("second"))
    assert len(watched.commits) == commits + 1, "one write for the one shard"
    assert kit.states() == {8: "STALE", 9: "STALE", 10: "STALE", 11: "STALE", 12: "STALE"}
    causes = {h: e.cause.event_id for h in (8, 10, 11, 12) if (e := kit.entry(h)) and e.cause}
    assert causes == {8: "coverage", 10: "second", 11: "first", 12: "second"}
    assert kit.watermark_hour == 13


def test_a_vacant_bucket_inside_coverage_gets_an_entry_when_it_is_marked(store: Store) -> None:
    """A hole below the watermark, however it came about, does not survive a change event (INV-6)."""
    kit = Kit(store)
    kit.set_up()
    kit.put(segment("a", 0, 3))
    for hour in range(3):
        kit.append(hour)
    _punch_hole(kit, hour=1)
    assert kit.states() == {0: "VALID", 2: "VALID"}
    kit.mark(1)
    entry = kit.entry(1)
    assert entry is not None
    assert (entry.state, entry.ever_valid) == (State.STALE, False)


def _punch_hole(kit: Kit, hour: int) -> None:
    """Damage the ledger: an entry vanishes. No operation can do this."""
    path = paths.shard(VIEW.name, 0)
    node = kit.store.read(path)
    assert node is not None
    shard = codec.decode_shard(node.data, VIEW.grid, what=path)
    left = Shard({s: e for s, e in shard.entries.items() if s != hour * HOUR_MS})
    kit.store.commit([Set(path, codec.encode_shard(left, VIEW.grid), node.version)])


@pytest.mark.scenario("L13")
def test_every_budget_ends_in_an_error_that_names_view_and_tries(store: Store) -> None:
    """128 conflicts in a row for a commit, 8 for a revert."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(segment("a", 0, 2))
    kit.append(0)
    kit.mark(0)
    build = kit.build(1)
    peer = Kit(store, seed=2)
    turns = iter(range(10_000))

    def interfere(_: int) -> None:
        # A write to the shard of both buckets, between every decision and its write.
        n = next(turns)
        peer.put(segment("far", 5, 6, crc=n))
        hole = peer.store.read("/floodmark/views/rides_hourly/shards/0")
        assert hole is not None
        peer.store.commit([Set("/floodmark/views/rides_hourly/shards/0", hole.data, hole.version)])

    watched.before_commit = interfere
    with pytest.raises(BudgetExhausted, match=r"rides_hourly.*128 tries"):
        kit.commit_one(build)
    with pytest.raises(BudgetExhausted, match=r"rides_hourly.* 8 tries"):
        kit.ledger.views.revert_valid(VIEW.name, kit.header.incarnation, 0)


def test_the_budgets_are_the_documented_ones() -> None:
    """Critical: 128 tries, 50 ms plus up to 150. Revert: 8 tries, 5 ms plus up to 20."""
    assert Budget("critical", 128, 50, 150) == CRITICAL
    assert Budget("revert", 8, 5, 20) == REVERT
    assert Budgets() == Budgets(CRITICAL, REVERT)


@pytest.mark.scenario("L15")
@pytest.mark.parametrize("recreated", [False, True])
def test_an_attempt_of_a_dropped_view_can_never_commit(store: Store, *, recreated: bool) -> None:
    """DROP, then CREATE of the same name, while an old attempt runs: its commit is refused (INV-13)."""
    kit = Kit(store)
    old = kit.set_up()
    kit.put(segment("a", 0, 2))
    build = kit.build(0, attempt="old")
    worker = Kit(store, seed=3)
    worker.append(1, "warm")  # the worker remembers header and shard
    assert kit.ledger.views.drop(VIEW.name) is True
    if recreated:
        kit.ledger.views.create(VIEW, coverage_start_ms=0)
    for ledger in (kit, worker):
        outcome = ledger.ledger.views.commit(VIEW.name, old.incarnation, [build])
        assert rejected(outcome.result[0]) is Reason.DROPPED
    if recreated:
        assert kit.states() == {}


def test_an_attempt_that_decided_before_a_drop_is_stopped_by_the_fence(store: Store) -> None:
    """The drop and a new view of the same name come between decision and write, with equal node versions."""
    watched = Watched(store)
    kit = Kit(watched)
    old = kit.set_up()
    kit.put(segment("a", 0, 2))
    build = kit.build(0, attempt="old")

    def replace_view(_: int) -> None:
        watched.before_commit = lambda _: None
        peer = Kit(store, seed=2)
        peer.ledger.views.drop(VIEW.name)
        peer.ledger.views.create(VIEW, coverage_start_ms=0)

    watched.before_commit = replace_view
    outcome = kit.ledger.views.commit(VIEW.name, old.incarnation, [build])
    assert rejected(outcome.result[0]) is Reason.DROPPED
    assert kit.states() == {}


@pytest.mark.scenario("L17")
def test_refreshing_the_bucket_that_blocks_the_watermark_moves_it_over_the_later_ones(kit: Kit) -> None:
    """A never-valid STALE bucket at the frontier blocks; its refresh advances the watermark in that write."""
    kit.put(segment("a", 0, 4))
    for hour in (1, 2):
        kit.append(hour)
    _block(kit, hour=0)
    assert kit.watermark_hour == 0
    assert isinstance(kit.refresh(0), Changed)
    assert kit.watermark_hour == 3


def _block(kit: Kit, hour: int) -> None:
    """A STALE entry that was never built, at the frontier, as an imported state may have it."""
    path = paths.shard(VIEW.name, 0)
    node = kit.store.read(path)
    assert node is not None
    shard = codec.decode_shard(node.data, VIEW.grid, what=path).put({hour * HOUR_MS: synthesized(cause())})
    kit.store.commit([Set(path, codec.encode_shard(shard, VIEW.grid), node.version)])


def test_one_rejection_does_not_take_the_group_down(kit: Kit) -> None:
    """Four builds in one commit: one superseded, one already built by a peer, two committed in one write."""
    kit.put(*(segment(f"s{h}", h, h + 1) for h in range(4)))
    builds = [kit.build(h, attempt=f"g{h}") for h in range(4)]
    kit.put(segment("late", 2.5, 3))
    Kit(kit.store, seed=2).append(1, "peer")
    decisions = kit.commit(*builds)
    assert {h: rejected(d) for h, d in decisions.items()} == {
        0: None, 1: Reason.NOT_VACANT, 2: Reason.SUPERSEDED, 3: None,
    }  # fmt: skip
    assert kit.states() == {0: "VALID", 1: "VALID", 3: "VALID"}
    assert kit.watermark_hour == 2


def test_an_append_past_the_end_of_the_data_is_refused(kit: Kit) -> None:
    """The watermark never passes the source's last end (INV-5); a bucket that ends exactly there is fine."""
    kit.put(segment("a", 0, 1.5))
    assert rejected(kit.append(1)) is Reason.BEYOND_SOURCE
    kit.put(segment("b", 1.5, 2))
    assert isinstance(kit.append(1), Changed)


def test_an_empty_bucket_inside_the_data_is_valid_empty(kit: Kit) -> None:
    """Processed, and the source had nothing: VALID with the EMPTY fingerprint, distinct from VACANT."""
    kit.put(segment("z", 5, 6))
    assert isinstance(kit.append(0), Changed)
    entry = kit.entry(0)
    assert entry is not None
    assert (entry.fingerprint, entry.files) == (EMPTY, ())


@pytest.mark.parametrize("first", ["left", "right"])
def test_appends_on_both_sides_of_a_shard_boundary_move_the_watermark_over_both(store: Store, first: str) -> None:
    """Neither writer may leave the move to the other: the last bucket of one shard and the first of the next."""
    kit = Kit(store)
    kit.set_up(coverage_hour=255)
    kit.put(segment("a", 200, 300))
    left = kit.build(255, attempt="left")
    right = kit.build(256, attempt="right")
    one, other = (left, right) if first == "left" else (right, left)
    watched = Watched(store)
    racing = Kit(watched, seed=5)

    def rival(_: int) -> None:
        watched.before_commit = lambda _: None
        Kit(store, seed=6).commit(other)

    watched.before_commit = rival
    racing.commit(one)
    assert kit.watermark_hour == 257


def test_coverage_extended_backwards_leaves_no_hole(kit: Kit) -> None:
    """Older data: what becomes covered has an entry before the header says so (INV-5, INV-6)."""
    kit.ledger.views.drop(VIEW.name)
    kit.ledger.views.create(VIEW, coverage_start_ms=600 * HOUR_MS)
    kit.put(segment("a", 0, 700))
    kit.append(600)
    kit.ledger.views.extend_coverage(VIEW.name, 10 * HOUR_MS + 5, cause("older"))
    header = kit.header
    assert (header.coverage_start_ms, header.watermark_ms) == (10 * HOUR_MS, 601 * HOUR_MS)
    assert set(kit.states()) == set(range(10, 601))
    assert kit.watermark_hour == 601
    kit.append(601)
    assert kit.watermark_hour == 602, "the frontier moves on although older buckets are still to be built"


def test_a_batch_of_changes_is_one_registry_version_and_one_event(kit: Kit) -> None:
    """Slices, header and outbox change together."""
    version = kit.ledger.registry.header("rides").version
    kit.put(segment("a", 0, 1), segment("b", 30, 31), segment("w", 0, 24 * 400))
    header = kit.ledger.registry.header("rides")
    assert (header.version, header.segment_count) == (version + 1, 3)
    assert (header.min_start_ms, header.max_last_ms) == (0, 24 * 400 * HOUR_MS - 1)
    (event,) = kit.ledger.registry.outbox("rides")
    assert [c.name for c in event.changes] == ["a", "b", "w"]
    kit.ledger.registry.acknowledge("rides", event)
    kit.ledger.registry.acknowledge("rides", event)
    assert kit.ledger.registry.outbox("rides") == []


def test_a_moved_segment_reports_both_ranges_and_leaves_its_old_slice(kit: Kit) -> None:
    """Day 1 to day 2: both days are affected, and only the new one has it."""
    kit.put(segment("m", 1, 2))
    kit.put(segment("m", 25, 26))
    event = kit.ledger.registry.outbox("rides")[-1]
    assert event.changes[0].ranges == (Interval(HOUR_MS, 2 * HOUR_MS), Interval(25 * HOUR_MS, 26 * HOUR_MS))
    assert not kit.ledger.registry.read_window("rides", Interval(0, 24 * HOUR_MS)).segments
    assert set(kit.ledger.registry.read_window("rides", Interval(24 * HOUR_MS, 48 * HOUR_MS)).segments) == {"m"}


def test_a_segment_without_times_affects_the_whole_table_and_every_window(kit: Kit) -> None:
    """It may hold rows of any time."""
    kit.put(segment("t", 0, 1, start_ms=None, last_ms=None))
    assert kit.ledger.registry.outbox("rides")[-1].changes[0].ranges is None
    assert set(kit.ledger.registry.read_window("rides", Interval(-HOUR_MS, 0)).segments) == {"t"}


def test_repeating_a_batch_changes_nothing(kit: Kit) -> None:
    """Ten times the same announcement: one registration, no version change after the first."""
    kit.put(segment("a", 0, 1))
    version = kit.ledger.registry.header("rides").version
    for _ in range(10):
        Kit(kit.store, seed=9).put(segment("a", 0, 1))
    assert kit.ledger.registry.header("rides").version == version


def test_deleting_the_newest_segment_brings_the_last_end_back(kit: Kit) -> None:
    """The extremes are those of what is registered, so an append cutoff tells the truth."""
    kit.put(segment("a", 1, 2), segment("b", 30, 31))
    kit.remove("b")
    header = kit.ledger.registry.header("rides")
    assert (header.min_start_ms, header.max_last_ms, header.segment_count) == (HOUR_MS, 2 * HOUR_MS - 1, 1)
    kit.remove("a")
    header = kit.ledger.registry.header("rides")
    assert (header.min_start_ms, header.max_last_ms, header.segment_count) == (None, None, 0)


def test_a_cached_registry_is_current_after_one_header_read(store: Store) -> None:
    """Nothing moved: one read. Something moved: the header and the slices it names."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(*(segment(f"d{d}", d * 24, d * 24 + 1) for d in range(20)))
    kit.ledger.registry.snapshot("rides")
    reads = watched.reads
    assert len(kit.ledger.registry.snapshot("rides").by_name) == 20
    assert watched.reads == reads + 1
    Kit(store, seed=2).put(segment("d3", 72, 73, crc=7))
    reads = watched.reads
    assert kit.ledger.registry.snapshot("rides").by_name["d3"].crc == 7
    assert watched.reads == reads + 2


@pytest.mark.parametrize("behind", [1, 63, 64, 65, 200])
def test_a_cache_any_number_of_changes_behind_catches_up(store: Store, behind: int) -> None:
    """Beyond what the header remembers, everything is read again."""
    kit, peer = Kit(store), Kit(store, seed=2)
    kit.set_up()
    kit.ledger.registry.snapshot("rides")
    for n in range(behind):
        peer.put(segment(f"s{n}", n, n + 1))
    assert set(kit.ledger.registry.snapshot("rides").by_name) == {f"s{n}" for n in range(behind)}


def test_a_bulk_of_segments_is_written_without_reading_back_what_was_written(store: Store) -> None:
    """One read of the header for all of it; and what was kept is what anyone else reads."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.ledger.registry.snapshot("rides")
    reads, commits = watched.reads, len(watched.commits)
    kit.put(*(segment(f"s{n}", n, n + 30) for n in range(1_300)))
    assert (watched.reads - reads, len(watched.commits) - commits) == (1, 3)
    kept, read = kit.ledger.registry.snapshot("rides"), Kit(store, seed=2).ledger.registry.snapshot("rides")
    assert watched.reads - reads == 2, "the header did not move since"
    assert (kept.header, kept.header_node_version) == (read.header, read.header_node_version)
    assert dict(kept.slices) == dict(read.slices)
    assert dict(kept.slice_node_versions) == dict(read.slice_node_versions)
    assert dict(kept.by_name) == dict(read.by_name)
    assert dict(kept.contents.name_at) == dict(read.contents.name_at)


@pytest.mark.parametrize("at_commit", [1, 2, 3])
def test_a_peer_that_registers_in_the_middle_of_a_bulk_loses_nothing(store: Store, at_commit: int) -> None:
    """It wrote the same slices after this process had decided on them."""
    watched = Watched(store)
    kit, peer = Kit(watched), Kit(store, seed=2)
    kit.set_up()
    at = len(watched.commits) + at_commit
    watched.before_commit = lambda n: peer.put(*(segment(f"p{k}", k, k + 1) for k in range(1_300))) if n == at else None
    kit.put(*(segment(f"s{n}", n, n + 1) for n in range(1_300)))
    snapshot = Kit(store, seed=3).ledger.registry.snapshot("rides")
    assert set(snapshot.by_name) == {f"{who}{n}" for who in "ps" for n in range(1_300)}
    assert snapshot.header.segment_count == 2_600


def test_a_slice_that_a_reader_created_meanwhile_is_found_at_once(store: Store) -> None:
    """A reader creates an absent slice, empty, so that a commit can check it; the header does not tell of it."""
    watched = Watched(store)
    kit, peer = Kit(watched), Kit(store, seed=2)
    kit.set_up()
    at = len(watched.commits) + 1
    window = Interval(240 * HOUR_MS, 241 * HOUR_MS)
    watched.before_commit = lambda n: peer.ledger.registry.read_window("rides", window) if n == at else None
    kit.put(segment("a", 240, 241))
    assert set(peer.ledger.registry.read_window("rides", window).segments) == {"a"}
    _, outcome = kit.outcomes[-1]
    assert (outcome.tries, outcome.conflicts) == (2, 1)


def test_of_two_names_for_one_file_the_second_is_refused_however_the_writes_interleave(store: Store) -> None:
    """The peer takes the path after this process has decided, and before it writes: decided again, it is refused."""
    watched = Watched(store)
    kit, peer = Kit(watched), Kit(store, seed=2)
    kit.set_up()
    at = len(watched.commits) + 1
    mine, other = segment("mine", 0, 1), replace(segment("other", 0, 1), path="mine.parquet")
    watched.before_commit = lambda n: peer.put(other) if n == at else None
    with pytest.raises(InvalidInput) as refusal:
        kit.put(mine, segment("b", 30, 31))
    assert str(refusal.value) == "path-taken: mine.parquet is registered as 'other', it cannot be 'mine' as well"
    assert set(Kit(store, seed=3).ledger.registry.snapshot("rides").by_name) == {"other"}


def test_a_path_is_not_refused_because_of_a_name_it_had_a_moment_ago(store: Store) -> None:
    """The peer lets go of it between two writes of a bulk, the second of which goes by what the first one left."""
    peer = Kit(store, seed=2)

    class Followed(Watched):
        def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
            answer = super().commit(ops)
            if any(op.path == paths.outbox_event("rides", 2) for op in ops):
                peer.remove("old")
            return answer

    kit = Kit(Followed(store))
    kit.set_up()
    kit.put(segment("old", 0, 1))
    kit.put(*(segment(f"s{n}", n, n + 1) for n in range(500)), replace(segment("new", 0, 1), path="old.parquet"))
    by_name = kit.ledger.registry.snapshot("rides").by_name
    assert (len(by_name), by_name["new"].path) == (501, "old.parquet")


def test_bad_input_is_refused_by_name_and_nothing_is_written(store: Store) -> None:
    """Each a typed error that names the thing and the rule."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(segment("a", 0, 1))
    commits = len(watched.commits)
    for act, rule, what in (
        (lambda: Interval(10, 10), "interval", "[10, 10)"),
        (lambda: segment("backwards", 2, 1), "segment-times", "backwards"),
        (lambda: kit.ledger.registry.header("no_such"), "unknown-table", "no_such"),
        (lambda: kit.ledger.registry.apply("no_such", [Put(segment("x", 0, 1))]), "unknown-table", "no_such"),
        (lambda: kit.ledger.views.state("no_such"), "unknown-view", "no_such"),
        (lambda: kit.ledger.views.state("a/b"), "name", "a/b"),
        (lambda: kit.ledger.views.create(replace(VIEW, name="x", table="no_such")), "unknown-table", "no_such"),
        (lambda: kit.ledger.views.create(VIEW), "view-exists", VIEW.name),
        (lambda: kit.ledger.registry.create_table(replace(TABLE, location="/x")), "table-exists", "rides"),
        (lambda: kit.commit(kit.build(0), kit.build(0)), "group", VIEW.name),
        (lambda: kit.put(segment("a", 0, 1, crc=3), segment("a", 0, 1, crc=4)), "batch", "'a'"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as refusal:
            act()
        assert refusal.value.rule == rule
        assert what in str(refusal.value)
    assert len(watched.commits) == commits


def test_a_node_from_a_newer_format_is_refused_by_name(kit: Kit) -> None:
    """Guessing at what is not understood could lose a change; nothing is overwritten."""
    path = "/floodmark/views/rides_hourly/shards/0"
    kit.put(segment("a", 0, 2))
    kit.append(0)
    node = kit.store.read(path)
    assert node is not None
    kit.store.commit([Set(path, b"\x63" + node.data[1:], node.version)])
    for act in (kit.states, lambda: kit.append(1), lambda: kit.mark(0)):
        with pytest.raises(InvalidInput, match="format 99") as refusal:
            act()
        assert path in str(refusal.value)
    after = kit.store.read(path)
    assert after is not None
    assert after.data[:1] == b"\x63"
