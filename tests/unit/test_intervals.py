"""Intervals and sets of them, against sets of whole numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval, IntervalSet

intervals = st.tuples(st.integers(-30, 30), st.integers(1, 12)).map(lambda p: Interval(p[0], p[0] + p[1]))
lists = st.lists(intervals, max_size=8)


def points(found: IntervalSet | list[Interval]) -> set[int]:
    return {n for i in found for n in range(i.start_ms, i.end_ms)}


@pytest.mark.parametrize(("start_ms", "end_ms"), [(10, 10), (10, 9), (0, -1)])
def test_an_interval_must_end_after_it_starts(start_ms: int, end_ms: int) -> None:
    """An empty window is a mistake of its maker, named."""
    with pytest.raises(InvalidInput) as refusal:
        Interval(start_ms, end_ms)
    assert refusal.value.rule == "interval"
    assert f"[{start_ms}, {end_ms})" in str(refusal.value)


@given(intervals, intervals)
def test_two_intervals_overlap_exactly_when_they_share_a_point(a: Interval, b: Interval) -> None:
    """Touching is not overlapping: the end is not inside."""
    assert a.overlaps(b) is b.overlaps(a) is bool(points([a]) & points([b]))


@given(lists)
def test_a_set_holds_what_was_added_and_nothing_between(added: list[Interval]) -> None:
    """Never one hull: day 1 and day 365 do not contain what lies between."""
    assert points(IntervalSet.of(added)) == points(added)


@given(lists)
def test_a_set_is_the_shortest_in_order(added: list[Interval]) -> None:
    """Disjoint, sorted, touching ones merged; so equal sets are equal values."""
    found = list(IntervalSet.of(added))
    assert all(a.end_ms < b.start_ms for a, b in pairwise(found))
    assert IntervalSet.of(reversed(added)) == IntervalSet.of(added)


@given(lists, lists)
def test_a_union_holds_both(a: list[Interval], b: list[Interval]) -> None:
    """In canonical form again."""
    united = IntervalSet.of(a).union(b)
    assert points(united) == points(a) | points(b)
    assert united == IntervalSet.of([*a, *b])


@given(lists, intervals)
def test_a_clip_is_the_part_inside(added: list[Interval], window: Interval) -> None:
    """Nothing outside the window, all that is inside."""
    assert points(IntervalSet.of(added).clip(window)) == points(added) & points([window])


@given(lists, intervals)
def test_overlap_is_found_wherever_it_is(added: list[Interval], window: Interval) -> None:
    """The search by halves finds what a look at each would."""
    assert IntervalSet.of(added).overlaps(window) is bool(points(added) & points([window]))


def test_an_empty_set_is_false() -> None:
    """`if marks:` asks whether there is anything to do."""
    assert not IntervalSet()
    assert IntervalSet.of([Interval(0, 1)])
