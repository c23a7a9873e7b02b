"""OffsetTracker under every finishing order hypothesis can think of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from floodmark.core.offsets import OffsetTracker

RECORDS, IN_FLIGHT_MAX, FAILING = 12, 8, 5


@pytest.mark.scenario("K2")
@given(data=st.data())
def test_a_failing_record_holds_the_position_whatever_finishes_around_it(data: st.DataObject) -> None:
    """Offsets 0 to 11, eight in flight, 5 failing, any finishing order: the position ends at exactly 5."""
    tracker = OffsetTracker()
    waiting = list(range(RECORDS))
    in_flight: list[int] = []
    while waiting or in_flight != [FAILING]:
        while waiting and len(in_flight) < IN_FLIGHT_MAX:
            in_flight.append(waiting.pop(0))
            tracker.start(in_flight[-1])
        offset = data.draw(st.sampled_from([offset for offset in in_flight if offset != FAILING]), label="finishes")
        in_flight.remove(offset)
        tracker.finish(offset)
        assert tracker.position == min([*in_flight, *waiting[:1]]) <= FAILING
    assert tracker.position == FAILING


class TrackerAgainstSet(RuleBasedStateMachine):
    """The tracker beside the plainest model of it: the set of outstanding offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.outstanding: set[int] = set()
        self.finished: set[int] = set()
        self.next_offset: int | None = None

    @rule(gap=st.integers(0, 3))
    def start(self, gap: int) -> None:
        offset = (self.next_offset or 0) + gap
        self.tracker.start(offset)
        self.outstanding.add(offset)
        self.next_offset = offset + 1

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.outstanding)))
        self.tracker.finish(offset)
        self.outstanding.remove(offset)
        self.finished.add(offset)

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def finish_again(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.finished)))
        with pytest.raises(AssertionError, match=f"offset {offset} "):
            self.tracker.finish(offset)

    @invariant()
    def the_position_is_the_lowest_outstanding(self) -> None:
        assert self.tracker.position == min(self.outstanding, default=self.next_offset)

    @invariant()
    def everything_is_counted(self) -> None:
        position = self.tracker.position
        above = {offset for offset in self.finished if position is not None and offset > position}
        assert self.tracker.outstanding == len(self.outstanding)
        assert self.tracker.span == len(self.outstanding | above)


@pytest.mark.scenario("K2")
def test_the_position_is_always_the_lowest_outstanding_offset() -> None:
    """INV-8: with gaps, in any order, the position never passes an unfinished record and none finishes twice."""
    run_state_machine_as_test(TrackerAgainstSet)
