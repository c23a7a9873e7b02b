"""A table that changes and is asked all the while. Every version of it is kept, so every answer can be checked.

Changes are announced by HTTP to one ingester or the other, one at a time, each until it is acknowledged. A file that is
replaced or deleted lives on under another name outside the lake. An answer's receipt names the version of the registry
it stands on; DuckDB answers the same query over exactly the files of that version.
"""

import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import floodmark
from floodmark.client import Connection, QueryFailed
from floodmark.core.errors import FloodmarkError, Unavailable
from tests.e2e.background import in_background
from tests.e2e.stack import Containers
from tests.support.broker import HOURLY, BrokerUnderTest, Rides, Row, comparable, duck_rows
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS
from tests.support.query_dice import Output, Query, Text, random_query

HOURS = 24
FILES_MIN = 12
VIEWS = {
    "hourly": ("1h", HOURLY),
    "daily": (
        "1d",
        "SELECT date_trunc('DAY', event_time) AS day, city, count(*) AS n, sum(price) AS price, min(big) AS low, "
        "max(big) AS high, sum(cents) AS cents FROM {table} GROUP BY 1, 2",
    ),
}
ACKNOWLEDGED_WITHIN_S = 180
CONVERGED_WITHIN_S = 300
ASK_TIMEOUT_S = 60
TRY_AGAIN_S = 0.3


@dataclass(frozen=True)
class Wrong:
    """An answer that is not right, with everything needed to look into it."""

    query: Query
    version: int
    found: list[Row]
    wanted: list[Row]
    receipt: dict[str, Any]

    def __str__(self) -> str:
        return (
            f"{self.query.sql}\nat version {self.version}: {self.found[:5]} are answered, "
            f"{self.wanted[:5]} are right\n{self.receipt}"
        )


@dataclass
class World:
    system: Containers
    dice: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[Wrong] = field(default_factory=list)
    silences: Counter[str] = field(default_factory=Counter)
    """Why queries had no answer."""

    def __post_init__(self) -> None:
        first, _ = self.system.brokers()
        dice = np.random.default_rng(self.dice.getrandbits(32))
        self.rides = Rides(BrokerUnderTest(self.system, None, "", first), dice=dice, scan=False)  # type: ignore[arg-type]
        self.table = self.rides.name
        self.kept = self.system.directory / "kept" / self.table
        self.kept.mkdir(parents=True)
        self.ingesters = [
            floodmark.connect(r.url, token=self.system.token, timeout_s=20) for r in self.system.of("ingester")
        ]
        self.present: dict[str, Path] = {}  # what is registered, once the last change is acknowledged
        self.versions: dict[int, tuple[str, ...]] = {}
        self._recorded = threading.Condition()
        self._files = 0
        for hour in range(HOURS):
            self.put(f"s{hour}", hour)
        self.counts.clear()
        self.views = [
            self.rides.view(suffix, bucket=bucket, select=select) for suffix, (bucket, select) in VIEWS.items()
        ]

    # -- changes ---------------------------------------------------------------------------------------------------

    def change(self) -> None:
        """A late file, a file replaced, or a file gone."""
        kind = self.dice.random()
        if kind < 0.4 or len(self.present) < FILES_MIN:
            self.put(f"late{self._files}", self.dice.randrange(HOURS))
            self.counts["late"] += 1
        elif kind < 0.7:
            self.put(self.dice.choice(sorted(self.present)), self.dice.randrange(HOURS))
            self.counts["replaced"] += 1
        else:
            self.delete(self.dice.choice(sorted(self.present)))
            self.counts["deleted"] += 1

    def put(self, stem: str, hour: int) -> None:
        self._files += 1
        path = self.rides.write(stem, hour, hour + self.dice.choice((0.5, 1, 1, 3)), rows=self.dice.choice((200, 600)))
        kept = self.kept / f"{self._files}.parquet"
        os.link(path, kept)
        self._announce({"action": "replace" if stem in self.present else "add", "path": path.name})
        self.present[stem] = kept
        self._record()

    def delete(self, stem: str) -> None:
        (self.rides.location / f"{stem}.parquet").unlink()
        self._announce({"action": "delete", "path": f"{stem}.parquet"})
        del self.present[stem]
        self._record()

    def _announce(self, announcement: dict[str, str]) -> None:
        """Until an ingester says that it is registered. One that did not answer may have done it: again is safe."""
        deadline_s = time.monotonic() + ACKNOWLEDGED_WITHIN_S
        while True:
            ingester = self.dice.choice(self.ingesters)
            try:
                ingester.post(f"/v1/tables/{self.table}/segments", announcement)
            except (Unavailable, QueryFailed) as error:
                if time.monotonic() > deadline_s or (isinstance(error, QueryFailed) and error.status < 500):
                    raise AssertionError(f"{announcement} is not registered: {error}") from error
                self.counts["announced again"] += 1
                time.sleep(TRY_AGAIN_S)
            else:
                return

    def _record(self) -> None:
        """Nobody else changes the table, so its version stands for what is present now."""
        version = self._steadily(lambda: self.system.ledger.registry.header(self.table).version)
        with self._recorded:
            self.versions[version] = tuple(sorted(map(str, self.present.values())))
            self._recorded.notify_all()

    def _steadily(self, look: Callable[[], Any]) -> Any:
        """A look at the ledger, however often ZooKeeper is away meanwhile."""
        deadline_s = time.monotonic() + ACKNOWLEDGED_WITHIN_S
        while True:
            try:
                return look()
            except FloodmarkError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(TRY_AGAIN_S)

    # -- queries ---------------------------------------------------------------------------------------------------

    def ask(self, connection: Connection, query: Query) -> bool:
        """Ask a broker and check its answer. False when it gave none, as one may that is being killed."""
        with self._recorded:
            acknowledged = max(self.versions)
        try:
            answer = connection.sql(query.sql)
        except (Unavailable, QueryFailed) as error:
            if isinstance(error, QueryFailed) and error.status < 500 and error.status != 408:
                raise
            self.counts["queries without an answer"] += 1
            self.silences[_in_short(error)] += 1
            return False
        receipt = dict(answer.receipt or {})
        version = receipt["registry_versions"][self.table]
        wanted = duck_rows(query.judged, {self.table: self._files_at(version)})
        found = comparable(answer.rows())
        # A change that was acknowledged before the query is reflected in it (INV-12).
        if found != wanted or version < acknowledged:
            self.wrong.append(Wrong(query, version, found, wanted, receipt))
        mixed = receipt["view"] is not None and receipt["from_base"]["bytes"] > 0
        self.counts["mixed" if mixed else "from views" if receipt["view"] else "from base"] += 1
        self.counts["queries"] += 1
        return True

    def _files_at(self, version: int) -> tuple[str, ...]:
        """A change may be in an answer before its acknowledgement is here."""
        with self._recorded:
            known = self._recorded.wait_for(lambda: version in self.versions, ACKNOWLEDGED_WITHIN_S)
            assert known, f"version {version} was never acknowledged; known are {sorted(self.versions)[-5:]}"
            return self.versions[version]

    @property
    def changes(self) -> int:
        return sum(self.counts[kind] for kind in ("late", "replaced", "deleted"))

    def achieved(self) -> int:
        """Changes acknowledged and as many queries answered. Changes alone go on while both brokers are starting."""
        return min(self.changes, self.counts["queries"])

    # -- both, all the while ---------------------------------------------------------------------------------------

    @contextmanager
    def living(self, *, change_every_s: float = 1.0) -> Iterator[threading.Event]:
        """Changes flow and both brokers are asked while the block runs. The event is set when that has failed."""

        def changing(stop: threading.Event) -> None:
            while not stop.wait(change_every_s):
                self.change()

        def asking(connection: Connection, dice: random.Random) -> Callable[[threading.Event], None]:
            def run(stop: threading.Event) -> None:
                while not stop.is_set():
                    if not self.ask(connection, random_query(dice, self.table, hours=HOURS, of_views=False)):
                        stop.wait(TRY_AGAIN_S)

            return run

        brokers = self.system.brokers(timeout_s=ASK_TIMEOUT_S)
        with in_background(changing, *(asking(b, random.Random(self.dice.random())) for b in brokers)) as stop:
            yield stop

    # -- rest ------------------------------------------------------------------------------------------------------

    def converge(self) -> float:
        """Wait until every view reflects every change; returns the seconds it took. Lost is what never gets there."""
        began_s = time.monotonic()
        self.await_registered()
        last_ms = self._steadily(lambda: self.system.ledger.registry.header(self.table).max_last_ms)
        for view, bucket_ms in zip(self.views, (HOUR_MS, 24 * HOUR_MS), strict=True):
            up_to_ms = (last_ms + 1) // bucket_ms * bucket_ms
            self._steadily(
                lambda v=view, u=up_to_ms: self.system.await_built(v, up_to_ms=u, within_s=CONVERGED_WITHIN_S)
            )
        return time.monotonic() - began_s

    def await_registered(self) -> None:
        """The registry has exactly what was acknowledged, in the content that was."""

        def same() -> bool:
            known = self._steadily(lambda: self.system.ledger.registry.snapshot(self.table)).by_name
            stats = {f"{stem}.parquet": kept.stat() for stem, kept in self.present.items()}
            wanted = {name: f"{s.st_size}:{s.st_mtime_ns}" for name, s in stats.items()}
            found = {segment.path: segment.stamp for segment in known.values()}
            assert found == wanted, f"lost or undone: {set(wanted.items()) ^ set(found.items())}"
            return True

        eventually(same, within_s=60, every_s=0.5, what="the registry has what was acknowledged")

    def check_views(self) -> None:
        """Both brokers answer each view's own query from the view alone, and right."""
        for (bucket, _), keys in zip(VIEWS.values(), ("HOUR", "DAY"), strict=True):
            sums = (
                ("count(*)", "sum(cents)", "sum(price)") if bucket == "1d" else ("count(*)", "sum(fare)", "sum(cents)")
            )
            wanted = [
                (f"date_trunc('{keys}', @event_time)", "key"),
                ("@city", "key"),
                *((s, "aggregate") for s in sums),
            ]
            outputs = (Output(Text.both(what), kind, f"o{n}") for n, (what, kind) in enumerate(wanted))
            query = Query(self.table, tuple(outputs))
            for connection in self.system.brokers():
                eventually(
                    lambda c=connection, q=query: self.ask(c, q), within_s=120, every_s=1, what="an answer at rest"
                )
        assert not self.wrong, str(self.wrong[0])


def _in_short(error: Exception) -> str:
    """An error without what differs from one query to the next."""
    return re.sub(r"[\w./-]*\d[\w./-]*", "#", str(error))[:100]
