"""How a slice is cut into parts as it fills, and that it lists the same whatever its parts are."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.core import segments as slices
from floodmark.core.intervals import Interval
from floodmark.core.segments import EMPTY_SLICE, PART_BYTES_MAX, Part, Segment, Slice, segments_in, weight_of
from tests.support.ledger_kit import HOUR_MS, segment

pytestmark = pytest.mark.scenario("I9")


def named(*names: str, size: int = 0) -> dict[str, Segment]:
    return {name: replace(segment(name, 0, 1), path=f"{name}{'x' * size}") for name in names}


def many(count: int, *, first: int = 0) -> dict[str, Segment]:
    return named(*(f"{n:06d}" for n in range(first, first + count)))


def fullest(listed: Slice) -> int:
    return max(part.weight for part in listed.parts.values())


def test_a_small_slice_is_one_part_in_its_own_node() -> None:
    listed = EMPTY_SLICE.changed((), named("a", "b"), at=1).changed({"a"}, named("c"), at=2)
    assert listed == Slice.of(named("b", "c").values())
    assert not listed.is_split
    assert listed.parts[0].at == 2


def test_a_slice_that_fills_is_split_and_only_the_last_part_is_written_then() -> None:
    listed, written = EMPTY_SLICE, list[set[int]]()
    for n in range(50):
        listed = listed.changed((), many(100, first=100 * n), at=n)
        written.append({number for number, part in listed.parts.items() if part.at == n})
    assert listed.segments == many(5_000)
    assert len(listed.parts) > 5
    assert fullest(listed) <= PART_BYTES_MAX
    assert max(map(len, written)) <= 2, "what was there before is not written again"
    assert 0 not in listed.parts


def test_what_is_replaced_stays_in_its_part_and_what_goes_leaves_the_others_alone() -> None:
    full = EMPTY_SLICE.changed((), many(5_000), at=1)
    name = next(iter(full.parts[2].segments))
    again = {name: replace(full.parts[2].segments[name], crc=9)}
    replaced = full.changed({name}, again, at=2)
    assert [number for number, part in replaced.parts.items() if part.at == 2] == [2]
    assert replaced.parts[2].segments[name].crc == 9
    removed = replaced.changed({name}, {}, at=3)
    assert [number for number, part in removed.parts.items() if part.at == 3] == [2]
    assert removed.segments.keys() == many(5_000).keys() - {name}


def test_parts_that_were_emptied_are_filled_again() -> None:
    """A slice that lives for years, such as `wide`, has as many parts as it needed when it was fullest."""
    listed = EMPTY_SLICE.changed((), many(3_000), at=0)
    most = len(listed.parts)
    for n in range(1, 30):
        gone, come = many(300, first=300 * (n - 1)), many(300, first=2_700 + 300 * n)
        listed = listed.changed(gone.keys(), come, at=n)
    assert listed.segments == many(3_000, first=300 * 29)
    assert len(listed.parts) <= 2 * most


def test_a_segment_larger_than_a_part_has_one_for_itself() -> None:
    huge = named("huge", size=PART_BYTES_MAX)
    listed = EMPTY_SLICE.changed((), named("a"), at=1).changed((), huge, at=2).changed((), named("b"), at=3)
    assert [set(part.segments) for part in listed.parts.values()] == [{"a", "b"}, {"huge"}]


def test_a_segment_that_grows_out_of_its_part_moves_to_another() -> None:
    listed = EMPTY_SLICE.changed((), many(500), at=1)
    assert not listed.is_split
    grown = named("000007", size=PART_BYTES_MAX // 2)
    moved = listed.changed(grown.keys(), grown, at=2)
    assert moved.segments == many(500) | grown
    assert len(moved.parts) > 1
    assert fullest(moved) <= PART_BYTES_MAX


def test_a_slice_from_before_there_were_parts_is_cut_when_it_is_changed_next() -> None:
    old = Slice.of(many(7_000).values())
    assert old.is_oversized
    for changed in (old.changed((), named("new"), at=5), old.changed({"000003"}, {}, at=5), old.changed((), {}, at=5)):
        assert changed.is_split
        assert not changed.is_oversized
        assert {part.at for part in changed.parts.values()} == {5}
        assert len(changed.segments) in (6_999, 7_000, 7_001)


@pytest.mark.parametrize("start_ms", [None, 0])
def test_a_part_is_passed_over_only_where_none_of_its_segments_can_have_rows(start_ms: int | None) -> None:
    part = Part(
        {
            "a": segment("a", 10, 11),
            "b": replace(segment("b", 20, 21), start_ms=start_ms, last_ms=start_ms),
        }
    )
    found = [s.name for s in part.overlapping(Interval(30 * HOUR_MS, 31 * HOUR_MS))]
    assert found == (["b"] if start_ms is None else [])
    assert [s.name for s in part.overlapping(Interval(10 * HOUR_MS, 11 * HOUR_MS))][:1] == ["a"]


names = st.text(alphabet="abcdé", min_size=1, max_size=3)
changes = st.lists(st.tuples(st.sets(names, max_size=6), st.dictionaries(names, st.integers(0, 400), max_size=8)))


@given(changes, st.integers(0, 20))
def test_a_slice_lists_what_came_and_has_not_gone_however_it_is_cut(
    batches: Sequence[tuple[set[str], dict[str, int]]], hour: int
) -> None:
    """The model is one dictionary; parts are as small as two segments, so that everything happens."""
    model: dict[str, Segment] = {}
    listed = EMPTY_SLICE
    before = slices.PART_BYTES_MAX
    slices.PART_BYTES_MAX = 300  # type: ignore[misc]
    try:
        for at, (gone, sizes) in enumerate(batches, start=1):
            come = {name: replace(segment(name, size % 20, 21), path="x" * size) for name, size in sizes.items()}
            taken = (gone | come.keys()) & model.keys()
            last, listed = listed, listed.changed(taken, come, at=at)
            model = {name: s for name, s in model.items() if name not in taken} | come
            assert listed.segments == model
            assert sum(len(part.segments) for part in listed.parts.values()) == len(model), "each in one part"
            assert last.is_split <= listed.is_split
            for number, part in listed.parts.items():
                assert part.at == at or last.parts[number] is part
                assert part.weight == sum(map(weight_of, part.segments.values()))
                assert part.weight <= 300 or len(part.segments) == 1
    finally:
        slices.PART_BYTES_MAX = before  # type: ignore[misc]
    window = Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS)
    assert segments_in(window, [listed]) == {n: s for n, s in model.items() if s.overlaps(window)}
