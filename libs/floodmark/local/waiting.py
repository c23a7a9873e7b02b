"""Waiting for a condition, always with a deadline."""

import time
from collections.abc import Callable

POLL_MS = 50


def wait_until(condition: Callable[[], bool], *, timeout_ms: int) -> bool:
    """True as soon as the condition holds, False when it did not within the timeout."""
    deadline_s = time.monotonic() + timeout_ms / 1000
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(POLL_MS / 1000)
    return True


def never() -> bool:
    """The condition for callers that have no reason to cut a wait short."""
    return False
