"""`floodmark demo`: files through the event pipeline of a real stack, each step shown and checked.

A table and a view are defined, a file appears, then a late one, then an announcement that is no announcement. What is
shown ends with tasks: carrying them out is not part of it yet.
"""

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.markup import escape

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher
from floodmark.bus.onlooker import Onlooker
from floodmark.bus.ports import Outgoing, Partition
from floodmark.catalog.definitions import TableRequest, ViewRequest, create_table, create_view
from floodmark.cli.ledger import opened_ledger
from floodmark.cli.ledger_tables import utc
from floodmark.cli.stack import EXIT_FAILED, errors_told
from floodmark.contracts.envelope import Envelope, decode
from floodmark.contracts.messages import BuildBucket, RecordRefused, SegmentsChanged
from floodmark.contracts.topics import ANNOUNCEMENTS, DEADLETTER, SEGMENTS, TASKS
from floodmark.core.buckets import DataFile, State
from floodmark.core.errors import FloodmarkError, Unavailable
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.ports import SystemClock
from floodmark.core.transitions import Build, Mode
from floodmark.ledger.ledger import Ledger
from floodmark.local import config
from floodmark.local.detached import StackRequest, launch
from floodmark.local.events import Event, Kind
from floodmark.local.jars import ensure_kafka_jars
from floodmark.local.java import find_java
from floodmark.local.progress import progress_for
from floodmark.local.services import SERVICES
from floodmark.local.stack import take_down
from floodmark.local.waiting import wait_until

EXIT_INTERRUPTED = 130
ANSWER_WITHIN_MS = 30_000
GROUP = "floodmark.ingester"
HEARD = (SEGMENTS, TASKS, DEADLETTER)
INVALID = b'{"kind": "segment-announced.v1", "table": "demo", "action": "explode"}'
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
FIRST_HOUR_MS = 1_751_328_000_000  # 2025-07-01T00:00Z

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
T = TypeVar("T")


def demo(
    directory: Annotated[Path | None, typer.Option("--dir", help="Default: a temporary one, removed again.")] = None,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running, and say how to stop it.")] = False,
) -> None:
    """Start the stack on free ports, let files appear, show what becomes of them, stop again."""
    console = Console(soft_wrap=True, highlight=False)
    home = directory.resolve() if directory else Path(tempfile.mkdtemp(prefix="floodmark-demo-"))
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)
    began_s = time.monotonic()
    held: list[bool] = []
    try:
        with errors_told(), _stack(home, keep=keep, console=console):
            console.print(f"\nthe stack took {time.monotonic() - began_s:.1f} s to come up\n")
            held = Tour(home, console).run()
    except KeyboardInterrupt:
        console.print("interrupted; nothing is left running")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if directory is None and not keep and all(held):  # after a failed check the logs are wanted
            shutil.rmtree(home, ignore_errors=True)
    _sum_up(console, held=held, took_s=time.monotonic() - began_s, home=home)


def _sum_up(console: Console, *, held: list[bool], took_s: float, home: Path) -> None:
    told = f"{sum(held)} of {len(held)} checks held, {took_s:.1f} s altogether"
    if not all(held):
        console.print(f"[red]{told}[/red]; the logs are in {home / 'logs'}")
        raise typer.Exit(EXIT_FAILED)
    console.print(f"[green]{told}[/green]")
    console.print("From file to task, by the real services. Carrying the tasks out comes later, see README.md.")


@contextmanager
def _stack(home: Path, *, keep: bool, console: Console) -> Iterator[None]:
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
        yield
    except BaseException:
        keep = False
        raise
    finally:
        if ours and not keep:
            _stop(home, console)
    if keep:
        console.print(f"\nthe stack keeps running; look at it with   make status DIR={home}")
        console.print(f"and stop it with                          make down DIR={home}")


def _stop(home: Path, console: Console) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # an impatient second Ctrl-C must not leave half a stack behind
    began_s = time.monotonic()
    take_down(home, report=lambda _: None)
    console.print(f"\nstopped the stack ({time.monotonic() - began_s:.1f} s)")


class Tour:
    """Acts, looks, shows. Each look has a deadline."""

    def __init__(self, home: Path, console: Console) -> None:
        stack = config.read(home)
        assert stack is not None, f"the stack in {home} is up, so it has been saved"
        self._table = f"demo_{int(time.time())}"  # a directory that was used before has the tables of then
        self._view = f"{self._table}_hourly"
        self._lake = home / "lake" / self._table
        self._zookeeper = f"127.0.0.1:{stack.ports[config.ZOOKEEPER]}"
        self._onlooker = Onlooker(KafkaConnection(f"127.0.0.1:{stack.ports[config.KAFKA]}", "floodmark.demo"))
        self._publisher = KafkaPublisher(KafkaConnection(f"127.0.0.1:{stack.ports[config.KAFKA]}", "floodmark.demo"))
        self._console = console
        self._heard: list[Envelope] = []
        self._acted_s = time.monotonic()

    def run(self) -> list[bool]:
        try:
            with opened_ledger(self._zookeeper, None, for_writing=True) as ledger:
                self._listen_from_now()
                return [
                    *self._new_file(ledger),
                    *self._late_file(ledger),
                    *self._invalid_announcement(),
                ]
        finally:
            self._onlooker.close()
            self._publisher.close()

    # -- the acts --------------------------------------------------------------------------------------------------

    def _new_file(self, ledger: Ledger) -> Iterator[bool]:
        """A table, a view of it by the hour, and its first file: three hours of one day."""
        self._act("a table, a view by the hour, and a file with three hours of data")
        self._lake.mkdir(parents=True)
        create_table(ledger, TableRequest(self._table, str(self._lake), "event_time"))
        select = f"SELECT count(*) AS n FROM {self._table}"  # noqa: S608 - the name is our own
        location = str(self._lake.parent / "views" / self._view)
        create_view(ledger, ViewRequest(self._view, self._table, "1h", select, location))
        name = "first.parquet"
        self._write(name, FIRST_HOUR_MS, hours=3)
        yield self._show("the scanner found it, the ingester registered it", self._registered(ledger, name))
        yield self._show("its event is on segments.v1", self._first_event())
        tasks = _await(lambda: self._tasks("APPEND", at_least=3))
        yield self._show("three buckets are to be appended, on tasks.v1", _told(tasks))
        self._build(ledger, tasks or [])

    def _late_file(self, ledger: Ledger) -> Iterator[bool]:
        """An hour that was built gets another file."""
        self._act("the buckets are built (played here), and a late file arrives for the second hour")
        name = "late.parquet"
        self._write(name, FIRST_HOUR_MS + HOUR_MS, hours=1)
        yield self._show("registered", self._registered(ledger, name))
        stale = _await(lambda: self._stale(ledger))
        yield self._show("exactly that bucket is STALE", stale if stale == utc(FIRST_HOUR_MS + HOUR_MS) else None)
        tasks = _await(lambda: self._tasks("OVERWRITE", at_least=1))
        yield self._show("it is to be overwritten, on tasks.v1", _told(tasks))

    def _invalid_announcement(self) -> Iterator[bool]:
        self._act(f"an announcement that is none: {INVALID.decode()}")
        self._publisher.publish([Outgoing(ANNOUNCEMENTS.name, self._table.encode(), INVALID)])
        letter = _await(self._dead_letter)
        yield self._show("it is in deadletter.v1", letter.reason if letter else None)
        if letter:
            kept = f"{len(INVALID)} bytes" if letter.value == INVALID else None
            yield self._show("with its original bytes", kept)
            yield self._show("the group has moved past it", _await(lambda: self._position_past(letter)))

    # -- acting ----------------------------------------------------------------------------------------------------

    def _write(self, name: str, start_ms: int, *, hours: int) -> None:
        """A row at the end of each minute. It appears under its name when it is whole, as files of a lake should."""
        minutes = range(start_ms + MINUTE_MS - 1, start_ms + hours * HOUR_MS, MINUTE_MS)
        rows = pa.table({"event_time": pa.array(minutes, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))})
        unfinished = self._lake / f".{name}"
        pq.write_table(rows, unfinished)
        unfinished.rename(self._lake / name)

    def _build(self, ledger: Ledger, tasks: list[BuildBucket]) -> None:
        """What a worker will do, without the rows: commit each bucket from exactly the input its task names."""
        for task in tasks:
            build = Build(
                start_ms=task.bucket_start_ms,
                mode=Mode(task.mode),
                attempt_id=f"demo-{task.task_id}",
                fingerprint=Fingerprint(task.fingerprint.count, task.fingerprint.hash),
                slice_versions=dict(task.slice_versions),
                definition_hash=task.definition_hash,
                built_at_ms=SystemClock().now_ms(),
                files=(DataFile(f"{task.task_id}.parquet", 1, 1),),
            )
            ledger.views.commit(task.view, task.incarnation, [build])

    # -- looking ---------------------------------------------------------------------------------------------------

    def _listen_from_now(self) -> None:
        """A partition of a topic created a moment ago may have no leader yet."""

        def ends() -> dict[Partition, int] | None:
            try:
                return {p: end for topic in HEARD for p, end in self._onlooker.ends(topic.name).items()}
            except Unavailable:
                return None

        self._onlooker.start_from(_await(ends) or {})

    def _listen(self) -> list[Envelope]:
        while record := self._onlooker.next(timeout_ms=20):
            self._heard.append(decode(record.partition.topic, record.value, record.headers, record.place))
        return self._heard

    def _registered(self, ledger: Ledger, name: str) -> str | None:
        segment = _await(lambda: ledger.registry.snapshot(self._table).by_name.get(name))
        if segment is None:
            return None
        return f"{segment.rows} rows, {utc(segment.start_ms)} to {utc(segment.last_ms)}, CRC {segment.crc}"

    def _first_event(self) -> str | None:
        def event() -> str | None:
            for envelope in self._listen():
                change = envelope.message
                if isinstance(change, SegmentsChanged) and change.table == self._table:
                    return f"registry version {change.registry_version}, trace {envelope.trace_id}"
            return None

        return _await(event)

    def _tasks(self, mode: str, *, at_least: int) -> list[BuildBucket] | None:
        messages = [envelope.message for envelope in self._listen()]
        found = [m for m in messages if isinstance(m, BuildBucket) and m.view == self._view and m.mode == mode]
        return found if len(found) >= at_least else None

    def _stale(self, ledger: Ledger) -> str | None:
        entries = ledger.views.state(self._view).entries.items()
        return ", ".join(utc(start) for start, entry in entries if entry.state is State.STALE) or None

    def _dead_letter(self) -> RecordRefused | None:
        messages = [envelope.message for envelope in self._listen()]
        return next((m for m in messages if isinstance(m, RecordRefused) and m.value == INVALID), None)

    def _position_past(self, letter: RecordRefused) -> str | None:
        position = self._onlooker.positions(GROUP).get(Partition(ANNOUNCEMENTS.name, letter.partition), 0)
        told = f"{GROUP} is at {position} in partition {letter.partition}, the record is {letter.offset}"
        return told if position > letter.offset else None

    # -- showing ---------------------------------------------------------------------------------------------------

    def _act(self, what: str) -> None:
        self._console.print(f"\n{what}", style="bold", markup=False)
        self._acted_s = time.monotonic()

    def _show(self, what: str, found: str | None) -> bool:
        mark = "[green]✓[/green]" if found else "[red]✗[/red]"
        told = found or f"not seen within {ANSWER_WITHIN_MS // 1000} s"
        age_ms = round((time.monotonic() - self._acted_s) * 1000)
        self._console.print(f"  {mark} {what}: {escape(told)} (after {age_ms} ms)")
        return bool(found)


def _told(tasks: list[BuildBucket] | None) -> str | None:
    if tasks is None:
        return None
    return ", ".join(f"{task.mode} {utc(task.bucket_start_ms)} in lane {task.lane}" for task in tasks)


def _await(look: Callable[[], T | None]) -> T | None:
    """What the look finds, None when it found nothing in time."""
    found: list[T] = []

    def seen() -> bool:
        if (value := look()) is not None:
            found.append(value)
        return bool(found)

    wait_until(seen, timeout_ms=ANSWER_WITHIN_MS)
    return found[0] if found else None
