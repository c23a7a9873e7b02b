"""One pipeline for all tests of a module, and the one process of it that they share; each has tables of its own.

Environment variables for its processes are the module's `SETTINGS`.
"""

from collections.abc import Iterator, Mapping

import pytest

from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.lab import Lab
from tests.support.pipeline import Pipeline, pipeline_on
from tests.support.service_process import ServiceUnderTest
from tests.support.task_reader import TaskReader


@pytest.fixture(scope="module")
def pipeline(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    zookeeper: ZooKeeperServer,
    kafka: KafkaServer,
) -> Iterator[Pipeline]:
    settings: Mapping[str, str] = getattr(request.module, "SETTINGS", {})
    with pipeline_on(tmp_path_factory.mktemp("pipeline"), zookeeper, kafka, **settings) as made:
        yield made


@pytest.fixture(scope="module")
def ingester(pipeline: Pipeline) -> ServiceUnderTest:
    return _started(pipeline, "ingester", once="partitions_assigned")


@pytest.fixture(scope="module")
def consistency(pipeline: Pipeline) -> ServiceUnderTest:
    return _started(pipeline, "consistency", once="partitions_assigned")


@pytest.fixture(scope="module")
def scheduler(pipeline: Pipeline) -> ServiceUnderTest:
    return _started(pipeline, "scheduler", once="leadership_taken")


@pytest.fixture
def lab(pipeline: Pipeline, consistency: ServiceUnderTest) -> Lab:
    return Lab(pipeline)


@pytest.fixture(scope="module")
def reader(pipeline: Pipeline, scheduler: ServiceUnderTest) -> Iterator[TaskReader]:
    made = TaskReader(pipeline)
    yield made
    made.close()


def _started(pipeline: Pipeline, service: str, *, once: str) -> ServiceUnderTest:
    running = pipeline.start(service)
    running.await_event(once)
    return running
