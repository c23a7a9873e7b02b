"""The whole system as processes: the event pipeline with real workers, and a second engine that checks their rows."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from floodmark.bus.ports import Outgoing
from floodmark.contracts.envelope import decode, encode, originate
from floodmark.contracts.messages import BucketBuilt, BuildBucket, SourceFingerprint
from floodmark.contracts.topics import RESULTS, TASKS
from floodmark.core.scheduling import task_id
from floodmark.core.transitions import Mode
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually
from tests.support.kafka_tools import read_all
from tests.support.oracle import Oracle, Recomputation
from tests.support.pipeline import Pipeline
from tests.support.service_process import ServiceUnderTest

SMALL_SPARK = {
    "FLOODMARK_SPARK__MASTER": "local[2]",
    "FLOODMARK_SPARK__OPTIONS": '{"spark.driver.memory": "768m", "spark.sql.shuffle.partitions": "2"}',
    "FLOODMARK_WORKER__BACKOFF_FIRST_MS": "500",
    "FLOODMARK_WORKER__BACKOFF_CAP_MS": "2000",
}
"""Two workers, and whatever else runs, must fit on one small machine."""
START_WITHIN_S = 240
"""Spark takes ten seconds to start on a machine that does nothing else."""


@dataclass
class System(Oracle, Pipeline):
    recomputations: dict[str, Recomputation] = field(default_factory=dict)

    def start_workers(self, count: int = 2, **environ: str) -> list[ServiceUnderTest]:
        workers = [self.start("worker", **SMALL_SPARK, **environ) for _ in range(count)]
        for worker in workers:
            worker.await_event("service_started", within_s=START_WITHIN_S)
        return workers

    def start_odd_worker(self, signal_name: str, step: str, target: str = "itself", **environ: str) -> ServiceUnderTest:
        """A worker that sends itself, or its `spark`, this signal when an attempt first reaches this step."""
        command = ("tests.integration.odd_worker", signal_name, step, target)
        return self.start_command(f"odd-{step}", command, **SMALL_SPARK, **environ)

    def await_in_group(self, *workers: ServiceUnderTest) -> None:
        """Until each of these workers has started and has partitions to read."""
        for worker in workers:
            worker.await_event("service_started", within_s=2 * START_WITHIN_S)
        for worker in workers:
            eventually(lambda w=worker: _partitions(w), within_s=120, what="partitions for a worker")  # type: ignore[misc]

    # -- the scheduler, played by the test -------------------------------------------------------------------------

    def task(self, view: str, start_ms: int, mode: str) -> BuildBucket:
        """The task a scheduler would give out for this bucket now."""
        header = self.ledger.views.header(view)
        definition = header.definition
        window = definition.grid.window(start_ms)
        source = self.ledger.registry.read_window(definition.table, window).source
        return BuildBucket(
            task_id=task_id(header.incarnation, start_ms, Mode(mode), source.fingerprint),
            view=view,
            incarnation=header.incarnation,
            bucket_start_ms=start_ms,
            bucket_end_ms=window.end_ms,
            mode=mode,
            lane="live",
            fingerprint=SourceFingerprint(count=source.fingerprint.count, hash=source.fingerprint.hash),
            slice_versions=dict(source.slice_versions),
            definition_hash=definition.hash,
            dispatched_at_ms=0,
            dispatch_try=1,
        )

    def send(self, tasks: Sequence[BuildBucket]) -> None:
        envelopes = [originate(t, event_id=uuid.uuid4().hex, source="test", time_ms=None) for t in tasks]
        encoded = [encode(e) for e in envelopes]
        self.publisher.publish([Outgoing(TASKS.name, e.key, e.value, e.headers) for e in encoded])

    def results(self, view: str) -> list[BucketBuilt]:
        """How attempts ended, as far as it was told."""
        found = read_all(self.kafka, self._connection.qualified(RESULTS.name), partitions=RESULTS.partitions)
        messages = [decode(RESULTS.name, value, list(headers.items()), "here").message for value, headers in found]
        return [m for m in messages if isinstance(m, BucketBuilt) and m.view == view]


def _partitions(worker: ServiceUnderTest) -> set[str]:
    """What a worker reads now, by what it logged of assignments."""
    held: set[str] = set()
    for event in worker.events():
        if event["event"] == "partitions_assigned":
            held |= set(event["partitions"])
        elif event["event"] in ("partitions_revoked", "partitions_lost"):
            held -= set(event["partitions"])
    return held


@pytest.fixture(scope="session")
def system(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> Iterator[System]:
    """Every service, and two workers, for all tests that ask; each test has tables and views of its own."""
    with system_on(tmp_path_factory.mktemp("system"), zookeeper, kafka) as made:
        made.start_all()
        made.start_workers(2)
        yield made


@contextmanager
def system_on(directory: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer, **settings: str) -> Iterator[System]:
    made = System(directory, zookeeper, kafka, dict(settings))
    try:
        yield made
    finally:
        made.close()
