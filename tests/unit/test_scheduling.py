"""The scheduler's decisions on values."""

from dataclasses import replace

import pytest

from floodmark.core.buckets import ASKED, BucketGrid, Cause, Entry, State, synthesized
from floodmark.core.fingerprint import EMPTY, Fingerprint
from floodmark.core.runs import NO_RUNS
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
    task_id,
    vacant_starts,
)
from floodmark.core.tables import TableHeader, ViewHeader
from floodmark.core.transitions import Mode
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW

BUILT = Fingerprint(2, 77)
STALE = Entry(State.STALE, ever_valid=True, fingerprint=BUILT, attempt_id="a", definition_hash="h")


def view(watermark_hour: int) -> ViewHeader:
    return ViewHeader(VIEW, "i", 0, coverage_start_ms=0, watermark_ms=watermark_hour * HOUR_MS)


@pytest.mark.parametrize(
    ("live", "expected"),
    [(EMPTY, Mode.DELETE), (BUILT, Revert()), (Fingerprint(3, 78), Mode.OVERWRITE)],
)
def test_a_stale_bucket_gets_what_its_live_source_asks_for(live: Fingerprint, expected: object) -> None:
    """S1 in the small: gone -> DELETE, unchanged -> revert and no task, changed -> OVERWRITE."""
    assert remedy(STALE, live, definition_hash="h") == expected


def test_a_bucket_that_was_built_under_another_definition_is_built_again_although_its_source_is_unchanged() -> None:
    assert remedy(STALE, BUILT, definition_hash="h of another meaning") is Mode.OVERWRITE


def test_a_bucket_that_was_never_built_and_has_no_source_is_cleared_not_reverted() -> None:
    """There is nothing to revert to."""
    assert remedy(synthesized(Cause("event", "e", 0)), EMPTY, definition_hash="h") is Mode.DELETE


def test_a_bucket_that_somebody_asked_for_is_built_although_its_source_is_unchanged() -> None:
    """A person who asks has a reason, such as files that were lost. A change that was undone is none."""
    assert remedy(replace(STALE, cause=Cause(ASKED, "r", 0)), BUILT, definition_hash="h") is Mode.OVERWRITE
    assert remedy(replace(STALE, cause=Cause(ASKED, "r", 0)), EMPTY, definition_hash="h") is Mode.DELETE
    assert remedy(replace(STALE, cause=Cause("event", "e", 0)), BUILT, definition_hash="h") == Revert()


def test_a_rebuild_from_nothing_is_a_delete() -> None:
    """What a bucket gets whose revert was lost to contention: VALID in the end, by a task."""
    assert rebuild(EMPTY) is Mode.DELETE
    assert rebuild(BUILT) is Mode.OVERWRITE


def test_the_cutoff_follows_the_data_and_not_the_clock() -> None:
    """S4 and S5 in the small: when ingestion stops the watermark stops; a bucket that ends with the data is in."""
    table = TableHeader(TABLE, max_last_ms=5 * HOUR_MS - 1)
    assert append_cutoff_ms(table, now_ms=1_000 * HOUR_MS, buffer_ms=0) == 5 * HOUR_MS
    assert append_cutoff_ms(table, now_ms=5 * HOUR_MS, buffer_ms=HOUR_MS) == 4 * HOUR_MS
    assert append_cutoff_ms(replace(table, max_last_ms=None), now_ms=1_000 * HOUR_MS, buffer_ms=0) is None


def test_a_view_is_behind_by_the_whole_buckets_that_the_cutoff_admits() -> None:
    """Data that fills no bucket yet is nothing to wait for."""
    assert behind_ms(view(4), 5 * HOUR_MS) == HOUR_MS
    assert behind_ms(view(4), 7 * HOUR_MS + 1) == 3 * HOUR_MS
    assert behind_ms(view(4), 5 * HOUR_MS - 1) == 0
    assert behind_ms(view(5), 5 * HOUR_MS) == 0
    assert behind_ms(view(5), 4 * HOUR_MS) == 0
    assert behind_ms(view(4), None) == 0


def test_vacant_buckets_are_found_from_both_ends() -> None:
    """Oldest first for the backfill, newest first for the live lane; existing ones are skipped."""
    exists = {2 * HOUR_MS, 5 * HOUR_MS}.__contains__
    hours = [s // HOUR_MS for s in vacant_starts(view(1), exists, NO_RUNS, 7 * HOUR_MS + 5, newest_first=False)]
    assert hours == [1, 3, 4, 6]
    hours = [s // HOUR_MS for s in vacant_starts(view(1), exists, NO_RUNS, 7 * HOUR_MS + 5, newest_first=True)]
    assert hours == [6, 4, 3, 1]


def test_the_end_of_the_data_is_live_and_the_rest_is_repair_or_backfill() -> None:
    """S8 in the small."""
    grid, cutoff = BucketGrid(HOUR_MS), 100 * HOUR_MS
    lanes = [
        lane_of(h * HOUR_MS, e, grid=grid, cutoff_ms=cutoff, live_buckets=4)
        for h, e in ((99, None), (96, STALE), (95, STALE), (95, None), (3, synthesized(Cause("event", "e", 0))))
    ]
    assert lanes == [Lane.LIVE, Lane.LIVE, Lane.REPAIR, Lane.BACKFILL, Lane.BACKFILL]


def test_the_same_work_has_the_same_name() -> None:
    """Duplicates collapse; another source, mode, bucket or incarnation is another task."""
    one = task_id("i", 0, Mode.APPEND, BUILT)
    assert one == task_id("i", 0, Mode.APPEND, BUILT)
    others = [
        ("j", 0, Mode.APPEND, BUILT),
        ("i", 1, Mode.APPEND, BUILT),
        ("i", 0, Mode.OVERWRITE, BUILT),
        ("i", 0, Mode.APPEND, EMPTY),
    ]
    assert len({one, *(task_id(*other) for other in others)}) == 5


def test_stale_buckets_are_served_oldest_cause_first() -> None:
    """Not by bucket time: whoever has waited longest."""
    entries = {n: replace(STALE, cause=Cause("event", "e", at)) for n, at in ((1, 30), (2, 10), (3, 20))}
    assert oldest_cause_first(entries) == [2, 3, 1]


def test_views_take_turns() -> None:
    """A backlog of one view does not starve another."""
    assert list(fair([[1, 2, 3], [], [10], [20, 21]])) == [1, 10, 20, 2, 21, 3]
