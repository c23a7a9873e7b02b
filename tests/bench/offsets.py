"""Finishing a record costs the same however many are outstanding: OffsetTracker is amortised O(1)."""

import random
import time
from collections.abc import Callable, Sequence

from floodmark.core.offsets import OffsetTracker
from tests.bench.harness.figures import AtMost, Measurement, Run, figure, interleaved_ratio

FEW, MANY = 8, 50_000
NAMES = (f"finish_ns_{MANY}_outstanding", f"finish_ns_{FEW}_outstanding")
Order = Callable[[int], Sequence[int]]


def finish_ns(outstanding: int, order: Order) -> float:
    """Time for one finish, over as many windows as make MANY finishes. Starting the records is not timed."""
    orders = [order(outstanding) for _ in range(MANY // outstanding)]
    trackers = [OffsetTracker() for _ in orders]
    for tracker in trackers:
        for offset in range(outstanding):
            tracker.start(offset)
    started_ns = time.perf_counter_ns()
    for tracker, finishing in zip(trackers, orders, strict=True):
        for offset in finishing:
            tracker.finish(offset)
    elapsed_ns = time.perf_counter_ns() - started_ns
    assert all(tracker.position == outstanding for tracker in trackers), "a tracker lost a record"
    return elapsed_ns / (len(orders) * outstanding)


def many_over_few(order: Order) -> Measurement:
    return interleaved_ratio(lambda: finish_ns(MANY, order), lambda: finish_ns(FEW, order), names=NAMES)


@figure(name="finish in arrival order, 50,000 outstanding over 8", goal=AtMost(3))
def arrival_order(run: Run) -> Measurement:
    return many_over_few(range)


@figure(name="finish newest first, 50,000 outstanding over 8", goal=AtMost(3))
def newest_first(run: Run) -> Measurement:
    return many_over_few(lambda outstanding: range(outstanding - 1, -1, -1))


@figure(name="finish in any order, 50,000 outstanding over 8", goal=AtMost(3))
def any_order(run: Run) -> Measurement:
    randomness = random.Random(run.number)
    return many_over_few(lambda outstanding: randomness.sample(range(outstanding), outstanding))
