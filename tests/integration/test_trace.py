"""The logs of three services, read together, tell the story of one file by one trace id."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.pipeline import Pipeline, write_parquet
from tests.support.service_process import ServiceUnderTest

pytestmark = pytest.mark.stack
Services = Mapping[str, ServiceUnderTest]
CHAIN = [
    ("ingester", "file_announced"),
    ("ingester", "segment_registered"),
    ("ingester", "event_published"),
    ("consistency", "view_marked"),
    ("scheduler", "task_dispatched"),
]


@pytest.fixture(scope="module")
def services(pipeline: Pipeline) -> Services:
    return pipeline.start_all()


def story(services: Services, trace_id: str) -> list[dict[str, Any]]:
    """Every line that names this trace, from all services, by time."""
    lines = [line for running in services.values() for line in running.events()]
    told = [line for line in lines if trace_id in (line.get("trace_id"), *line.get("trace_ids", ()))]
    return sorted(told, key=lambda line: str(line["timestamp"]))


def await_chain(services: Services, trace_id: str) -> None:
    """Wait until each step is told of. In which order is not promised: each service tells of a step after the next
    one may have seen it."""

    def told() -> bool:
        steps = {(str(line["service"]), str(line["event"])) for line in story(services, trace_id)}
        missing = [step for step in CHAIN if step not in steps]
        assert not missing, f"{missing} not told of"
        return True

    eventually(told, what=f"the whole chain of {trace_id}")


def trace_of(services: Services, path: str) -> str:
    return str(services["ingester"].await_event("file_announced", path=path)["trace_id"])


def test_a_new_file_is_followed_from_its_announcement_to_the_task_that_appends_it(
    pipeline: Pipeline, services: Services
) -> None:
    """Found by the scanner, registered, reported, its range covered, its bucket given out: one trace."""
    location = pipeline.table("fresh")
    pipeline.view("fresh_hourly", "fresh")
    write_parquet(location / "fresh.parquet", 3, 4)
    trace_id = trace_of(services, "fresh.parquet")
    await_chain(services, trace_id)
    (task,) = [line for line in story(services, trace_id) if line["event"] == "task_dispatched"]
    assert (task["view"], task["mode"], task["bucket_ms"]) == ("fresh_hourly", "APPEND", 3 * HOUR_MS)


def test_a_late_file_is_followed_to_the_task_that_rebuilds_its_bucket(pipeline: Pipeline, services: Services) -> None:
    """The bucket was built; a file that comes late marks it STALE and has it overwritten, all under its own trace."""
    location = pipeline.table("late")
    pipeline.view("late_hourly", "late")
    write_parquet(location / "first.parquet", 0, 3)
    pipeline.build_everything("late_hourly", up_to_hour=3)
    write_parquet(location / "late.parquet", 1, 2)
    trace_id = trace_of(services, "late.parquet")
    await_chain(services, trace_id)
    told = {line["event"]: line for line in story(services, trace_id)}
    assert (told["view_marked"]["view"], told["view_marked"]["segments"]) == ("late_hourly", ["late.parquet"])
    assert (told["task_dispatched"]["mode"], told["task_dispatched"]["bucket_ms"]) == ("OVERWRITE", 1 * HOUR_MS)
    assert told["segment_registered"]["registry_version"] == told["event_published"]["registry_version"]
    cause = pipeline.entries("late_hourly")[1].cause
    assert cause is not None
    assert cause.trace_id == trace_id
    (task,) = [t for t in pipeline.tasks() if t.view == "late_hourly" and t.mode == "OVERWRITE"]
    assert cause.marked_at_ms <= task.dispatched_at_ms
