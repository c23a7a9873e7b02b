"""A view that stands still although its input moves says so, and names the bucket; so does one that misses a file."""

import pytest

from floodmark.contracts.messages import BuildBucket
from floodmark.core.dispatch import Policy
from floodmark.core.intervals import Interval
from floodmark.core.registry import Put
from floodmark_scheduler.watch import CONDITIONS
from tests.support.eventually import eventually, never
from tests.support.ledger_kit import HOUR_MS, cause, segment
from tests.support.pipeline import Pipeline
from tests.support.service_process import ServiceUnderTest, new_table
from tests.support.task_reader import TaskReader

pytestmark = pytest.mark.stack

STALLED_AFTER_MS = 1_000
SETTINGS = {"FLOODMARK_SCHEDULER__STALLED_AFTER_MS": str(STALLED_AFTER_MS)}


@pytest.fixture
def view(pipeline: Pipeline, scheduler: ServiceUnderTest) -> str:
    """A view of three hours, whose table has its name."""
    name = new_table()
    pipeline.table(name)
    pipeline.ledger.registry.apply(name, [Put(segment("a", 0, 3))])
    pipeline.view(name, name)
    return name


def pinned(scheduler: ServiceUnderTest, view: str) -> set[str]:
    """The conditions that the metrics page shows for this view."""
    lines = scheduler.ask("/metrics")[1].splitlines()
    mine = [line for line in lines if line.startswith("floodmark_view_pinned{") and f'view="{view}"' in line]
    return {c for c in CONDITIONS for line in mine if f'condition="{c}"' in line and line.endswith(" 1.0")}


def await_tasks(reader: TaskReader, view: str, count: int) -> list[BuildBucket]:
    def enough() -> list[BuildBucket]:
        found = [t for t in reader.tasks() if t.view == view]
        assert len(found) >= count, f"{len(found)} of {count} tasks of {view}"
        return sorted(found, key=lambda t: t.bucket_start_ms)

    return eventually(enough, what=f"{count} tasks of {view}")


@pytest.mark.scenario("E4")
def test_a_view_that_does_not_follow_its_input_is_stalled_until_it_moves(
    pipeline: Pipeline, scheduler: ServiceUnderTest, reader: TaskReader, view: str
) -> None:
    """The bucket that pins it is the one at the watermark, however many behind it are done."""
    first, *others = await_tasks(reader, view, 3)
    pipeline.work(others)
    event = scheduler.await_event("view_stalled", view=view)
    assert (event["bucket_ms"], event["progress"]) == (0, "offered")
    assert event["waited_ms"] >= STALLED_AFTER_MS
    assert pinned(scheduler, view) == {"stalled"}
    pipeline.work([first])
    scheduler.await_event("view_moved_on", view=view)
    assert pinned(scheduler, view) == set()


@pytest.mark.scenario("E4")
def test_a_stale_bucket_that_no_worker_takes_is_reported_wherever_it_lies(
    pipeline: Pipeline, scheduler: ServiceUnderTest, reader: TaskReader, view: str
) -> None:
    """The watermark is where it should be, so it tells nothing. Workers that do not hear their tasks look like this."""
    pipeline.work(await_tasks(reader, view, 3))
    eventually(lambda: pinned(scheduler, view) == set(), what="the view is free")
    pipeline.ledger.registry.apply(view, [Put(segment("b", 1, 2))])
    pipeline.ledger.views.mark_stale(view, [Interval(HOUR_MS, 2 * HOUR_MS)], cause())
    eventually(lambda: pinned(scheduler, view) == {"stalled"}, what="the view is stalled")
    event = scheduler.events("view_stalled", view=view)[-1]
    assert (event["bucket_ms"], event["progress"], event["worker"]) == (HOUR_MS, "offered", "")
    pipeline.work([t for t in await_tasks(reader, view, 4) if t.mode == "OVERWRITE"])
    eventually(lambda: pinned(scheduler, view) == set(), what="the view is free")


@pytest.mark.scenario("E4")
def test_a_bucket_that_misses_an_input_file_is_frozen_and_not_merely_stalled(
    pipeline: Pipeline, scheduler: ServiceUnderTest, reader: TaskReader, view: str
) -> None:
    """At once, with the worker's words; a failure of another kind is none. It ends with the source's repair."""
    task, *others = await_tasks(reader, view, 3)
    header = pipeline.ledger.views.header(view)
    pipeline.work(others)
    policy = Policy(tries_max=1, frozen_tries_max=1)
    assert pipeline.ledger.dispatch.fail(
        header, 0, task_id=task.task_id, error="a.parquet is missing", policy=policy, frozen=True
    )
    event = scheduler.await_event("view_frozen", view=view)
    assert (event["bucket_ms"], event["error"], event["progress"]) == (0, "a.parquet is missing", "quarantined")
    assert pinned(scheduler, view) == {"frozen"}
    pipeline.ledger.registry.apply(view, [Put(segment("a", 0, 3, crc=2))])
    repaired = await_tasks(reader, view, 4)
    pipeline.work([t for t in repaired if t.bucket_start_ms == 0 and t.task_id != task.task_id])
    assert pipeline.ledger.views.header(view).watermark_ms == 3 * HOUR_MS
    eventually(lambda: pinned(scheduler, view) == set(), what="the view is free")


@pytest.mark.scenario("E4")
def test_a_view_without_new_input_is_neither_stalled_nor_frozen(
    pipeline: Pipeline, scheduler: ServiceUnderTest, reader: TaskReader, view: str
) -> None:
    """Everything is built and nothing comes, for much longer than a stall takes."""
    pipeline.work(await_tasks(reader, view, 3))
    eventually(lambda: pinned(scheduler, view) == set(), what="the view is free")
    told = len(scheduler.events(view=view))  # on a busy machine it may have stood still until now
    never(lambda: pinned(scheduler, view), for_s=2 * STALLED_AFTER_MS / 1000, every_s=0.2, what="a condition")
    assert scheduler.events(view=view)[told:] == []
