"""A test that hangs beyond help does not hold up the run for ever: its stacks are printed and its process ends.

pytest-timeout raises an exception in the main thread, once. A test that waits inside a C library never sees it, and one
that then waits for ever while it cleans up is not interrupted again. Where xdist runs the tests, it names the one whose
process ended.
"""

import faulthandler
import os
from collections.abc import Generator

import pytest

_STDERR = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("hang_after_timeout", "seconds that a test may take to clean up after its timeout", default="300")


def pytest_configure(config: pytest.Config) -> None:
    # While a test runs, descriptor 2 is a file that pytest shows later; here it is still the terminal's.
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker else item.config.getini("timeout") or 0)
    if timeout_s:
        limit_s = timeout_s + float(item.config.getini("hang_after_timeout"))
        faulthandler.dump_traceback_later(limit_s, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
