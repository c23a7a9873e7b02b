"""One system of containers for all tests here; without a Docker engine they are skipped, and say so."""

from collections.abc import Iterator

import pytest

from tests.e2e.stack import Containers, containers, why_not


@pytest.fixture(scope="session")
def system() -> Iterator[Containers]:
    if reason := why_not():
        pytest.skip(reason)
    with containers() as made:
        yield made
