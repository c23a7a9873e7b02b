"""`floodmark demo`: starts a real stack, takes a table through its life on it, and stops it again. See tour.py."""

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from floodmark.cli.ledger import opened_ledger
from floodmark.cli.stack import EXIT_FAILED, errors_told
from floodmark.cli.tour import Done, Tour, summary
from floodmark.core.errors import FloodmarkError
from floodmark.local import compose, config
from floodmark.local.compose import ComposeStack
from floodmark.local.detached import StackRequest, launch
from floodmark.local.events import Event, Kind
from floodmark.local.jars import ensure_kafka_jars
from floodmark.local.java import find_java
from floodmark.local.progress import progress_for
from floodmark.local.services import SERVICES
from floodmark.local.stack import take_down

EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Stage:
    """What the tour takes place on: a ledger, and a lake that the services may see elsewhere."""

    zookeeper: str
    lake: Path
    seen_as: str


def demo(
    directory: Annotated[Path | None, typer.Option("--dir", help="Default: a temporary one, removed again.")] = None,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running, and say how to stop it.")] = False,
    compose_file: Annotated[
        Path | None, typer.Option("--compose", help="Run on the containers of this Compose file, not on processes.")
    ] = None,
    rows: Annotated[int, typer.Option(min=10, max=100_000, help="Rides in each of the 864 five-minute files.")] = 4_000,
) -> None:
    """Start the stack, build views of a few million rides, change their files, check every row, stop again."""
    console = Console(soft_wrap=True, highlight=False)
    home = directory.resolve() if directory else Path(tempfile.mkdtemp(prefix="floodmark-demo-"))
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)
    began_s = time.monotonic()
    done: list[Done] = []
    stack = _containers(home, compose_file, keep=keep, console=console) if compose_file else None
    try:
        with errors_told(), stack or _processes(home, keep=keep, console=console) as stage:
            console.print(f"\nthe stack took {time.monotonic() - began_s:.1f} s to come up")
            with opened_ledger(stage.zookeeper, None, for_writing=True) as ledger:
                done = Tour(ledger, stage.lake, console, seen_as=stage.seen_as, rows_per_segment=rows).run()
    except KeyboardInterrupt:
        console.print("interrupted; nothing is left running")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if (
            directory is None and not keep and all(step.held for step in done)
        ):  # after a failed check the logs are wanted
            shutil.rmtree(home, ignore_errors=True)
    _sum_up(console, done, took_s=time.monotonic() - began_s, home=home)


def _zookeeper(home: Path) -> str:
    stack = config.read(home)
    assert stack is not None, f"the stack in {home} is up, so it has been saved"
    return f"127.0.0.1:{stack.ports[config.ZOOKEEPER]}"


def _sum_up(console: Console, done: list[Done], *, took_s: float, home: Path) -> None:
    console.print()
    console.print(summary(done))
    held = sum(step.held for step in done)
    told = f"\n{held} of {len(done)} steps held, {took_s:.1f} s altogether"
    if held < len(done) or not done:
        console.print(f"[red]{told}[/red]; look at {home}")
        raise typer.Exit(EXIT_FAILED)
    console.print(f"[green]{told}[/green]")


@contextmanager
def _processes(home: Path, *, keep: bool, console: Console) -> Iterator[Stage]:
    """The stack while the demo looks at it. One that somebody else runs in the same directory is left alone."""
    free = dict.fromkeys([*config.DEFAULT_PORTS, *(service.name for service in SERVICES)], 0)
    ours = True
    try:
        with progress_for(console) as report:
            find_java()
            ensure_kafka_jars(say=lambda line: report(Event(Kind.NOTED, detail=line)))
            try:
                launch(StackRequest(home, SERVICES, free), report=report)
            except FloodmarkError:
                ours = False  # it did not come up, and its supervisor has cleaned up
                raise
        yield Stage(_zookeeper(home), home / "lake", str(home / "lake"))
    except BaseException:
        keep = False
        raise
    finally:
        if ours and not keep:
            _stop(lambda: take_down(home, report=lambda _: None), console)
    if keep:
        console.print(f"\nthe stack keeps running; look at it with   make status DIR={home}")
        console.print(f"and stop it with                          make down DIR={home}")


@contextmanager
def _containers(home: Path, file: Path, *, keep: bool, console: Console) -> Iterator[Stage]:
    """The same in containers. Whatever happens, none is left, nor a volume or a network."""
    stack = ComposeStack(home, file)
    try:
        with console.status(f"starting the containers of {file}"):
            stack.up()
        for status in stack.statuses():
            console.print(f"  {status}")
        yield Stage(stack.zookeeper, stack.lake, compose.LAKE)
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            _stop(stack.down, console)
    if keep:
        console.print(f"\nthe containers keep running; stop them with   {' '.join(stack.command)} down --volumes")


def _stop(down: Callable[[], object], console: Console) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # an impatient second Ctrl-C must not leave half a stack behind
    began_s = time.monotonic()
    down()
    console.print(f"\nstopped the stack ({time.monotonic() - began_s:.1f} s)")
