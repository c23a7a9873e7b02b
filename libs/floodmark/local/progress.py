"""Events for people: a live line for each component on a terminal, plain lines everywhere else."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from floodmark.local.events import Event, Kind


def describe(event: Event) -> str:
    """One plain line."""
    match event.kind:
        case Kind.NOTED | Kind.UP | Kind.FAILED:
            return event.detail
        case Kind.READY | Kind.STOPPED:
            words = f"{event.kind} {event.detail}".rstrip()
            return f"{event.component:<12} {words} ({event.elapsed_ms / 1000:.1f} s)"
        case _:
            return f"{event.component:<12} {event.kind} {event.detail}".rstrip()


class PlainProgress:
    """A line for each event, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __call__(self, event: Event) -> None:
        self._console.print(describe(event), markup=False, highlight=False, soft_wrap=True)


class LiveProgress:
    """A line with a running clock for each component that is starting, and plain lines for all that follows."""

    def __init__(self, console: Console) -> None:
        self._plain = PlainProgress(console)
        columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._tasks: dict[str, TaskID] = {}
        self._is_live = True

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        if event.kind not in (Kind.NOTED, Kind.STARTING, Kind.READY):
            self._is_live = False  # the start is over, well or not
            self._progress.stop()
        line = escape(f"{event.component:<12} {event.kind} {event.detail}".rstrip())
        if self._is_live and event.kind is Kind.STARTING:
            self._tasks[event.component] = self._progress.add_task(line, total=1)
        elif self._is_live and event.kind is Kind.READY:
            self._progress.update(self._tasks[event.component], description=line, completed=1)
        else:
            self._plain(event)


def progress_for(console: Console) -> PlainProgress | LiveProgress:
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)
