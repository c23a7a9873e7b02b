"""Waiting in tests: await a condition with a deadline, never a bare sleep."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ANSWERED_WITHIN_S = 60
"""Of a call on loopback. It takes milliseconds, unless the machine is busy with all else that is being tested."""


def eventually(
    condition: Callable[[], T | None], *, within_s: float = 60, every_s: float = 0.05, what: str = "the condition"
) -> T:
    """The first truthy value of the condition. A failed assertion inside it counts as "not yet"."""
    started_s = time.monotonic()
    while True:
        failure: AssertionError | None = None
        try:
            if value := condition():
                return value
            last = f"last value: {value!r}"
        except AssertionError as error:
            failure, last = error, f"last error: {error or 'a bare assert'}"
        waited_s = time.monotonic() - started_s
        if waited_s >= within_s:
            raise AssertionError(f"{what} did not come true, waited {waited_s:.2f} s; {last}") from failure
        time.sleep(min(every_s, within_s - waited_s))  # the last look happens at the deadline, not before it


def never(condition: Callable[[], object], *, for_s: float, every_s: float = 0.05, what: str = "the condition") -> None:
    """The condition stays false for the whole period. Use sparingly: it always takes that long."""
    started_s = time.monotonic()
    while True:
        value = condition()
        waited_s = time.monotonic() - started_s
        if value:
            raise AssertionError(f"{what} came true after {waited_s:.2f} s of {for_s:g} s; value: {value!r}")
        if waited_s >= for_s:
            return
        time.sleep(min(every_s, for_s - waited_s))
