"""A view and a table with real files, and a janitor that a test steps by hand under a clock that stands."""

import os
import uuid
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from floodmark.core.buckets import DataFile
from floodmark.core.garbage import Terms
from floodmark.core.transitions import Build, Mode
from floodmark.ledger.holds import Hold
from floodmark.ledger.store import Store
from floodmark_janitor.app import Rounds
from floodmark_janitor.books import Books
from floodmark_janitor.clearing import Clearer
from floodmark_janitor.collecting import Collector
from floodmark_janitor.retiring import Retirer
from tests.support.bus_doubles import FrozenClock
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit

GRACE_MS, SKEW_MS, TTL_MS = 10_000, 100, 60_000


class Yard:
    """Everything is by hour, as in the kit. `pass_by` is one round of the janitor."""

    def __init__(self, store: Store, directory: Path, **properties: str) -> None:
        self.kit = Kit(store, clock=FrozenClock(1_000 * HOUR_MS))
        self.clock, self.ledger = self.kit.clock, self.kit.ledger
        self.base, self.view = directory / "rides", directory / "views" / "rides_hourly"
        self.base.mkdir()
        self.ledger.registry.create_table(replace(TABLE, location=str(self.base), properties=properties))
        self.header = self.ledger.views.create(replace(VIEW, location=str(self.view)), coverage_start_ms=0)
        self.metrics = CollectorRegistry()
        self.rounds = self.janitor()

    def janitor(self) -> Rounds:
        """A janitor that has just been started: it remembers nothing."""
        self.metrics = CollectorRegistry()
        books = Books(self.metrics)
        terms = Terms(GRACE_MS, SKEW_MS)
        collector = Collector(self.ledger, self.clock, terms, books)
        clearer = Clearer(self.ledger, self.clock, terms, books)
        return Rounds(self.ledger, collector, clearer, Retirer(self.ledger, self.clock, 100, books))

    def pass_by(self, *, after_ms: int = 0) -> None:
        self.clock.sleep_ms(after_ms)
        self.rounds.go()

    # -- an attempt, step by step ----------------------------------------------------------------------------------

    def hold(self, reader: str = "worker-1") -> Hold:
        return self.ledger.holds.take("rides", reader, ttl_ms=TTL_MS)

    def write(self, hour: int, attempt: str = "", n: int = 0) -> DataFile:
        """A file as an attempt writes it, as old as the clock says."""
        name = f"{hour * HOUR_MS}/{attempt or uuid.uuid4()}-{n}.parquet"
        self.lay(self.view / name)
        return DataFile(name, 1, 4)

    def lay(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"rows")
        os.utime(path, ns=(self.clock.ms * 1_000_000,) * 2)
        return path

    def build(self, hour: int, *files: DataFile, mode: Mode = Mode.APPEND) -> Build:
        return replace(self.kit.build(hour, mode, attempt=str(uuid.uuid4())), files=files)

    def commit(self, hour: int, *files: DataFile, mode: Mode = Mode.APPEND) -> None:
        """Name these files in the entry of a bucket."""
        decision = self.kit.commit_one(self.build(hour, *files, mode=mode), incarnation=self.header.incarnation)
        assert type(decision).__name__ == "Changed", decision

    # -- looking ---------------------------------------------------------------------------------------------------

    def files(self) -> set[str]:
        return {str(p.relative_to(self.view)) for p in self.view.rglob("*") if p.is_file()}

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.get_sample_value(name, labels) or 0
