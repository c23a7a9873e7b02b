"""Where buckets, slices and shards lie, the states of an entry, and the watermark over them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.core import watermark
from floodmark.core.buckets import BUCKETS_PER_SHARD, BucketGrid, Cause, Entry, Shard, State, synthesized
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import EMPTY, Fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.segments import SLICES_PER_SEGMENT_MAX, WIDE, Segment, SliceGrid
from floodmark.core.tables import ViewDefinition, ViewHeader

GRID = BucketGrid(10)
CAUSE = Cause("event", "e1", 5)
BUILT = Entry(State.VALID, ever_valid=True, fingerprint=Fingerprint(1, 7), slice_versions={"0": 1}, attempt_id="a1")
times = st.integers(-6 * 10**13, 2 * 10**14)
widths = st.integers(1, 10**11)


@given(times, widths)
def test_every_time_lies_in_exactly_one_bucket(time_ms: int, width_ms: int) -> None:
    """Also before 1970."""
    grid = BucketGrid(width_ms)
    window = grid.window(grid.start_of(time_ms))
    assert window.start_ms <= time_ms < window.end_ms
    assert window.end_ms - window.start_ms == width_ms


@given(times, st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_buckets_of_an_interval_are_those_that_overlap_it(start_ms: int, length_ms: int, width_ms: int) -> None:
    """None missing at the edges, none too many."""
    width_ms = max(width_ms, length_ms // 50 + 1)
    grid, interval = BucketGrid(width_ms), Interval(start_ms, start_ms + length_ms)
    starts = list(grid.starts_in(interval))
    assert all(grid.window(s).overlaps(interval) for s in starts)
    assert not grid.window(starts[0] - width_ms).overlaps(interval)
    assert not grid.window(starts[-1] + width_ms).overlaps(interval)


@given(st.integers(-(10**6), 10**6))
def test_a_shard_holds_a_fixed_number_of_consecutive_buckets(number: int) -> None:
    """Also the shards before 1970."""
    first = GRID.shard_start(number)
    assert {GRID.shard_of(first + n * 10) for n in range(BUCKETS_PER_SHARD)} == {number}
    assert GRID.shard_of(first - 10) == number - 1
    assert GRID.shard_of(first + BUCKETS_PER_SHARD * 10) == number + 1


def test_a_width_or_start_that_cannot_be_is_refused_by_name() -> None:
    """The value is in the message."""
    with pytest.raises(InvalidInput, match="bucket-width: bucket width 0 ms"):
        BucketGrid(0)
    with pytest.raises(InvalidInput, match="bucket-start: bucket start 15"):
        GRID.window(15)
    with pytest.raises(InvalidInput, match="slice-span: slice span 0 ms"):
        SliceGrid(0)


@given(times, st.integers(0, 10**6), times, st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_window_finds_every_segment_that_overlaps_it(
    start_ms: int, length_ms: int, window_ms: int, window_length_ms: int, span_ms: int
) -> None:
    """A segment and an overlapping window always share a slice; the window is moved next to the segment."""
    span_ms = max(span_ms, window_length_ms // 50 + 1)
    grid = SliceGrid(span_ms)
    segment = Segment("s", 1, start_ms, start_ms + length_ms, "s", 1, 1)
    near_ms = start_ms + window_ms % (length_ms + window_length_ms + 2) - window_length_ms - 1
    window = Interval(near_ms, near_ms + window_length_ms)
    if segment.overlaps(window):
        assert set(grid.keys_for_segment(segment)) & set(grid.keys_for_window(window))


def test_a_segment_in_too_many_slices_is_wide_and_so_is_one_without_times() -> None:
    """Every window reads `wide` as well."""
    grid = SliceGrid(10)
    just = Segment("s", 1, 0, SLICES_PER_SEGMENT_MAX * 10 - 1, "s", 1, 1)
    over = Segment("s", 1, 0, SLICES_PER_SEGMENT_MAX * 10, "s", 1, 1)
    timeless = Segment("s", 1, None, None, "s", 1, 1)
    assert len(grid.keys_for_segment(just)) == SLICES_PER_SEGMENT_MAX
    assert grid.keys_for_segment(over) == grid.keys_for_segment(timeless) == (WIDE,)
    assert grid.keys_for_window(Interval(5, 25)) == ("0", "10", "20", WIDE)
    assert grid.keys_for_window(Interval(-5, 0)) == ("-10", WIDE)


def test_a_mark_and_a_revert_keep_what_was_built() -> None:
    """Files, fingerprint and attempt stay through STALE; only the versions are those of the revert."""
    stale = BUILT.stale(CAUSE)
    assert (stale.state, stale.fingerprint, stale.attempt_id, stale.cause) == (
        State.STALE,
        Fingerprint(1, 7),
        "a1",
        CAUSE,
    )
    back = stale.reverted({"0": 5})
    assert (back.state, back.attempt_id, back.slice_versions) == (State.VALID, "a1", {"0": 5})


def test_an_entry_cannot_contradict_itself() -> None:
    """VALID has been VALID, and what was built has a fingerprint: a broken invariant is our own bug."""
    with pytest.raises(AssertionError):
        Entry(State.VALID, ever_valid=False)
    with pytest.raises(AssertionError):
        Entry(State.STALE, ever_valid=True)
    with pytest.raises(AssertionError):
        Entry(State.STALE, ever_valid=False, fingerprint=EMPTY)


def test_the_watermark_is_the_end_of_the_run_of_once_valid_buckets() -> None:
    """STALE does not stop it, never built and VACANT do."""
    shard = Shard({0: BUILT, 10: BUILT.stale(CAUSE), 20: synthesized(CAUSE), 30: BUILT})
    assert watermark.advanced(0, GRID, shard.get) == 20
    assert watermark.advanced(20, GRID, shard.get) == 20
    assert watermark.advanced(30, GRID, shard.get) == 40
    assert watermark.advanced(-10, GRID, shard.get) == -10


def test_only_a_write_that_could_be_next_in_line_depends_on_the_header() -> None:
    """The first bucket of the next shard may become the frontier without a write to its own shard."""
    first = GRID.shard_start(1)
    at = {"watermark_ms": first - 10, "grid": GRID}
    assert watermark.depends_on_header(first, **at, shard=Shard({first: BUILT})) is True
    assert watermark.depends_on_header(first + 10, **at, shard=Shard({first + 10: BUILT})) is False
    assert watermark.depends_on_header(first + 10, **at, shard=Shard({first: BUILT, first + 10: BUILT})) is True
    assert watermark.depends_on_header(first + 10, **at, shard=Shard({first: synthesized(CAUSE)})) is False
    assert watermark.depends_on_header(first - 20, **at, shard=Shard()) is False
    assert watermark.depends_on_header(first - 10, **at, shard=Shard()) is False


def test_coverage_is_half_open_and_nothing_before_any_data() -> None:
    """`[coverage start, watermark)`."""
    definition = ViewDefinition("v", "t", "SELECT 1", "h", 10, "/v")
    header = ViewHeader(definition, "i", 0, 10, 30)
    assert [header.covers(s) for s in (0, 10, 20, 30)] == [False, True, True, False]
    assert ViewHeader(definition, "i", 0).covers(10) is False
