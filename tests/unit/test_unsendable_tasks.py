"""Tasks at the bounds of what a message can say, and those beyond: no view ever stops another (INV-10, INV-14)."""

from dataclasses import replace

import pytest

from floodmark.contracts.envelope import decode
from floodmark.contracts.messages import BucketBuilt
from floodmark.contracts.topics import RESULTS
from floodmark.core.bounds import BUCKET_MAX_MS, TIME_MIN_MS
from floodmark.core.buckets import State
from floodmark.core.dispatch import Progress
from floodmark.core.errors import InvalidInput
from floodmark.core.registry import Put
from floodmark.core.segments import Segment
from tests.support.bus_doubles import FrozenClock
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, segment
from tests.support.scheduler_office import POLICY, Office
from tests.support.worker_kit import Bench

TODAY_MS = 480_000 * HOUR_MS
"""A day of 2024."""


@pytest.mark.parametrize("width_ms", [5 * HOUR_MS, 168 * HOUR_MS, BUCKET_MAX_MS])
def test_the_bucket_of_the_first_instant_is_given_out_built_and_reported(width_ms: int) -> None:
    """It begins before the year 1, in every message about it, wherever its width does not divide that instant."""
    office = Office(clock=FrozenClock(TODAY_MS))
    ledger = office.kit.ledger
    ledger.registry.create_table(TABLE)
    office.kit.put(Segment("first", 1, TIME_MIN_MS, TIME_MIN_MS, "first.parquet", 1, 100))
    office.kit.put(segment("today", 479_999, 480_000))
    view = ledger.views.create(replace(VIEW, bucket_ms=width_ms), coverage_start_ms=TIME_MIN_MS)
    start_ms = view.definition.grid.start_of(TIME_MIN_MS)
    assert start_ms < TIME_MIN_MS
    office.scheduler.cycle()
    (task,) = [t for t in office.tasks() if t.bucket_start_ms == start_ms]
    bench = Bench(office.kit)
    bench.run(bench.deliver(task))
    (told,) = [decode(RESULTS.name, m.value, list(m.headers), "here").message for m in bench.sent]
    assert isinstance(told, BucketBuilt)
    assert (told.bucket_start_ms, told.outcome) == (start_ms, "committed")
    entry = ledger.views.state(VIEW.name).at(start_ms)
    assert entry is not None
    assert entry.state is State.VALID


def test_a_task_that_no_message_can_hold_fails_is_quarantined_and_stops_no_other_view() -> None:
    """Here its bucket begins years before the first that a view defined by the catalog can have."""
    office = Office(clock=FrozenClock(TODAY_MS))
    ledger, decade_ms = office.kit.ledger, 10 * BUCKET_MAX_MS
    ledger.registry.create_table(replace(TABLE, slice_span_ms=BUCKET_MAX_MS))
    office.kit.put(Segment("first", 1, TIME_MIN_MS, TIME_MIN_MS, "first.parquet", 1, 100))
    office.kit.put(segment("today", 479_999, 480_000))
    view = ledger.views.create(replace(VIEW, bucket_ms=decade_ms), coverage_start_ms=TIME_MIN_MS)
    start_ms = view.definition.grid.start_of(TIME_MIN_MS)
    ledger.registry.create_table(replace(TABLE, name="other", location="/lake/other"))
    ledger.registry.apply("other", [Put(segment("b", 0, 1))])
    ledger.views.create(replace(VIEW, name="good", table="other"), coverage_start_ms=0)

    office.scheduler.cycle()
    assert {t.view for t in office.tasks()} == {VIEW.name, "good"}
    record = ledger.dispatch.records(VIEW.name)[start_ms]
    assert (record.progress, record.tries) == (Progress.FAILED, 1)
    assert "no task can be sent for it: bucket_start_ms: Input should be greater than or equal to" in record.error

    office.clock.sleep_ms(POLICY.unclaimed_max_ms)  # until there is room in its lane again
    office.scheduler.cycle()
    record = ledger.dispatch.records(VIEW.name)[start_ms]
    assert (record.progress, record.tries) == (Progress.QUARANTINED, 2)
    assert start_ms not in {t.bucket_start_ms for t in office.tasks()}


def test_a_message_the_bus_never_takes_is_quarantined_with_what_the_bus_said() -> None:
    """An offer that nobody hears of would be given out again and again, and look like work (INV-10)."""
    office = Office()
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    office.publisher.fails_with = InvalidInput("too-large", "a message is too large")
    office.scheduler.cycle()
    assert office.progress(0) is Progress.FAILED
    office.clock.sleep_ms(1_000)
    office.scheduler.cycle()
    record = office.record(0)
    assert record is not None
    assert (record.progress, record.error) == (Progress.QUARANTINED, "too-large: a message is too large")
