"""The explorer itself: it walks exactly the schedules there are, and counts those it does not walk."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from floodmark.core.errors import OutcomeUnknown
from floodmark.core.registry import Put
from floodmark.core.transitions import Mode
from floodmark.ledger.store import Node, Set, Store
from tests.simulation.explorer import Actor, Explorer, Nodes, Report
from tests.simulation.ledger_cases import (
    LedgerOracle,
    event_count,
    marker,
    ready_for,
    registrar,
    without_slice_checks,
    worker,
)
from tests.support.ledger_kit import segment
from tests.support.memory_store import MemoryStore


class LostUpdates:
    """Every increment that was written must show in the sum."""

    def begin(self, nodes: Nodes) -> int:
        return 0

    def wrote(self, note: int, before: Nodes, after: Nodes) -> int:
        return note + 1

    def wrong_at_end(self, note: int, nodes: Nodes, results: object) -> str | None:
        return None if int(nodes["/n"].data) == note else "an update was lost"


def increment(*, checking: bool) -> Callable[[Store], None]:
    def run(store: Store) -> None:
        node = store.read("/n")
        assert node is not None
        with suppress(OutcomeUnknown):
            store.commit([Set("/n", b"%d" % (int(node.data) + 1), node.version if checking else -1)])

    return run


def increments(*names: str, checking: bool, merging: bool, losses_max: int = 0) -> Report:
    store = MemoryStore()
    store.nodes["/n"] = Node(b"0", 0)
    actors = [Actor(n, lambda made: made, increment(checking=checking), answers_get_lost=True) for n in names]
    return Explorer(store.nodes, actors, LostUpdates(), losses_max, merging).explore()


@pytest.mark.parametrize("merging", [False, True])
def test_the_explorer_finds_the_lost_update_in_exactly_the_schedules_that_have_it(*, merging: bool) -> None:
    """Two actors of two steps have six schedules; all but the two serial ones lose an update."""
    unchecked = increments("one", "other", checking=False, merging=merging)
    assert (unchecked.interleavings, unchecked.wrong) == (6, 4)
    checked = increments("one", "other", checking=True, merging=merging)
    assert (checked.interleavings, checked.wrong) == (6, 0)


@pytest.mark.parametrize("merging", [False, True])
def test_an_answer_is_lost_both_ways_and_no_more_often_than_allowed(*, merging: bool) -> None:
    """One write is answered, lost before it landed, or lost after: three runs. Of two writes, at most one is lost."""
    assert increments("one", checking=False, merging=merging, losses_max=1).interleavings == 3
    # Six schedules; in each, nothing is lost, or one of two answers in one of two ways.
    two = increments("one", "other", checking=False, merging=merging, losses_max=1)
    assert two.interleavings == 6 * (1 + 2 * 2)


def test_counting_interleavings_gives_what_walking_them_gives() -> None:
    """Schedules that meet in one state have one future; if that were wrong, these numbers would differ."""
    start, header = ready_for(Mode.APPEND)
    actors = [
        worker("worker", header.incarnation, 0, wrap=without_slice_checks, answers_get_lost=True),
        registrar("registrar", [Put(segment("late", 0.5, 1))]),
        marker("mark", after_events=event_count(start) + 1),
    ]
    oracle = LedgerOracle(header.incarnation)
    counted, walked = (
        Explorer(start, actors, oracle, losses_max=1, merging=merging).explore() for merging in (True, False)
    )
    assert (counted.interleavings, counted.wrong) == (walked.interleavings, walked.wrong)
    assert counted.rules == walked.rules
    assert counted.states < walked.states
