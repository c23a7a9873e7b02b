"""The tour of `floodmark demo`: a table lives its life, and after each step its views are compared with their source.

Whatever is shown is read from the ledger or from files; the check of the rows is made by Arrow, not by Spark.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, track
from rich.table import Table

from floodmark.catalog.definitions import TableRequest, ViewRequest, create_table, create_view
from floodmark.catalog.files import current_files
from floodmark.catalog.times import utc
from floodmark.cli import rides
from floodmark.core.buckets import Cause, Entry, State
from floodmark.ledger.ledger import Ledger

DAYS = 3
SEGMENTS = DAYS * rides.DAY_MS // rides.SEGMENT_MS
WITHIN_S = 120
LOOK_EVERY_S = 0.02
SELECT = """
SELECT date_trunc('{unit}', pickup_time) AS {name}, city, count(*) AS rides, sum(fare_cents) AS fares,
       avg(distance_km) AS distance, approx_count_distinct(rider) AS riders
FROM {table} GROUP BY 1, 2
"""


@dataclass
class Watched:
    """What a step did to one view."""

    stale: dict[int, Cause | None] = field(default_factory=dict)
    rebuilt: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Done:
    """One line of the summary."""

    title: str
    stale: int
    rebuilt: int
    took_s: float
    held: bool


class Tour:
    """Acts, watches, shows, checks."""

    def __init__(self, ledger: Ledger, lake: Path, console: Console, *, seen_as: str, rows_per_segment: int) -> None:
        """`lake` is where this process finds the lake, `seen_as` where the services do."""
        self._ledger = ledger
        self._console = console
        self._rows = rows_per_segment
        self._table = f"rides_{int(time.time())}"  # a directory that was used before has the tables of then
        self._lake = lake / self._table
        self._views = {f"{self._table}_hourly": rides.HOUR_MS, f"{self._table}_daily": rides.DAY_MS}
        self._root, self._seen_as = lake, seen_as
        self.done: list[Done] = []

    def run(self) -> list[Done]:
        self._load()
        hour_ms = rides.FIRST_DAY_MS + 34 * rides.HOUR_MS
        self._step(
            f"a late file arrives, with rides of {utc(hour_ms + 20 * rides.MINUTE_MS)}",
            lambda: self._write("late.parquet", hour_ms + 20 * rides.MINUTE_MS, rows=500),
            {hour_ms},
        )
        replaced_ms = rides.FIRST_DAY_MS + 50 * rides.HOUR_MS
        self._step(
            f"a file of {utc(replaced_ms)} is replaced by one with other rides",
            lambda: self._write(self._name(50 * 12), replaced_ms, rows=self._rows // 2),
            {replaced_ms},
        )
        first_day = {rides.FIRST_DAY_MS + hour * rides.HOUR_MS for hour in range(24)}
        self._step("retention deletes the first day", self._delete_first_day, first_day)
        self._step(
            "three hours are backfilled into the deleted day",
            lambda: self._fill(range(8 * 12, 11 * 12), "backfill-"),
            {rides.FIRST_DAY_MS + hour * rides.HOUR_MS for hour in (8, 9, 10)},
        )
        return self.done

    # -- acting ----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._say(
            f"{SEGMENTS} files of five minutes with {SEGMENTS * self._rows:,} rides, and two views: by hour and by day"
        )
        self._lake.mkdir(parents=True)
        self._fill(range(SEGMENTS), "rides-")
        create_table(self._ledger, TableRequest(self._table, f"{self._seen_as}/{self._table}", "pickup_time"))
        for (view, bucket_ms), unit in zip(self._views.items(), ("hour", "day"), strict=True):
            select = SELECT.format(unit=unit.upper(), name=unit, table=self._table)
            location = f"{self._seen_as}/views/{view}"
            bucket = "1h" if bucket_ms == rides.HOUR_MS else "1d"
            request = ViewRequest(view, self._table, bucket, select, location, coverage_start_ms=rides.FIRST_DAY_MS)
            create_view(self._ledger, request)
        began_s = time.monotonic()
        watched = self._watch(shown=True)
        took_s = time.monotonic() - began_s
        held = self._check_rows()
        self._note("load and first build", watched, took_s, held=held)

    def _step(self, title: str, act: Callable[[], None], hours: set[int]) -> None:
        """Do something to the files, and see exactly the buckets of these hours rebuilt."""
        self._say(title)
        before = {view: self._entries(view) for view in self._views}
        began_s = time.monotonic()
        act()
        watched = self._watch(before=before)
        took_s = time.monotonic() - began_s
        self._show(watched)
        expected = {view: {start // width * width for start in hours} for view, width in self._views.items()}
        exact = {view: w.rebuilt for view, w in watched.items()} == expected
        self._tell(exact, f"exactly the buckets it touches were rebuilt, {took_s:.2f} s after the files changed")
        held = self._check_rows()
        self._note(title, watched, took_s, held=exact and held)

    def _fill(self, numbers: range, prefix: str) -> None:
        for number in track(numbers, "  writing", console=self._console, transient=True):
            name = self._name(number) if prefix == "rides-" else f"{prefix}{number:04d}.parquet"
            self._write(name, rides.FIRST_DAY_MS + number * rides.SEGMENT_MS, rows=self._rows)

    def _write(self, name: str, start_ms: int, *, rows: int) -> None:
        rides.write_segment(self._lake, name, start_ms, rows=rows)

    def _delete_first_day(self) -> None:
        for number in range(rides.DAY_MS // rides.SEGMENT_MS):
            (self._lake / self._name(number)).unlink()

    def _name(self, number: int) -> str:
        return f"rides-{number:04d}.parquet"

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self, *, before: dict[str, dict[int, Entry]] | None = None, shown: bool = False) -> dict[str, Watched]:
        """Look on until the registry has the files as they are, and every bucket is VALID from them."""
        watched = {view: Watched() for view in self._views}
        deadline_s = time.monotonic() + WITHIN_S
        with _bars(self._console, shown=shown) as bars:
            tasks = {v: bars.add_task(v, total=DAYS * rides.DAY_MS // width) for v, width in self._views.items()}
            while time.monotonic() < deadline_s:
                settled = self._is_registered()
                for view, seen in watched.items():
                    entries = self._entries(view)
                    seen.stale |= {
                        s: e.cause for s, e in entries.items() if e.state is State.STALE and s not in seen.stale
                    }
                    bars.update(tasks[view], completed=sum(e.state is State.VALID for e in entries.values()))
                    settled = self._is_settled(view, entries) and settled
                if settled:
                    break
                time.sleep(LOOK_EVERY_S)
        for view, seen in watched.items():
            was = (before or {}).get(view, {})
            now = self._entries(view)
            seen.rebuilt = {s for s, e in now.items() if s not in was or was[s].attempt_id != e.attempt_id}
        return watched

    def _is_settled(self, view: str, entries: dict[int, Entry]) -> bool:
        """Every bucket of the data is VALID, from the source as it is now."""
        width = self._views[view]
        starts = range(rides.FIRST_DAY_MS, rides.FIRST_DAY_MS + DAYS * rides.DAY_MS, width)
        if len(entries) < len(starts) or any(e.state is not State.VALID for e in entries.values()):
            return False
        grid = self._ledger.views.header(view).definition.grid
        found = self._ledger.registry.read_windows(self._table, [grid.window(s) for s in starts])
        return all(entries[s].fingerprint == read.source.fingerprint for s, read in zip(starts, found, strict=True))

    def _is_registered(self) -> bool:
        stats = {path.name: path.stat() for path in self._lake.glob("*.parquet")}
        known = self._ledger.registry.snapshot(self._table).by_name
        return {name: f"{s.st_size}:{s.st_mtime_ns}" for name, s in stats.items()} == {
            name: segment.stamp for name, segment in known.items()
        }

    def _entries(self, view: str) -> dict[int, Entry]:
        return self._ledger.views.state(view).entries

    # -- checking --------------------------------------------------------------------------------------------------

    def _check_rows(self) -> bool:
        """Both views against a fresh computation over every file there is."""
        files = sorted(self._lake.glob("*.parquet"))
        held = True
        for view, width in self._views.items():
            fresh = rides.totals_of_base(files, bucket_ms=width)
            stored = rides.totals_of_view(
                (f.bucket_ms, self._here(f.path)) for f in current_files(self._ledger, view).files
            )
            buckets = len({start for start, _ in stored})
            held &= self._tell(
                stored == fresh, f"{view}: {len(stored):,} rows in {buckets} buckets equal a fresh computation"
            )
        return held

    def _here(self, path: str) -> Path:
        """Where this process finds a file of the services."""
        return self._root / Path(path).relative_to(self._seen_as)

    # -- showing ---------------------------------------------------------------------------------------------------

    def _say(self, what: str) -> None:
        self._console.print(f"\n[bold]{len(self.done) + 1}  {escape(what)}[/bold]")

    def _show(self, watched: dict[str, Watched]) -> None:
        for view, seen in watched.items():
            for start_ms, cause in sorted(seen.stale.items())[:3]:
                why = "" if cause is None else f": {', '.join(cause.segments) or 'all'} ({cause.kind} {cause.event_id})"
                self._console.print(f"  {escape(view)} {utc(start_ms)} STALE{escape(why)}")
            if len(seen.stale) > 3:
                self._console.print(f"  {escape(view)} and {len(seen.stale) - 3} more STALE")

    def _tell(self, held: bool, what: str) -> bool:
        self._console.print(f"  {'[green]✓[/green]' if held else '[red]✗[/red]'} {escape(what)}")
        return held

    def _note(self, title: str, watched: dict[str, Watched], took_s: float, *, held: bool) -> None:
        stale = sum(len(w.stale) for w in watched.values())
        rebuilt = sum(len(w.rebuilt) for w in watched.values())
        self.done.append(Done(title, stale, rebuilt, took_s, held))


def summary(done: list[Done]) -> Table:
    table = Table("", "step", "went STALE", "rebuilt", "seconds", box=None, pad_edge=False)
    for step in done:
        mark = "[green]✓[/green]" if step.held else "[red]✗[/red]"
        table.add_row(mark, escape(step.title), str(step.stale), str(step.rebuilt), f"{step.took_s:.2f}")
    return table


def _bars(console: Console, *, shown: bool) -> Progress:
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("buckets"))
    return Progress(*columns, TimeElapsedColumn(), console=console, disable=not shown)
