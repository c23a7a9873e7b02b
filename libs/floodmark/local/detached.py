"""A stack that outlives the command which started it.

The supervisor runs as `python -m floodmark.local` in a session of its own and sends its events through a pipe until the
stack is up or has failed, so the command shows the same progress as if it ran the stack itself.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from floodmark.core.errors import FloodmarkError, Unavailable
from floodmark.local.events import Event, Kind, Report, decode, encode
from floodmark.local.services import Service
from floodmark.local.stack import bring_up
from floodmark.local.supervisor import StopRequest


@dataclass(frozen=True, slots=True)
class StackRequest:
    """What a user asked for, in a form that fits on a command line."""

    directory: Path
    services: tuple[Service, ...]
    asked: Mapping[str, int]

    def encode(self) -> str:
        services = {service.name: service.module for service in self.services}
        return json.dumps({"directory": str(self.directory), "services": services, "asked": dict(self.asked)})

    @classmethod
    def decode(cls, text: str) -> "StackRequest":
        fields = json.loads(text)
        services = tuple(Service(name, module) for name, module in fields["services"].items())
        return cls(Path(fields["directory"]), services, fields["asked"])

    def run(self, *, report: Report, stop: StopRequest) -> None:
        bring_up(self.directory, services=self.services, asked=self.asked, report=report, stop=stop)


def launch(request: StackRequest, *, report: Report) -> None:
    """Start a supervisor and return when its stack is up; raise with its reason when it failed."""
    log_path = request.directory / "logs" / "up.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, encoding="utf-8") as events, log_path.open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "floodmark.local", request.encode(), str(write_end)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
            start_new_session=True,
        )
        os.close(write_end)
        try:
            outcome = _follow((decode(line) for line in events), report)
        except BaseException:
            supervisor.terminate()  # Ctrl-C while waiting takes the half-started stack along
            supervisor.wait()
            raise
    if outcome is None or outcome.kind is Kind.FAILED:
        supervisor.wait()
        raise Unavailable(
            outcome.detail if outcome else f"the supervisor ended before the stack was up, see {log_path}"
        )


def _follow(events: Iterable[Event], report: Report) -> Event | None:
    """Pass events on; the last of them tells the outcome, and there is none when the pipe just ends."""
    for event in events:
        if event.kind is Kind.FAILED:
            return event
        report(event)
        if event.kind is Kind.UP:
            return event
    return None


class EventPipe:
    """The supervisor's end: events are sent until the outcome is, and whether anyone reads them does not matter."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w", encoding="utf-8")

    def __call__(self, event: Event) -> None:
        if self._pipe.closed:
            return
        try:
            self._pipe.write(encode(event))
            self._pipe.flush()
        except BrokenPipeError:
            self._close()
        if event.kind in (Kind.UP, Kind.FAILED):
            self._close()

    def _close(self) -> None:
        with suppress(BrokenPipeError):  # closing flushes what nobody reads
            self._pipe.close()


def supervise(request: StackRequest, *, log: Report, pipe: EventPipe) -> int:
    """The detached process itself: run the stack, tell both the log and whoever waits, return the exit code."""
    stop = StopRequest()
    stop.listen()

    def report(event: Event) -> None:
        log(event)
        pipe(event)

    try:
        request.run(report=report, stop=stop)
    except FloodmarkError as error:
        report(Event(Kind.FAILED, detail=str(error)))
        return 1
    return 0
