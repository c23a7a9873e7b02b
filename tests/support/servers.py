"""Real servers for tests: one ZooKeeper and one Kafka for the session, and a ZooKeeper that a test may kill."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from floodmark.local.kafka import KafkaServer
from floodmark.local.ports import pick_free_port, pick_free_ports
from floodmark.local.zookeeper import ZooKeeperEnsemble, ZooKeeperServer


@contextmanager
def plain_client(hosts: str) -> Iterator[KazooClient]:
    """Someone at ZooKeeper who is none of ours: no credentials, no ledger."""
    client = KazooClient(hosts)
    client.start(timeout=20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for all tests; each works below a path of its own."""
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), pick_free_port())
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One Kafka for all tests; each uses topics and groups of its own."""
    server = KafkaServer(tmp_path_factory.mktemp("kafka"), *pick_free_ports(2))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def private_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper of the test's own, to be killed and restarted at will."""
    server = ZooKeeperServer(tmp_path, pick_free_port())
    server.start()
    yield server
    server.kill()


@pytest.fixture
def private_kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    """A Kafka of the test's own, to be killed and restarted at will."""
    server = KafkaServer(tmp_path, *pick_free_ports(2))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def private_ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeepers of the test's own."""
    first, second, third = pick_free_ports(3)
    ensemble = ZooKeeperEnsemble(tmp_path, (first, second, third))
    ensemble.start()
    yield ensemble
    ensemble.kill()
