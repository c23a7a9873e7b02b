"""A table that changes under its queries, asked through a broker that may be killed, with DuckDB beside it as a judge.

Changes go into the registry by the test's own hand, which keeps the files of every version. An answer says on which
version it stands, so that DuckDB can be asked about exactly those files, however fast they change.
"""

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle

import duckdb

from floodmark.client import Answer, QueryFailed
from floodmark.core.errors import Unavailable
from floodmark.core.registry import Command, Put, Remove
from tests.support.broker import BrokerUnderTest, Rides, Row, comparable, registered_segment, started_broker
from tests.support.eventually import eventually
from tests.support.service_process import ServiceUnderTest
from tests.support.system import SMALL_SPARK, START_WITHIN_S, System

VERSIONS_KEPT_MAX = 8
CUT_OFF_MAX = 5
KILLED = ("broker", "worker", "ingester", "consistency", "scheduler", "janitor")
SETTINGS = {
    "worker": SMALL_SPARK,
    # It deletes what views have replaced while queries read them: holds have to stand.
    "janitor": {"FLOODMARK_JANITOR__EVERY_MS": "1000", "FLOODMARK_JANITOR__GRACE_MS": "2000"},
}


@dataclass
class Judge:
    """DuckDB over the files of a version. Those of the latest versions are read once, for all queries on them."""

    table: str
    views: dict[str, str] = field(default_factory=dict)
    """Their queries, for those who ask them by name."""
    _kept: OrderedDict[int, duckdb.DuckDBPyConnection] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self, sql: str, version: int, files: Sequence[str]) -> list[Row]:
        with self._lock:
            cursor = self._read(version, files).cursor()
        cursor.execute("SET TimeZone = 'UTC'")
        return comparable(cursor.execute(sql).fetchall())

    def _read(self, version: int, files: Sequence[str]) -> duckdb.DuckDBPyConnection:
        if version not in self._kept:
            made = duckdb.connect(config={"threads": 1})
            made.execute(f"CREATE TABLE {self.table} AS SELECT * FROM read_parquet({list(files)!r})")
            for view, select in self.views.items():
                made.execute(f"CREATE VIEW {view} AS {select}")
            self._kept[version] = made
            if len(self._kept) > VERSIONS_KEPT_MAX:
                self._kept.popitem(last=False)
        return self._kept[version]


@dataclass
class World:
    """A table whose every version is remembered."""

    rides: Rides
    dice: random.Random
    hours: int
    versions: dict[int, tuple[str, ...]] = field(default_factory=dict)
    registered: dict[str, str] = field(default_factory=dict)
    files: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.judge = Judge(self.rides.name)
        self.asking = random.Random(self.dice.random())
        """So that the queries do not depend on how many changes there were between them."""

    @property
    def system(self) -> System:
        return self.rides.broker.system

    def change(self) -> None:
        """A late file, a file replaced, or a file gone. The table stays about as large as it was."""
        kind = self.dice.random()
        many = len(self.registered) > self.hours * 3 // 2
        if len(self.registered) < self.hours // 2 or (kind < 0.5 and not many):
            self.put(f"s{self.files}", self.dice.randrange(self.hours))
        elif kind < 0.7:
            self.put(self.dice.choice(sorted(self.registered)), self.dice.randrange(self.hours))
        else:
            self.apply(Remove(self.dice.choice(sorted(self.registered))))

    def put(self, name: str, hour: int) -> None:
        """A new file under this name. The one before stays where it is: answers on earlier versions need it."""
        self.files += 1
        length = self.dice.choice((1, 1, 1, 3, 0.5))
        nulls = 0.02 if self.dice.random() < 0.1 else 0.0
        path = self.rides.write(f"f{self.files}", hour, hour + length, rows=self.dice.choice((400, 1_000)), nulls=nulls)
        self.apply(Put(registered_segment(self.rides, path, name=name)))

    def apply(self, command: Command) -> None:
        with self.lock:
            (done,) = self.system.ledger.registry.apply(self.rides.name, [command])
            if isinstance(command, Put):
                self.registered[command.name] = str(self.rides.location / command.segment.path)
            else:
                self.registered.pop(command.name, None)
            self.versions[done.result.version] = tuple(sorted(self.registered.values()))

    def wanted(self, sql: str, version: int) -> list[Row]:
        with self.lock:
            files = self.versions[version]
        return self.judge.rows(sql, version, files)

    def asked(self, sql: str) -> tuple[Answer, int]:
        """The answer, and how often the end of a broker, or of its connection to ZooKeeper, cut it off before."""
        times = 0
        while True:
            broker = self.rides.broker
            try:
                return broker.sql(sql), times
            except Unavailable:
                eventually(lambda b=broker: self.rides.broker is not b, within_s=180, what="another broker")  # type: ignore[misc]
            except QueryFailed as error:
                if error.rule != "unavailable" or times >= CUT_OFF_MAX:
                    raise
                eventually(lambda b=broker: self._is_ready(b), within_s=180, what="a broker that is ready")  # type: ignore[misc]
            times += 1

    def _is_ready(self, broker: BrokerUnderTest) -> bool:
        """This one again, or another that has taken over."""
        try:
            return self.rides.broker is not broker or broker.process.ask("/readyz")[0] == 200
        except OSError:
            return False  # it has been killed meanwhile

    @contextmanager
    def changing(self, *, every_s: float) -> Iterator[None]:
        """Changes flow while the block runs."""
        with _repeating(self.change, every_s=every_s):
            yield


class Killer:
    """Kills replicas of services in turn and starts them again; the broker when its successor can take over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._turns = cycle(KILLED)
        self.killed = dict.fromkeys(KILLED, 0)
        self._running = {name: self._start(name) for name in KILLED}

    @property
    def has_killed_each(self) -> bool:
        return all(self.killed.values())

    def kill_one(self) -> None:
        """The next one that has come up since it was last its turn. But first a broker that ended by itself, as it does
        when it loses its session on a busy machine: its successor takes over, and nobody waits for its turn."""
        for name in [n for n, running in self._running.items() if running.process.poll() is not None]:
            self._running[name] = self._start(name)  # one that lost its session, or did not get one in time
        broker, successor = self._world.rides.broker.process, self._running["broker"]
        if broker.process.poll() is not None and successor.events("service_started"):
            self._kill("broker")
            return
        for _ in KILLED:
            name = next(self._turns)
            if self._running[name].events("service_started"):
                self._kill(name)
                return

    def end(self) -> None:
        for left in self._running.values():
            left.process.kill()

    def _kill(self, name: str) -> None:
        victim = self._running[name]
        if name == "broker":
            victim, successor = self._world.rides.broker.process, victim
            victim.process.kill()
            self._world.rides.broker = started_broker(self._world.system, successor)
        else:
            victim.process.kill()
        self.killed[name] += 1
        self._running[name] = self._start(name)

    def _start(self, name: str) -> ServiceUnderTest:
        if name == "broker":
            return start_own_broker(self._world.system)
        return self._world.system.start(name, **SETTINGS.get(name, {}))

    @contextmanager
    def killing(self, *, every_s: float) -> Iterator[None]:
        try:
            with _repeating(self.kill_one, every_s=every_s):
                yield
        finally:
            self.end()


def start_own_broker(system: System) -> ServiceUnderTest:
    """A broker that nobody else asks, so that it may be killed."""
    return system.start("broker", **SMALL_SPARK, FLOODMARK_BROKER__VIEWS_LOCATION=str(system.lake / "views_of_killed"))


def own_broker(system: System) -> BrokerUnderTest:
    process = start_own_broker(system)
    process.await_event("service_started", within_s=START_WITHIN_S)
    return started_broker(system, process)


@contextmanager
def _repeating(act: Callable[[], None], *, every_s: float) -> Iterator[None]:
    """What fails on the way fails the block."""
    stop = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            while not stop.wait(every_s):
                act()
        except Exception as error:  # told on the test's own thread
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
