"""The stop token: set once, heard by everyone who waits, safe to set from a signal handler."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from floodmark.service.stop import ExitCode, StopToken


@pytest.fixture
def handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_nothing_is_requested_at_first() -> None:
    """A wait without a stop takes its time and says no."""
    token = StopToken()
    began_s = time.monotonic()
    assert token.wait_ms(50) is False
    assert time.monotonic() - began_s >= 0.05
    assert not token.requested()
    assert token.reason is None


def test_the_first_reason_stays() -> None:
    """A lost session that is followed by a SIGTERM still ends with its own code."""
    token = StopToken()
    token.request("zookeeper session lost", ExitCode.SESSION_LOST)
    token.request("SIGTERM")
    assert token.reason is not None
    assert (token.reason.why, token.reason.code) == ("zookeeper session lost", ExitCode.SESSION_LOST)


def test_every_waiter_wakes_and_later_waits_return_at_once() -> None:
    """One request wakes the loop and whoever else waits, however many."""
    token = StopToken()
    woken: list[bool] = []
    waiters = [threading.Thread(target=lambda: woken.append(token.wait_ms(None))) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    token.request("enough")
    for waiter in waiters:
        waiter.join(10)
    assert woken == [True, True, True]
    assert token.wait_ms(60_000) is True


@pytest.mark.usefixtures("handlers_restored")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_wait_in_the_main_thread(number: signal.Signals) -> None:
    """The handler runs inside the waiting thread itself, and must not wait for a lock that thread holds."""
    token = StopToken()
    token.on_signals()
    threading.Timer(0.05, lambda: os.kill(os.getpid(), number)).start()
    began_s = time.monotonic()
    assert token.wait_ms(20_000) is True
    assert time.monotonic() - began_s < 10
    assert token.reason is not None
    assert (token.reason.why, token.reason.code) == (number.name, ExitCode.OK)


@pytest.mark.usefixtures("handlers_restored")
def test_many_signals_during_many_waits_never_deadlock() -> None:
    """Handlers interrupt the wait at every possible instruction, some inside one another."""
    for _ in range(200):
        token = StopToken()
        token.on_signals()
        threading.Thread(target=lambda: [os.kill(os.getpid(), signal.SIGTERM) for _ in range(3)]).start()
        assert token.wait_ms(10_000) is True
