"""The `store` fixture: the same test on the store in memory and on a real ZooKeeper."""

import uuid
from collections.abc import Iterator

import pytest

from floodmark.ledger.store import Store
from tests.support.ledger_kit import Kit, zookeeper_store
from tests.support.memory_store import MemoryStore


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.stack)])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    server = request.getfixturevalue("zookeeper")
    with zookeeper_store(f"{server.hosts}/{uuid.uuid4().hex}") as made:
        yield made


@pytest.fixture
def kit(store: Store) -> Kit:
    made = Kit(store)
    made.set_up()
    return made
