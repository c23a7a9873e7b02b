"""Set-up of every test session: shared plugins and how hypothesis searches."""

import logging
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

pytest_plugins = [
    "pytester",
    "tests.support.hangs",
    "tests.support.scenarios",
    "tests.support.servers",
    "tests.support.stores",
    "tests.support.module_pipeline",
    "tests.support.system",
    "tests.support.broker",
]

# No per-example deadline: on a busy machine it fails tests for being slow, not for being wrong.
settings.register_profile("local", deadline=None)
# The gate tries the same examples every time and prints how to replay a failing one.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True)
def _default_logs() -> Iterator[None]:
    """A command or a service run within a test configures the logs of the whole process; the next test has its own."""
    structlog.reset_defaults()
    root, kazoo = logging.getLogger(), logging.getLogger("kazoo")
    handlers, levels = root.handlers[:], (root.level, kazoo.level)
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    kazoo.setLevel(levels[1])
