"""When pending changes are marked, and what exactly is marked."""

import gc
import time

from hypothesis import given
from hypothesis import strategies as st

from floodmark.core.buckets import Cause
from floodmark.core.debounce import Added, Bounds, Pending, merged
from floodmark.core.intervals import Interval

DAY = 86_400_000
BOUNDS = Bounds(quiet_ms=100, age_max_ms=1_000, count_max=50)


def cause(event_id: str) -> Cause:
    return Cause("event", event_id, 0)


def hear(
    pending: Pending, ranges: list[Interval] | None, event_id: str, *, now_ms: int = 0, adds_data: bool = True
) -> None:
    pending.count(1, now_ms)
    if pending.has_news_in(ranges, adds_data=adds_data):
        pending.add(ranges, cause(event_id), adds_data=adds_data)


def test_nothing_heard_is_never_due() -> None:
    """No change, no mark."""
    assert Pending(BOUNDS).due_ms is None


def test_a_quiet_period_after_the_last_change_makes_it_due() -> None:
    """Each change within the quiet period moves the mark."""
    pending = Pending(BOUNDS)
    hear(pending, [Interval(0, 1)], "a", now_ms=1_000)
    hear(pending, [Interval(0, 1)], "b", now_ms=1_050)
    assert pending.due_ms == 1_150


def test_an_endless_stream_cannot_postpone_past_the_maximum_age() -> None:
    """C3 in the small: the age of the first change bounds the wait."""
    pending = Pending(BOUNDS)
    for n in range(40):
        hear(pending, [Interval(n, n + 1)], str(n), now_ms=n * 50)
    assert pending.due_ms == 1_000


def test_many_changes_are_due_at_once() -> None:
    """The count bounds memory."""
    pending = Pending(BOUNDS)
    for _ in range(50):
        hear(pending, [Interval(0, 1)], "x", now_ms=7)
    assert pending.due_ms == 7


def test_day_1_and_day_365_are_two_intervals() -> None:
    """C4 in the small: never one hull."""
    pending = Pending(BOUNDS)
    hear(pending, [Interval(DAY, 2 * DAY)], "a", now_ms=0)
    hear(pending, [Interval(365 * DAY, 366 * DAY)], "b", now_ms=0)
    ranges = [i for mark in pending.batch.marks if mark.ranges for i in mark.ranges]
    assert ranges == [Interval(DAY, 2 * DAY), Interval(365 * DAY, 366 * DAY)]


def test_a_change_of_what_is_already_pending_adds_no_mark_and_the_first_cause_stays() -> None:
    """A burst on few buckets stays a few marks."""
    pending = Pending(BOUNDS)
    for n in range(30):
        hear(pending, [Interval(0, 10)], str(n), now_ms=0)
    (mark,) = pending.batch.marks
    assert mark.cause.event_id == "0"


def test_a_change_without_times_means_the_whole_view_and_ends_the_list() -> None:
    """C7 in the small."""
    pending = Pending(BOUNDS)
    hear(pending, [Interval(0, 10)], "a", now_ms=0)
    hear(pending, None, "b", now_ms=0)
    hear(pending, [Interval(20, 30)], "c", now_ms=0)
    assert [m.ranges is None for m in pending.batch.marks] == [False, True]


def test_how_far_back_data_was_added_is_kept_even_when_the_range_was_known() -> None:
    """A delete and an add of the same range: coverage must still follow the add."""
    pending = Pending(BOUNDS)
    hear(pending, [Interval(5, 10)], "gone", now_ms=0, adds_data=False)
    assert pending.batch.added is None
    hear(pending, [Interval(5, 10)], "back", now_ms=0)
    assert pending.batch.added == Added(5, cause("back"))


def test_coverage_follows_the_oldest_data_and_names_what_added_it() -> None:
    """The first change of a batch is not what made coverage begin earlier."""
    pending = Pending(BOUNDS)
    for start_ms, event_id in ((50, "newer"), (5, "oldest"), (20, "between")):
        hear(pending, [Interval(start_ms, start_ms + 1)], event_id, now_ms=0)
    assert pending.batch.added == Added(5, cause("oldest"))


a_range = st.builds(
    lambda start_ms, length_ms: Interval(start_ms, start_ms + length_ms), st.integers(0, 40), st.integers(1, 12)
)


@given(st.lists(st.lists(a_range, min_size=1, max_size=2), max_size=30))
def test_marks_cover_exactly_what_was_heard_and_none_only_repeats_earlier_ones(heard: list[list[Interval]]) -> None:
    """Whatever the order and overlap: no millisecond lost, none invented, no mark without something new."""
    pending = Pending(BOUNDS)
    for n, ranges in enumerate(heard):
        hear(pending, ranges, str(n), now_ms=0)
    expected = {ms for ranges in heard for i in ranges for ms in range(i.start_ms, i.end_ms)}
    covered: set[int] = set()
    for mark in pending.batch.marks:
        own = {ms for i in mark.ranges or () for ms in range(i.start_ms, i.end_ms)}
        assert own - covered, f"{mark} adds nothing"
        covered |= own
    assert covered == expected


@given(st.lists(st.tuples(st.none() | st.lists(a_range, min_size=1, max_size=2), st.booleans()), max_size=30))
def test_a_change_has_news_exactly_when_adding_it_adds_something(
    heard: list[tuple[list[Interval] | None, bool]],
) -> None:
    """What is not added because it has none would have changed nothing."""
    pending = Pending(BOUNDS)
    for n, (ranges, adds_data) in enumerate(heard):
        before, has_news = pending.batch, pending.has_news_in(ranges, adds_data=adds_data)
        pending.add(ranges, cause(str(n)), adds_data=adds_data)
        assert has_news == (pending.batch != before)


def test_a_long_list_of_scattered_changes_is_heard_in_about_its_length() -> None:
    """A backfill of 20,000 files must not stop the loop that polls: ten times as many take no hundredfold."""

    def heard_s(count: int) -> float:
        pending, started_s = Pending(Bounds(100, 1_000, 10**6)), time.thread_time()
        for n in range(count):
            hear(pending, [Interval(3 * n, 3 * n + 1)], "x")
        return time.thread_time() - started_s

    gc.disable()  # it would go through all that other tests have left behind
    try:
        few_s, many_s = (min(heard_s(count) for _ in range(3)) for count in (2_000, 20_000))
    finally:
        gc.enable()
    assert many_s < 30 * few_s


def test_merged_batches_are_marked_as_if_heard_together() -> None:
    """A failed mark is not lost by what came since, and its causes stay the first."""
    earlier, later = Pending(BOUNDS), Pending(BOUNDS)
    hear(earlier, [Interval(5, 10)], "first")
    hear(later, [Interval(5, 10)], "again")
    hear(later, [Interval(0, 10)], "second")
    batch = merged([earlier.batch, later.batch])
    assert [m.cause.event_id for m in batch.marks] == ["first", "second"]
    assert batch.added == Added(0, cause("second"))
