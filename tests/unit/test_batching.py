"""Batches grow with the load, and a handler that breaks its promise ends the service."""

from collections.abc import Callable, Sequence

import pytest

from floodmark.bus.batching import BatchingSink
from floodmark.bus.delivery import Delivery
from floodmark.core.errors import Unavailable
from tests.unit.test_pump import P0, Bench


class Later:
    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        self.work.append(work)


def test_what_arrives_while_a_batch_is_handled_is_the_next_batch() -> None:
    """Nothing waits for a batch to fill up; under load batches grow by themselves."""
    bench, executor = Bench(), Later()
    batches: list[list[int]] = []

    def handle(batch: Sequence[Delivery[bytes]]) -> None:
        batches.append([d.record.offset for d in batch])
        for delivery in batch:
            delivery.finish()
        if len(batches) == 1:
            bench.source.append(P0, 5)
            bench.pump.step()

    bench.pump._sink = BatchingSink(handle, executor, batch_max=3)
    bench.source.append(P0, 1)
    bench.source.assign(P0)
    bench.pump.step()
    executor.work.pop()()
    assert batches == [[0], [1, 2, 3], [4, 5]]
    assert executor.work == []
    bench.steps()
    assert bench.source.committed[P0] == 6


def test_a_handler_that_raises_instead_of_telling_outcomes_ends_the_loop() -> None:
    """Even an Unavailable: some of the batch may have been told already, so nothing can be offered again."""
    bench, executor = Bench(), Later()

    def handle(batch: Sequence[Delivery[bytes]]) -> None:
        raise Unavailable("not told to anyone")

    bench.pump._sink = BatchingSink(handle, executor, batch_max=3)
    bench.source.append(P0, 2)
    bench.source.assign(P0)
    bench.pump.step()
    executor.work.pop()()
    with pytest.raises(AssertionError, match="a batch of 2 ended in Unavailable"):
        bench.pump.step()
    assert P0 not in bench.source.committed
