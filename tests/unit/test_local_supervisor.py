"""The supervisor: order of start and stop, restarts, and stopping whatever happens. With small real processes."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from floodmark.core.errors import Unavailable
from floodmark.local.component import Component
from floodmark.local.events import Event, Kind
from floodmark.local.supervisor import RESTART_DELAY_MAX_MS, StopRequest, Supervisor, describe_exit, restart_delay_ms
from floodmark.local.waiting import wait_until


class Script(Component):
    """A component that runs a few lines of Python; it is ready once it has written its file."""

    ready_within_ms = 10_000

    def __init__(self, directory: Path, name: str, code: str = "time.sleep(600)") -> None:
        super().__init__(directory, name=name, title=name, port=1)
        self._code = f"import pathlib, signal, sys, time; {{}}pathlib.Path('started').touch(); {code}"
        self.ignores_sigterm = False

    def prepare(self) -> None:
        (self.home / "started").unlink(missing_ok=True)

    def command(self) -> list[str]:
        deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if self.ignores_sigterm else ""
        return [sys.executable, "-c", self._code.format(deaf)]

    def is_ready(self) -> bool:
        return (self.home / "started").exists()


class Run:
    """A supervisor in a thread, with everything it reports."""

    def __init__(self, components: list[Script]) -> None:
        self.events: list[Event] = []
        self.stop = StopRequest()
        self._is_up = threading.Event()
        supervisor = Supervisor(components, report=self.events.append, stop=self.stop)
        self._thread = threading.Thread(target=lambda: supervisor.run(on_up=self._is_up.set))

    def __enter__(self) -> "Run":
        self._thread.start()
        assert self._is_up.wait(timeout=20)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.ask()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()

    def seen(self, kind: Kind) -> list[str]:
        return [event.component for event in self.events if event.kind is kind]


@contextmanager
def no_process_left(components: list[Script]) -> Iterator[None]:
    """Whatever ran inside has ended afterwards, and no note of it remains."""
    yield
    for component in components:
        assert component.identity() is None
        assert not component.record_path.exists()


def test_components_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    """A service never lives without the servers it needs."""
    components = [Script(tmp_path, name) for name in ("store", "log", "service")]
    with no_process_left(components), Run(components) as run:
        assert run.seen(Kind.READY) == ["store", "log", "service"]
    assert run.seen(Kind.STOPPED) == ["service", "log", "store"]


@pytest.mark.parametrize("code", [0, 3])
def test_component_that_exits_unasked_is_restarted_and_told(tmp_path: Path, code: int) -> None:
    """A clean exit that nobody asked for is as much a failure as any other."""
    first = "sys.exit(%d) if not pathlib.Path('second').exists() and pathlib.Path('go').exists() else None"
    patient = f"[({first % code}, time.sleep(0.02)) for _ in range(30000)]"
    component = Script(tmp_path, "service", patient)
    with no_process_left([component]), Run([component]) as run:
        (component.home / "go").touch()
        assert wait_until(lambda: run.seen(Kind.EXITED) == ["service"], timeout_ms=10_000)
        (component.home / "second").touch()
        assert wait_until(lambda: run.seen(Kind.READY) == ["service"] * 2, timeout_ms=10_000)
    told = next(event for event in run.events if event.kind is Kind.EXITED)
    assert told.detail == f"with code {code}, see {component.log_path}; restarting in 0.5 s"


def test_failed_start_stops_what_was_started_and_shows_the_log(tmp_path: Path) -> None:
    """Half a stack is never left behind, and the reason is in the message."""
    broken = Script(tmp_path, "broken", "print('no such setting: colour'); sys.exit(7)")
    broken.is_ready = lambda: False  # type: ignore[method-assign]  # it never gets that far
    components = [Script(tmp_path, "store"), broken]
    supervisor = Supervisor(components, report=lambda _: None, stop=StopRequest())
    with no_process_left(components), pytest.raises(Unavailable, match=r"(?s)broken exited with code 7.*colour"):
        supervisor.run(on_up=lambda: None)


def test_stop_asked_during_the_start_starts_nothing_more(tmp_path: Path) -> None:
    """Ctrl-C in the first second is obeyed in the first second."""
    slow, never_run = Script(tmp_path, "slow"), Script(tmp_path, "later")
    stop = StopRequest()

    def press_ctrl_c() -> bool:
        stop.ask()
        return False

    slow.is_ready = press_ctrl_c  # type: ignore[method-assign]
    events: list[Event] = []
    with no_process_left([slow, never_run]):
        Supervisor([slow, never_run], report=events.append, stop=stop).run(on_up=lambda: pytest.fail("came up"))
    assert [event.component for event in events if event.kind is Kind.STARTING] == ["slow"]


def test_second_request_cuts_the_grace_short_and_leaves_nothing(tmp_path: Path) -> None:
    """An impatient second Ctrl-C kills instead of waiting; it does not run away from the processes."""
    deaf = Script(tmp_path, "deaf")
    deaf.ignores_sigterm = True
    deaf.grace_ms = 600_000  # type: ignore[misc]  # so long that only the hurry can end it
    with no_process_left([deaf]), Run([deaf]) as run:
        run.stop.ask()


def test_restart_delay_doubles_up_to_its_cap() -> None:
    """A component that cannot start does not keep the machine busy."""
    assert [restart_delay_ms(n) for n in (1, 2, 3, 4)] == [500, 1000, 2000, 4000]
    assert restart_delay_ms(1000) == RESTART_DELAY_MAX_MS


def test_exit_by_signal_is_named() -> None:
    """`-9` means little to most people."""
    assert (describe_exit(1), describe_exit(-9)) == ("code 1", "signal SIGKILL")
