"""Whoever uses the system: writes files and announces them, creates, drops and refreshes views, and asks queries.

The broker's part in a query is played as DESIGN 5.5 has it: a hold first, the registry once, and then bucket by bucket,
from the view where it is VALID from exactly that source, and from the base table everywhere else.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from floodmark.bus.ports import Outgoing
from floodmark.contracts.envelope import encode, originate
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.contracts.topics import ANNOUNCEMENTS, SEGMENTS
from floodmark.core.buckets import Cause, Entry, State
from floodmark.core.errors import BudgetExhausted, InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.ports import new_id
from floodmark.core.segments import Segment
from floodmark.core.tables import CoverageMode, TableDefinition, ViewDefinition
from floodmark.ledger.holds import HoldKeeper
from floodmark.ledger.ledger import ledger_on
from floodmark.ledger.registry import Snapshot
from floodmark.ledger.views import ViewState
from floodmark.parquet.lake import Lake
from tests.simulation.bus import Link
from tests.simulation.files import Row, decoded, encoded
from tests.simulation.hub import Life, Violation
from tests.simulation.oracle import Oracle
from tests.simulation.plan import BUCKET_MS, SECOND, SLICE_MS, TABLE, Act, Plan
from tests.simulation.processes import HOLD_TTL_MS, Surroundings
from tests.simulation.spark import evaluated
from tests.simulation.store import SimSession, SimStore

T = TypeVar("T")
BASE = "/lake/t"
TRIES_MAX = 40


class Person:
    def __init__(self, around: Surroundings, plan: Plan, oracle: Oracle) -> None:
        self.around = around
        self.plan = plan
        self.oracle = oracle
        self.life = Life(around.hub, "person")
        session = SimSession(self.life, around.store, lambda: None)
        self.ledger = ledger_on(
            SimStore(session, around.mishaps),
            clock=self.life,
            randomness=self.life.randomness,
        )
        self.publisher = Link(self.life, around.bus, around.mishaps).publisher()
        self.unsaid: dict[str, deque[Outgoing]] = {}
        self.queries = 0

    def begin(self) -> None:
        properties = {} if self.plan.scanned else {"scan": "false"}
        if self.plan.retention_ms is not None:
            properties["retention"] = f"{self.plan.retention_ms // 1000}s"
        definition = TableDefinition(TABLE, BASE, "time", SLICE_MS, (), properties)
        self._insist(lambda: self.ledger.registry.create_table(definition))

    def act(self, act: Act) -> None:
        """Each act has a thread of its own: a person does not wait for one thing to do the next."""
        does: dict[str, Callable[[Act], None]] = {
            "write": self._write,
            "rewrite": self._write,
            "move": self._write,
            "poison": self._write,
            "write late": self._write_late,
            "delete": self._delete,
            "create": self._create,
            "drop": self._drop,
            "replace": self._replace,
            "refresh": self._refresh,
            "refresh all": self._refresh_all,
            "query": self._query,
            "stream": self._stream,
        }
        self.life.spawn(lambda: does[act.kind](act), act.kind)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _write(self, act: Act) -> None:
        path = f"{act.subject}.parquet"
        known = (BASE, path) in self.around.disk.files
        self.around.disk.put(BASE, path, encoded(act.rows))
        self._announce("replace" if known else "add", path)

    def _write_late(self, act: Act) -> None:
        """The file is seen half written first; announced by someone impatient, it is refused."""
        path, content = f"{act.subject}.parquet", encoded(act.rows)
        self.around.disk.put(BASE, path, content[: len(content) // 2])
        self._announce("add", path)
        self.around.hub.sleep(self.around.hub.randomness.randint(100, 4_000))
        self.around.disk.put(BASE, path, content)
        self._announce("replace", path)

    def _delete(self, act: Act) -> None:
        path = f"{act.subject}.parquet"
        if self.around.disk.take_away(BASE, path):
            self._announce("delete", path)

    def announce_again(self, path: str) -> None:
        self.life.spawn(lambda: self._announce("add", path), "announce")

    def _announce(self, action: str, path: str) -> None:
        if self.plan.scanned:
            return
        message = SegmentAnnounced.model_validate({"table": TABLE, "action": action, "path": path})
        event_id = new_id(self.life.randomness)
        encoded_ = encode(originate(message, event_id=event_id, source="person", time_ms=self.life.now_ms()))
        unsaid = self.unsaid.setdefault(path, deque())
        unsaid.append(Outgoing(ANNOUNCEMENTS.name, encoded_.key, encoded_.value, encoded_.headers))
        if len(unsaid) > 1:
            return  # of one file things are said in their order; who says the one before says this too
        while unsaid:
            self._insist(lambda: self.publisher.publish([unsaid[0]]))
            unsaid.popleft()

    def _stream(self, act: Act) -> None:
        """The newest event is sent again and again, as a producer does that hears no answers."""
        until_ms, hub, bus = self.life.now_ms() + act.number, self.around.hub, self.around.bus
        while self.life.now_ms() < until_ms:
            for partition in bus.partitions(SEGMENTS.name):
                if log := bus.logs[partition]:
                    record = log[-1]
                    bus.append(Outgoing(SEGMENTS.name, record.key, record.value or b"", tuple(record.headers)))  # type: ignore[arg-type]
            hub.sleep(hub.randomness.randint(30, 80))

    # -- views ---------------------------------------------------------------------------------------------------------

    def _create(self, act: Act) -> None:
        self._insist(lambda: self._make(act))

    def _replace(self, act: Act) -> None:
        """Asked again after a lost answer, it is the view that the answer was about which is replaced."""
        self._insist(lambda: self._make(act, replacing=self.ledger.views.header(act.subject).incarnation))

    def _make(self, act: Act, *, replacing: str | None = None) -> None:
        bucket_ms = self.plan.second_bucket_ms if act.subject == SECOND else BUCKET_MS
        digest = hashlib.sha256(act.word.encode()).hexdigest()[:32]
        location = f"/lake/{act.subject}{'-elsewhere' * act.number}"
        coverage = CoverageMode(self.plan.coverage)
        definition = ViewDefinition(act.subject, TABLE, act.word, digest, bucket_ms, location, coverage)
        table = self.ledger.registry.header(TABLE)
        self.ledger.views.create(definition, coverage_start_ms=table.min_start_ms, replacing=replacing)

    def _drop(self, act: Act) -> None:
        self._insist(lambda: self.ledger.views.drop(act.subject))

    def _refresh(self, act: Act) -> None:
        cause = Cause("refresh", new_id(self.life.randomness), self.life.now_ms())
        window = Interval(act.number, act.number + 2 * BUCKET_MS)
        self._insist(lambda: self.ledger.views.mark_stale(act.subject, [window], cause))

    def _refresh_all(self, act: Act) -> None:
        cause = Cause("refresh", new_id(self.life.randomness), self.life.now_ms())
        self._insist(lambda: self.ledger.views.mark_stale(act.subject, None, cause))

    def _insist(self, do: Callable[[], object]) -> None:
        """Again and again until it is done, or cannot be."""
        for _ in range(TRIES_MAX):
            try:
                do()
            except (Unavailable, OutcomeUnknown, BudgetExhausted):
                self.around.hub.sleep(200)
            except InvalidInput:
                return  # it exists, or is gone
            else:
                return

    # -- queries -------------------------------------------------------------------------------------------------------

    def _query(self, act: Act) -> None:
        """INV-12: what it answers is what the base table had when it began."""
        try:
            self.ledger.store.sync()
            hold = self.ledger.holds.take(TABLE, "broker", ttl_ms=HOLD_TTL_MS)
            with HoldKeeper(self.ledger.holds, hold, ttl_ms=HOLD_TTL_MS, on_lost=lambda: None) as keeper:
                snapshot = self.ledger.registry.snapshot(TABLE)
                state = self.ledger.views.state(act.subject)
                self._answer(state, snapshot, keeper)
        except (Unavailable, OutcomeUnknown, BudgetExhausted, InvalidInput):
            return  # it answers with an error, which is no wrong row

    def _answer(self, state: ViewState, snapshot: Snapshot, keeper: HoldKeeper) -> None:
        grid, segments = state.header.definition.grid, list(snapshot.by_name.values())
        starts = sorted({s for seg in segments if seg.interval for s in grid.starts_in(seg.interval)})
        fresh = {s: e for s in starts if (e := self._usable(state, s, segments)) is not None}
        named = [(state.header.definition.location, f.name) for e in fresh.values() for f in e.files]
        done = self.oracle.holding(named)
        try:
            for start_ms in starts:
                window = grid.window(start_ms)
                mine = [s for s in segments if s.overlaps(window)]
                rows = (
                    self._from_view(state, fresh[start_ms], keeper)
                    if start_ms in fresh
                    else self._from_base(state, mine, start_ms)
                )
                if rows is None:
                    return
                if rows != self.oracle.expected(state.header, start_ms, mine):
                    raise Violation("INV-12 a query got wrong rows", f"bucket {start_ms}, from {len(mine)} segments")
            self.queries += 1
        finally:
            done()

    def _usable(self, state: ViewState, start_ms: int, segments: Sequence[Segment]) -> Entry | None:
        entry = state.at(start_ms)
        window = state.header.definition.grid.window(start_ms)
        if entry is None or entry.state is not State.VALID:
            return None
        return entry if entry.fingerprint == fingerprint([s for s in segments if s.overlaps(window)]) else None

    def _from_view(self, state: ViewState, entry: Entry, keeper: HoldKeeper) -> list[Row] | None:
        lake, rows = Lake(state.header.definition.location), []
        for file in entry.files:
            try:
                with lake.open(file.name) as source:
                    rows += decoded(source.read())
            except InvalidInput as error:
                if keeper.lost or self.ledger.store.read(keeper.hold.path) is None:
                    return None
                raise Violation("INV-11 a file vanished under its reader", file.name) from error
        return rows

    def _from_base(self, state: ViewState, segments: Sequence[Segment], start_ms: int) -> list[Row] | None:
        """None when a producer has changed a file meanwhile: then a query fails, and says so."""
        definition, rows = state.header.definition, list[Row]()
        for segment in segments:
            with Lake(BASE).open(segment.path) as source:
                content = source.read()
            if len(content) != segment.bytes or decoded(content) != self.oracle.rows_of([segment]):
                return None
            rows += decoded(content)
        return evaluated(definition.select, rows, start_ms, start_ms + definition.bucket_ms)
