"""What OffsetTracker promises, case by case. The property suite holds the same for every order."""

import pytest

from floodmark.core.offsets import OffsetTracker


def tracker(*offsets: int) -> OffsetTracker:
    tracking = OffsetTracker()
    for offset in offsets:
        tracking.start(offset)
    return tracking


def test_nothing_to_commit_before_the_first_record() -> None:
    """An idle partition has no position: committing one would invent progress."""
    assert tracker().position is None


def test_started_work_holds_the_position_at_itself() -> None:
    """A record in flight is not yet durable, so the position is its own offset."""
    assert tracker(7, 8).position == 7


def test_when_all_is_finished_the_position_is_one_past_the_newest() -> None:
    """Kafka's committed offset is the next one to read."""
    tracking = tracker(7, 8)
    tracking.finish(8)
    tracking.finish(7)
    assert (tracking.position, tracking.outstanding, tracking.span) == (9, 0, 0)


def test_work_finished_above_an_unfinished_record_does_not_move_the_position() -> None:
    """INV-8: an offset is committed only when everything below it is durable."""
    tracking = tracker(0, 1, 2)
    tracking.finish(1)
    tracking.finish(2)
    assert (tracking.position, tracking.outstanding, tracking.span) == (0, 1, 3)


def test_finishing_the_lowest_jumps_over_everything_already_finished() -> None:
    """The position moves to the next unfinished record in one step, not one by one."""
    tracking = tracker(0, 1, 2, 3)
    for offset in (2, 1, 0):
        tracking.finish(offset)
    assert tracking.position == 3


def test_gaps_in_the_log_do_not_hold_the_position() -> None:
    """Compaction and transaction markers leave offsets that never arrive; the position steps over them."""
    tracking = tracker(3, 10, 1_000)
    tracking.finish(3)
    assert tracking.position == 10
    tracking.finish(10)
    assert tracking.position == 1_000


def test_new_work_after_everything_finished_holds_the_position_again() -> None:
    """A gap before the new record is passed: nothing in it can still be unfinished."""
    tracking = tracker(0)
    tracking.finish(0)
    tracking.start(5)
    assert (tracking.position, tracking.next_offset) == (5, 6)


@pytest.mark.parametrize("first", [0, 2], ids=["below the position", "above the position"])
def test_finishing_twice_is_refused(first: int) -> None:
    """One record has one effect; a second finish means two pieces of work believe they own it."""
    tracking = tracker(0, 1, 2)
    tracking.finish(first)
    with pytest.raises(AssertionError, match=f"offset {first} "):
        tracking.finish(first)


@pytest.mark.parametrize("started", [(), (0, 1)], ids=["nothing started", "above the newest"])
def test_finishing_a_record_that_was_never_handed_out_is_refused(started: tuple[int, ...]) -> None:
    """Accepted, it would let the position pass that record unfinished once it arrives."""
    with pytest.raises(AssertionError, match="offset 7 is not outstanding"):
        tracker(*started).finish(7)


@pytest.mark.parametrize("offset", [4, 3], ids=["same again", "lower"])
def test_an_offset_that_does_not_increase_is_refused(offset: int) -> None:
    """A partition delivers in order; anything else means two assignments share one tracker."""
    with pytest.raises(AssertionError, match=f"offset {offset} arrived after 5"):
        tracker(4).start(offset)


def eleven_of_twelve_are_finished_and_the_position_is_the_one_that_is_not() -> None:
    """K2 on the tracker alone: 5 fails, the others finish newest first."""
    tracking = tracker(*range(12))
    for offset in (11, 10, 9, 8, 7, 6, 4, 3, 2, 1, 0):
        tracking.finish(offset)
    assert tracking.position == 5


def test_one_failing_record_holds_the_position_at_itself() -> None:
    """INV-8."""
    eleven_of_twelve_are_finished_and_the_position_is_the_one_that_is_not()


def test_matching_finished_records_first_in_first_out_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """K2 put back: whatever finishes is taken for the oldest one outstanding, so the position passes the failing 5."""

    def finish_the_oldest(self: OffsetTracker, _offset: int) -> None:
        self._outstanding.remove(self._started.popleft())

    monkeypatch.setattr(OffsetTracker, "finish", finish_the_oldest)
    with pytest.raises(AssertionError):
        eleven_of_twelve_are_finished_and_the_position_is_the_one_that_is_not()
