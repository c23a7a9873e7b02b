"""The decisions on dispatch records: every arrow of the diagram in core/dispatch.py, and every refusal."""

from dataclasses import replace

import pytest

from floodmark.core.dispatch import Policy, Progress, Record, Refusal, claim, fail, give_back, in_flight, offer
from floodmark.ledger import codec
from floodmark.ledger.dispatch import decode_records

POLICY = Policy(tries_max=3, backoff_first_ms=100, backoff_cap_ms=350, unclaimed_max_ms=1_000, deaths_max=4)
OFFERED = Record("t1", Progress.OFFERED, "live", 1, 5_000)
CLAIMED = replace(OFFERED, progress=Progress.CLAIMED, worker="w1", changed_at_ms=5_100)
FAILED = replace(OFFERED, progress=Progress.FAILED, error="boom", changed_at_ms=5_200, not_before_ms=5_300)
QUARANTINED = replace(FAILED, progress=Progress.QUARANTINED, tries=3)


def offered(
    record: Record | None, *, now_ms: int = 5_250, alive: tuple[str, ...] = ("w1",), task_id: str = "t1"
) -> object:
    return offer(record, task_id=task_id, lane="live", now_ms=now_ms, alive=alive, policy=POLICY)


def test_a_bucket_without_a_record_is_offered() -> None:
    """The first try of this task."""
    assert offered(None, now_ms=5_000) == OFFERED


@pytest.mark.parametrize("record", [OFFERED, CLAIMED, FAILED, QUARANTINED])
def test_another_task_starts_afresh(record: Record) -> None:
    """The source changed: neither tries nor quarantine of the old input count."""
    assert offered(record, task_id="t2") == Record("t2", Progress.OFFERED, "live", 1, 5_250)


def test_an_offer_is_in_flight_until_nobody_took_it_for_too_long() -> None:
    """Its message may be lost; the same try is given out again."""
    assert offered(OFFERED, now_ms=5_999) is Refusal.IN_FLIGHT
    assert offered(OFFERED, now_ms=6_000) == replace(OFFERED, changed_at_ms=6_000)


def test_a_claim_is_in_flight_as_long_as_its_worker_lives() -> None:
    """However long it takes; a dead worker's task is given out at once."""
    assert offered(CLAIMED, now_ms=10**9) is Refusal.IN_FLIGHT
    assert offered(CLAIMED, alive=("w2",)) == replace(OFFERED, changed_at_ms=5_250, deaths=1)


def test_a_failed_task_waits_for_its_backoff_and_counts_the_next_try() -> None:
    """Then it is offered again, and still shows why it failed."""
    assert offered(FAILED, now_ms=5_299) is Refusal.BACKING_OFF
    assert offered(FAILED, now_ms=5_300) == Record("t1", Progress.OFFERED, "live", 2, 5_300, error="boom")


def test_a_quarantined_task_is_never_offered() -> None:
    """Until it is released or its source changes."""
    assert offered(QUARANTINED, now_ms=10**12) is Refusal.QUARANTINED


@pytest.mark.parametrize("record", [OFFERED, CLAIMED])
def test_a_worker_claims_what_is_this_task(record: Record) -> None:
    """Also from a rival: a message may come twice, and two may run the same task."""
    claimed = claim(record, task_id="t1", worker="w2", now_ms=7)
    assert claimed == replace(record, progress=Progress.CLAIMED, worker="w2", changed_at_ms=7)


def test_a_claim_that_is_given_back_is_as_good_as_newly_offered() -> None:
    """The message comes again; if it is lost, nobody takes the offer, and the same try is given out again."""
    given_back = give_back(CLAIMED, task_id="t1", worker="w1", now_ms=7_000)
    assert given_back == replace(OFFERED, changed_at_ms=7_000)
    assert offered(given_back, now_ms=7_999) is Refusal.IN_FLIGHT
    assert offered(given_back, now_ms=8_000) == replace(OFFERED, changed_at_ms=8_000)


@pytest.mark.parametrize(
    ("record", "task_id", "worker"),
    [(None, "t1", "w1"), (CLAIMED, "t2", "w1"), (CLAIMED, "t1", "w2"), (OFFERED, "t1", ""), (FAILED, "t1", "w1")],
)
def test_only_its_own_claim_can_a_worker_give_back(record: Record | None, task_id: str, worker: str) -> None:
    assert give_back(record, task_id=task_id, worker=worker, now_ms=7_000) is None


@pytest.mark.parametrize(("record", "task_id"), [(None, "t1"), (OFFERED, "t2"), (FAILED, "t1"), (QUARANTINED, "t1")])
def test_a_worker_cannot_claim_what_is_not_this_task_or_has_ended(record: Record | None, task_id: str) -> None:
    """None: look at the entry to see what the task is still worth."""
    assert claim(record, task_id=task_id, worker="w2", now_ms=7) is None


def test_a_failure_backs_off_twice_as_long_each_time_up_to_a_cap() -> None:
    """100, 200, 350 instead of 400."""
    assert [POLICY.backoff_ms(n) for n in (1, 2, 3, 1_000)] == [100, 200, 350, 350]
    failed = fail(CLAIMED, task_id="t1", error="boom", now_ms=5_200, policy=POLICY)
    assert failed == FAILED


def test_the_last_try_ends_in_quarantine_with_its_error() -> None:
    """No task is retried for ever (INV-10); the error is cut, not lost."""
    failed = fail(replace(CLAIMED, tries=3), task_id="t1", error="x" * 5_000, now_ms=1, policy=POLICY)
    assert failed is not None
    assert (failed.progress, failed.error, failed.worker) == (Progress.QUARANTINED, "x" * 1_000, "")


@pytest.mark.parametrize(("record", "task_id"), [(None, "t1"), (CLAIMED, "t2"), (QUARANTINED, "t1")])
def test_a_failure_of_what_is_no_longer_this_task_changes_nothing(record: Record | None, task_id: str) -> None:
    """A late report of an old task must not push the new one back."""
    assert fail(record, task_id=task_id, error="late", now_ms=7, policy=POLICY) is None


def test_the_tries_of_a_task_end() -> None:
    """Offer, claim, fail, again and again: quarantined after exactly the allowed number."""
    record: Record | None = None
    for n in range(1, POLICY.tries_max + 1):
        given = offered(record, now_ms=n * 10_000)
        assert isinstance(given, Record)
        assert given.tries == n
        record = fail(given, task_id="t1", error="boom", now_ms=n * 10_000, policy=POLICY)
    assert record is not None
    assert record.progress is Progress.QUARANTINED


def test_the_deaths_of_a_task_end_too() -> None:
    """A task that kills its worker goes from one to the next, and is set aside after exactly the allowed number."""
    record = OFFERED
    for n in range(1, POLICY.deaths_max + 1):
        claimed = claim(record, task_id="t1", worker=f"w{n}", now_ms=n)
        given = offered(claimed, alive=())
        assert isinstance(given, Record)
        assert (given.deaths, given.tries) == (n, 1)
        record = given
    assert record.progress is Progress.QUARANTINED
    assert record.error == "its worker died 4 times, the last one was w4"
    assert offered(record, alive=()) is Refusal.QUARANTINED


def test_deaths_and_failures_are_counted_apart() -> None:
    """Restarts of workers do not use up the tries, nor failures the deaths."""
    failed = fail(replace(CLAIMED, deaths=3), task_id="t1", error="boom", now_ms=5_200, policy=POLICY)
    assert failed == replace(FAILED, deaths=3)
    assert offered(failed, now_ms=5_300) == replace(
        FAILED, progress=Progress.OFFERED, tries=2, deaths=3, changed_at_ms=5_300, not_before_ms=0
    )


def test_an_offer_nobody_took_is_no_death() -> None:
    """Its message was lost, or its scheduler died; no worker had it."""
    again = offered(replace(OFFERED, worker="s1"), alive=("w1",))
    assert again == replace(OFFERED, changed_at_ms=5_250)
    assert offered(OFFERED, now_ms=6_000) == replace(OFFERED, changed_at_ms=6_000)


def test_a_frozen_bucket_stays_frozen_while_it_is_tried_again() -> None:
    """Until a try ends otherwise, or the source changes."""
    frozen = fail(CLAIMED, task_id="t1", error="a.parquet is missing", now_ms=5_200, policy=POLICY, frozen=True)
    again = offered(frozen, now_ms=9_000)
    assert isinstance(again, Record)
    assert (again.frozen, again.error) == (True, "a.parquet is missing")
    other = fail(again, task_id="t1", error="out of memory", now_ms=9_100, policy=POLICY)
    assert other is not None
    assert not other.frozen
    changed = offered(frozen, task_id="t2")
    assert isinstance(changed, Record)
    assert not changed.frozen


@pytest.mark.parametrize(
    ("record", "now_ms", "alive", "expected"),
    [
        (replace(OFFERED, worker="s1"), 5_999, ("s1",), True),
        (replace(OFFERED, worker="s1"), 6_000, ("s1",), False),
        (replace(OFFERED, worker="s1"), 5_001, ("s2",), False),
        (CLAIMED, 10**9, ("w1",), True),
        (CLAIMED, 5_101, (), False),
        (FAILED, 5_201, ("w1",), False),
        (QUARANTINED, 5_201, ("w1",), False),
    ],
)
def test_in_flight_is_what_someone_living_has_or_may_take(
    record: Record, now_ms: int, alive: tuple[str, ...], expected: bool
) -> None:
    """What is not takes no room in a lane."""
    assert in_flight(record, now_ms=now_ms, alive=alive, policy=POLICY) is expected


def test_the_offer_of_a_scheduler_that_died_is_made_again_at_once() -> None:
    """It may have recorded the task and never sent it; a living scheduler's offer is left to be taken."""
    mine = offer(None, task_id="t1", lane="live", now_ms=5_000, alive=(), policy=POLICY, offered_by="s1")
    assert isinstance(mine, Record)
    assert offered(mine, alive=("s1",), now_ms=5_001) is Refusal.IN_FLIGHT
    assert isinstance(offered(mine, alive=("s2",), now_ms=5_001), Record)


def test_records_written_before_deaths_were_counted_still_decode() -> None:
    """Old versions always decode: a shorter row has had no deaths."""
    row = [7, "t1", "claimed", "live", 2, 5_100, "w1", 0, "boom", True]
    found = decode_records(codec.pack({"records": [row]}), what="a shard of records")
    assert found == {7: Record("t1", Progress.CLAIMED, "live", 2, 5_100, "w1", 0, "boom", frozen=True, deaths=0)}
