"""Events as lines: through the pipe of a detached supervisor, and for people."""

import io
import os

import pytest
from rich.console import Console

from floodmark.local.detached import EventPipe, StackRequest
from floodmark.local.events import Event, Kind, decode, encode
from floodmark.local.progress import LiveProgress, PlainProgress, describe, progress_for
from floodmark.local.services import SERVICES

START = [
    Event(Kind.STARTING, "Kafka"),
    Event(Kind.READY, "Kafka", "on 127.0.0.1:9092", elapsed_ms=2_340),
    Event(Kind.UP, detail="the stack in [dir] is up"),
    Event(Kind.EXITED, "Kafka", "with signal SIGKILL; restarting in 0.5 s"),
    Event(Kind.STARTING, "Kafka"),
    Event(Kind.READY, "Kafka", "on 127.0.0.1:9092", elapsed_ms=2_000),
]


@pytest.mark.parametrize("event", START)
def test_event_survives_the_pipe(event: Event) -> None:
    """What the supervisor reports is what the command shows."""
    assert encode(event).count("\n") == 1
    assert decode(encode(event)) == event


def test_request_survives_the_command_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A detached supervisor is asked for exactly what the user asked for."""
    request = StackRequest(tmp_path_factory.mktemp("a directory"), SERVICES, {"kafka": 0})
    assert StackRequest.decode(request.encode()) == request


def test_pipe_is_silent_after_the_outcome_and_without_a_reader() -> None:
    """Whoever started the stack has gone by then; the stack does not mind."""
    read_end, write_end = os.pipe()
    pipe = EventPipe(write_end)
    for event in START:
        pipe(event)
    with os.fdopen(read_end) as lines:
        assert [decode(line) for line in lines] == START[:3]
    read_end, write_end = os.pipe()
    os.close(read_end)
    EventPipe(write_end)(START[0])


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveProgress), (False, PlainProgress)])
def test_progress_shows_every_event_on_a_terminal_and_off_it(terminal: bool, kind: type) -> None:
    """Square brackets in a path are not markup, and a restart after the start is told too."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress_for(console) as report:
        assert isinstance(report, kind)
        for event in START:
            report(event)
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert "the stack in [dir] is up" in shown
    assert "ready on 127.0.0.1:9092" in shown
    assert "signal SIGKILL" in shown


def test_ready_line_tells_the_time_it_took() -> None:
    """One line, with what, where and how long."""
    assert describe(START[1]) == "Kafka        ready on 127.0.0.1:9092 (2.3 s)"
