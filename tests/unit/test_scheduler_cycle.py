"""The scheduler's cycle and its eyes, on a store in memory whose watches fire at once."""

import random
from dataclasses import replace
from itertools import count

import pytest

from floodmark.core.buckets import BucketGrid, DataFile, Entry, State
from floodmark.core.dispatch import Progress
from floodmark.core.errors import InvalidInput, OutcomeUnknown, SessionLost, Unavailable
from floodmark.core.intervals import Interval
from floodmark.core.scheduling import Lane
from floodmark.core.tables import ViewStatus
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Create, Set
from floodmark_scheduler.cycle import LANE_TURN_MS, LanePlan
from floodmark_scheduler.eyes import Eyes
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, cause, segment
from tests.support.scheduler_office import Office


@pytest.fixture
def office() -> Office:
    return Office()


# -- what is given out ---------------------------------------------------------------------------------------------


def test_each_stale_bucket_gets_what_its_source_asks_for(office: Office) -> None:
    """Gone: DELETE. Unchanged: reverted, no task. Changed: OVERWRITE."""
    office.built(0, 1, 2, 3)
    office.kit.remove("s0")
    office.kit.put(segment("s2", 2, 3, crc=9))
    office.kit.mark(0, 1, 2)
    assert sorted(office.cycle()) == [(0, "DELETE"), (2, "OVERWRITE")]
    assert office.kit.states() == {0: "STALE", 1: "VALID", 2: "STALE", 3: "VALID"}


def test_what_is_in_flight_is_not_given_out_again(office: Office) -> None:
    """One cycle after the other, until something changes."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 2))
    assert sorted(office.cycle()) == [(0, "APPEND"), (1, "APPEND")]
    assert office.cycle() == []


def test_an_offer_that_nobody_has_taken_yet_takes_room_in_its_lane(office: Office) -> None:
    """Or each cycle would fill the topic anew while the workers are busy."""
    office.scheduler.lanes = LanePlan(dict.fromkeys(Lane, 2), live_buckets=2, append_buffer_ms=0)
    office.kit.set_up()
    office.kit.put(segment("a", 0, 10))
    assert sorted(office.cycle()) == [(hour, "APPEND") for hour in (0, 1, 8, 9)]
    office.kit.put(segment("z", 0, 1))
    assert [hour for hour, _ in office.cycle() if hour not in (0, 1, 8, 9)] == []


def test_a_lost_revert_costs_one_task_and_holds_up_nobody(office: Office) -> None:
    """Its budget is small on purpose; the bucket is rebuilt instead, and the others of the view get their tasks."""
    office.built(0, 1)
    office.kit.put(segment("s1", 1, 2, crc=9))
    office.kit.mark(0, 1)
    shard = paths.shard(VIEW.name, 0)
    office.store.refuses = lambda ops: any(isinstance(op, Set) and op.path == shard for op in ops)
    assert sorted(office.cycle()) == [(0, "OVERWRITE"), (1, "OVERWRITE")]


def test_a_mass_of_reverts_does_not_keep_the_other_lanes_waiting(office: Office) -> None:
    """A lane has a turn of bounded length; what is left comes in the next cycles."""
    office.built(*range(100))
    office.kit.mark(*range(50))
    office.kit.put(segment("late", 100, 110))
    office.scheduler.lanes = LanePlan(dict.fromkeys(Lane, 10), live_buckets=2, append_buffer_ms=0)
    office.store.before_commit = lambda: office.clock.sleep_ms(LANE_TURN_MS // 10)
    given = office.cycle()
    assert {hour for hour, _ in given} == set(range(100, 110)), "the live and the backfill lane were filled"
    left = [e for e in office.kit.states().values() if e == "STALE"]
    assert 20 <= len(left) < 50, "some reverts were made, most were left for later"
    for _ in range(10):
        office.cycle()
    assert "STALE" not in office.kit.states().values()


def test_a_paused_view_gets_nothing_and_is_not_called_stalled(office: Office) -> None:
    """Somebody asked for it to stand still."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 2))
    office.cycle()
    office.clock.sleep_ms(61_000)
    office.cycle()
    assert office.pinned() == {"stalled"}
    office.kit.ledger.views.set_status(VIEW.name, ViewStatus.PAUSED)
    office.clock.sleep_ms(61_000)
    assert office.cycle() == []
    assert office.pinned() == set()


@pytest.mark.parametrize("claimed", [False, True])
def test_work_already_done_does_not_hold_up_what_came_after_it(office: Office, *, claimed: bool) -> None:
    """INV-10: committed, and marked again before anyone took the record away. Neither its age nor its worker counts."""
    office.kit.set_up()
    office.lives("worker", "w1")
    office.kit.put(segment("a", 0, 1), segment("b", 1, 2))
    office.cycle()
    if claimed:
        office.claim(0, "w1")
        office.claim(1, "w1")
    office.cycle()
    office.kit.append(0)
    office.kit.append(1)
    office.kit.put(segment("a", 0, 1, crc=2))
    office.kit.mark(0, 1)
    assert office.cycle() == [(0, "OVERWRITE")]
    assert office.kit.state(1) is State.VALID, "the other one was reverted"


def test_a_refresh_of_what_was_just_built_needs_no_change_of_the_table(office: Office) -> None:
    """The entry is news enough."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    office.cycle()
    office.cycle()
    office.kit.append(0)
    office.kit.mark(0)
    office.cycle()
    assert office.kit.state(0) is State.VALID


def test_a_task_whose_input_changed_is_replaced_by_another_at_once(office: Office) -> None:
    """The one that is out can never commit; a change elsewhere in the table replaces nothing."""
    office.kit.set_up()
    office.lives("worker", "w1")
    office.kit.put(segment("a", 0, 1), segment("b", 40, 41))
    assert (0, "APPEND") in office.cycle()
    office.claim(0, "w1")
    office.kit.put(segment("b", 40, 41, crc=2))
    assert office.cycle() == [(40, "APPEND")]
    office.kit.put(segment("a", 0, 1, crc=2))
    assert office.cycle() == [(0, "APPEND")]


def test_two_schedulers_at_once_give_each_task_out_once(office: Office) -> None:
    """Leadership saves work; being right does not depend on it."""
    office.kit.set_up()
    rival = Office(office.store, office.clock, instance="s2")
    for hour in range(6):
        office.kit.put(segment(f"s{hour}", hour, hour + 1))
        first, second = (office, rival) if hour % 2 else (rival, office)
        assert first.cycle() == [(hour, "APPEND")]
        assert second.cycle() == []


# -- crashes and deaths --------------------------------------------------------------------------------------------


def test_a_task_recorded_by_a_scheduler_that_died_before_sending_it_goes_out_at_once(office: Office) -> None:
    """The recorded state is all it left; nobody waits until the offer is old."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    office.cycle()
    successor = Office(office.store, office.clock, instance="s2")
    assert successor.cycle() == [], "as long as the first one lives, its offer stands"
    office.store.nodes.pop(f"{paths.SERVICES}/scheduler/s1")
    assert successor.cycle() == [(0, "APPEND")]
    record = office.record(0)
    assert record is not None
    assert (record.worker, record.tries, record.deaths) == ("s2", 1, 0)


@pytest.mark.parametrize("error", [Unavailable("the bus is away"), OutcomeUnknown("no acknowledgement")])
def test_a_task_that_was_recorded_and_could_not_be_sent_is_sent_in_the_next_cycle(
    office: Office, error: Exception
) -> None:
    """The ledger has it as given out by one who lives, so nobody else would send it before it is old."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    office.publisher.fails_with = error
    for _ in range(2):
        with pytest.raises(type(error)):
            office.scheduler.cycle()
    office.publisher.fails_with = None
    assert office.cycle() == [(0, "APPEND")]
    assert office.cycle() == []


def test_a_message_the_bus_never_takes_keeps_no_other_of_its_cycle_from_being_sent(office: Office) -> None:
    """Whichever view it is of (INV-14)."""
    names = views_with_a_stale_bucket(office, 3)
    office.publisher.refuses = names[1].encode()
    office.cycle()
    assert [t.view for t in office.tasks()] == [names[0], names[2]]
    assert office.cycle() == []


def test_a_message_the_bus_never_takes_stops_nothing_else(office: Office) -> None:
    """It is not tried for ever (INV-14)."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    office.publisher.fails_with = InvalidInput("too-large", "a message is too large")
    assert office.cycle() == []
    office.publisher.fails_with = None
    office.kit.put(segment("b", 1, 2))
    assert office.cycle() == [(1, "APPEND")]


def test_the_task_of_a_dead_worker_is_given_out_again_and_ends_when_it_kills_them_all(office: Office) -> None:
    """INV-10: no task is retried for ever."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    office.lives("worker", "w1")
    office.cycle()
    office.claim(0, "w1")
    assert office.cycle() == []
    office.store.nodes.pop(f"{paths.SERVICES}/worker/w1")
    assert office.cycle() == [(0, "APPEND")]
    office.claim(0, "w2")
    assert office.cycle() == []
    record = office.record(0)
    assert record is not None
    assert (record.progress, record.deaths) == (Progress.QUARANTINED, 2)
    assert "died 2 times" in record.error
    assert office.cycle() == []


def test_an_offer_too_old_takes_no_room_in_its_lane(office: Office) -> None:
    """Or tasks that are wanted no more, and whose messages were lost, would close a lane for ever."""
    office.scheduler.lanes = LanePlan(dict.fromkeys(Lane, 2), live_buckets=2, append_buffer_ms=0)
    office.kit.set_up()
    office.kit.put(segment("a", 0, 2))
    assert len(office.cycle()) == 2
    office.kit.remove("a")
    office.clock.sleep_ms(61_000)
    office.kit.put(segment("b", 300, 302), segment("c", 0, 1))
    assert (301, "APPEND") in office.cycle()


# -- failures ------------------------------------------------------------------------------------------------------


def test_a_failing_bucket_backs_off_and_is_quarantined_and_the_others_proceed(office: Office) -> None:
    """S3 in the small."""
    office.built(0, 1)
    office.kit.put(segment("s0", 0, 1, crc=9), segment("s1", 1, 2, crc=9))
    office.kit.mark(0, 1)
    assert len(office.cycle()) == 2
    office.fail(0)
    assert office.cycle() == []
    office.clock.sleep_ms(1_000)
    assert office.cycle() == [(0, "OVERWRITE")]
    office.fail(0)
    office.clock.sleep_ms(10**6)
    assert office.cycle() == [(1, "OVERWRITE")], "the one that nobody took"
    assert office.progress(0) is Progress.QUARANTINED


def test_a_quarantined_bucket_is_tried_again_when_its_source_changes_and_only_then(office: Office) -> None:
    """The task is another one. A change elsewhere costs one look and no task."""
    office.built(0, 1, 40)
    office.kit.put(segment("s0", 0, 1, crc=9))
    office.kit.mark(0)
    office.cycle()
    for _ in range(2):
        office.fail(0)
        office.clock.sleep_ms(1_000)
        office.cycle()
    assert office.progress(0) is Progress.QUARANTINED
    office.kit.put(segment("s40", 40, 41, crc=2))
    assert office.cycle() == []
    office.kit.put(segment("s0", 0, 1, crc=10))
    assert office.cycle() == [(0, "OVERWRITE")]


def test_the_records_of_finished_buckets_go_in_one_write(office: Office) -> None:
    """Whoever built them: a worker that died after its commit leaves the record behind."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 20))
    office.cycle()
    office.kit.commit(*(office.kit.build(h) for h in range(20)))
    writes: list[None] = []
    office.store.before_commit = lambda: writes.append(None)
    office.cycle()
    assert office.kit.ledger.dispatch.records(VIEW.name) == {}
    assert len(writes) == 1


def views_with_a_stale_bucket(office: Office, count: int) -> list[str]:
    """Each built from a source that has changed since, and marked for it."""
    names = [f"view_{n}" for n in range(count)]
    office.kit.ledger.registry.create_table(TABLE)
    office.kit.put(segment("a", 0, 1))
    for name in names:
        header = office.kit.ledger.views.create(replace(VIEW, name=name), coverage_start_ms=0)
        office.kit.ledger.views.commit(name, header.incarnation, [office.kit.build(0)])
    office.cycle()
    office.kit.put(segment("a", 0, 1, crc=2))
    for name in names:
        office.kit.ledger.views.mark_stale(name, [Interval(0, HOUR_MS)], cause())
    return names


def test_ten_views_with_work_take_as_many_round_trips_as_one() -> None:
    """Shards, sources and records of all of them are asked for together, and written together."""

    def round_trips(count: int) -> int:
        office = Office()
        names = views_with_a_stale_bucket(office, count)
        office.store.round_trips = 0
        office.cycle()
        assert [t.view for t in office.tasks()] == names
        return office.store.round_trips

    assert round_trips(10) == round_trips(1)


@pytest.mark.parametrize("error", [Unavailable("the store is away"), OutcomeUnknown("no answer")])
def test_what_was_recorded_is_sent_although_the_store_went_away_over_another_view(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Unsent, it would wait until its offer is old (INV-14)."""
    office = Office()
    names = views_with_a_stale_bucket(office, 3)

    def trouble() -> None:
        if next(writes) == 1:
            monkeypatch.setattr(office.store, "sync", away)
            raise error

    def away() -> None:
        raise SessionLost("the session is over")

    writes = count()
    office.store.before_commit = trouble
    with pytest.raises(type(error)):
        office.scheduler.cycle()
    assert [t.view for t in office.tasks()] == [names[0], names[2]]


def test_a_source_that_cannot_be_read_troubles_only_the_views_that_need_it(office: Office) -> None:
    """Two views of one table, whose sources are read together; one needs a slice that is damaged (INV-14)."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1), segment("b", 24, 25))
    office.kit.ledger.views.create(replace(VIEW, name="another"), coverage_start_ms=24 * HOUR_MS)
    office.store.commit([Set(paths.slice_("rides", "0"), b"\xffgarbage", -1)])
    office.cycle()
    assert [(t.view, t.bucket_start_ms // HOUR_MS) for t in office.tasks()] == [("another", 24)]


def test_a_settlement_that_fails_keeps_no_task_from_going_out(
    office: Office, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """INV-14: settling saves tasks; whatever is wrong with it, buckets with a source are built all the same."""

    def settle(*_: object, **__: object) -> None:
        raise InvalidInput("write-too-large", "one write would have 2 bytes, at most 1 are allowed")

    monkeypatch.setattr(office.kit.ledger.views, "settle", settle)
    office.built(0, 4 * 256)
    office.kit.put(segment("new", 0, 1))
    office.mark(0)
    assert (0, "OVERWRITE") in office.cycle()
    assert "runs_not_settled" in capsys.readouterr().out


def test_a_refresh_of_islands_between_long_stretches_builds_only_the_islands(office: Office) -> None:
    """All the shards beside the stretches together are larger than a write."""
    hours = [n * 3 * 256 for n in range(9)]
    office.kit.set_up()
    office.kit.put(*(segment(f"s{hour}", hour, hour + 1) for hour in hours))
    dice = random.Random(1)
    for hour in hours:
        files = tuple(DataFile(dice.randbytes(500).hex(), 1, 1) for _ in range(300))
        office.kit.commit(replace(office.kit.build(hour), files=files))
    office.cycle()
    refresh = replace(cause(), kind="refresh", marked_at_ms=office.clock.now_ms())
    office.kit.ledger.views.mark_stale(VIEW.name, None, refresh)
    assert sorted(office.cycle()) == [(hour, "OVERWRITE") for hour in hours]
    assert {h for h, state in office.kit.states().items() if state == "STALE"} == set(hours)


def test_a_view_whose_records_are_damaged_does_not_stop_the_others(office: Office) -> None:
    """INV-14."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    office.kit.ledger.views.create(replace(VIEW, name="another"), coverage_start_ms=0)
    office.store.commit([Create(paths.dispatch_shard("another", 0), b"\xffgarbage")])
    assert office.cycle() == [(0, "APPEND")]
    assert {t.view for t in office.tasks()} == {VIEW.name}


@pytest.mark.parametrize("path", [paths.table("broken"), paths.view("another"), paths.shard("another", 0)])
def test_a_damaged_node_hides_only_its_own_view(office: Office, path: str) -> None:
    """INV-14: neither the cycle ends nor do the views beside it stand still."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    office.kit.ledger.registry.create_table(replace(TABLE, name="broken"))
    office.kit.ledger.views.create(replace(VIEW, name="another", table="broken"), coverage_start_ms=0)
    if office.store.read(path) is None:
        office.store.commit([Create(path, b"")])
    office.store.commit([Set(path, b"\xffgarbage", -1)])
    assert office.cycle() == [(0, "APPEND")]


# -- eyes ----------------------------------------------------------------------------------------------------------


def test_a_cycle_reads_what_changed_and_nothing_else(office: Office) -> None:
    """It costs what changed, not what there is."""
    office.built(*range(300))
    office.cycle()
    office.store.reads.clear()
    office.cycle()
    assert office.store.reads == []
    office.kit.mark(299)
    office.scheduler.eyes.look()
    assert office.store.reads == [paths.shard(VIEW.name, 1)]


def test_of_a_shard_that_changed_only_the_blocks_that_did_are_decoded(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is seen is what a new look at everything sees: marked, built again, appended."""
    office.built(*range(100))
    office.cycle()
    decoded: list[list[int]] = []
    decode = codec.decode_stale

    def noting(block: bytes, grid: BucketGrid, *, what: str) -> tuple[dict[int, Entry], list[int]]:
        found = decode(block, grid, what=what)
        decoded.append([start // HOUR_MS for start in found[1]])
        return found

    monkeypatch.setattr(codec, "decode_stale", noting)
    office.kit.mark(3, 50)
    office.scheduler.eyes.look()
    assert decoded == [list(range(16)), list(range(48, 64))]
    office.kit.refresh(50)
    office.kit.put(segment("new", 100, 101))
    office.kit.append(100)
    office.scheduler.eyes.look()
    seen = office.scheduler.eyes.views[VIEW.name]
    fresh = Eyes(office.store)
    fresh.look()
    assert [start // HOUR_MS for start in seen.stale()] == [3]
    assert seen.stale() == fresh.views[VIEW.name].stale()
    assert [seen.exists(h * HOUR_MS) for h in range(256)] == [h <= 100 for h in range(256)]


def test_a_look_that_was_cut_short_is_begun_again_with_everything(office: Office) -> None:
    """What it had already taken from its list would be lost otherwise."""
    office.built(0)
    office.cycle()
    office.kit.mark(0)
    office.store.away = True
    with pytest.raises(Unavailable):
        office.scheduler.cycle()
    office.store.away = False
    assert office.scheduler.eyes.something_changed
    office.cycle()
    assert office.kit.state(0) is State.VALID, "the mark was seen and reverted"


def test_a_shard_of_a_view_created_anew_is_seen_although_its_namesake_went(office: Office) -> None:
    """The news of the old shard's end may come after the new view is known, and before its shard exists."""
    office.built(0)
    office.cycle()
    eyes = office.scheduler.eyes
    office.kit.ledger.views.drop(VIEW.name)
    office.kit.ledger.views.create(VIEW, coverage_start_ms=0)
    eyes.look()
    office.kit.append(0)
    office.kit.mark(0)
    office.cycle()
    assert eyes.views[VIEW.name].exists(0)
    assert office.kit.state(0) is State.VALID, "the mark was seen and reverted"


def test_a_dropped_view_is_forgotten_and_its_gauge_falls(office: Office) -> None:
    """An alert on something that is no more would never end."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    office.cycle()
    office.clock.sleep_ms(61_000)
    office.cycle()
    assert office.pinned() == {"stalled"}
    office.kit.ledger.views.drop(VIEW.name)
    office.cycle()
    assert office.scheduler.eyes.views == {}
    assert office.pinned() == set()


def test_what_a_scheduler_remembers_is_what_is_out_and_not_what_ever_was(office: Office) -> None:
    """A view that is kept up to date for years has as many buckets behind it as minutes."""
    office.built(0)
    office.lives("worker", "w1")
    for hour in range(1, 40):
        office.kit.put(segment(f"s{hour}", hour, hour + 1))
        assert office.cycle() == [(hour, "APPEND")]
        office.claim(hour, "w1")
        office.kit.commit(office.kit.build(hour))
        record = office.record(hour)
        assert record is not None
        office.kit.ledger.dispatch.finish_all(office.kit.header, {hour * HOUR_MS: record.task_id})
    office.cycle()
    (view,) = office.scheduler.eyes.views.values()
    assert view.decided_on == {}
