"""Workers on the real stack: two processes with Spark, real Kafka and ZooKeeper, rows checked by another engine."""

import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from floodmark.contracts.topics import TASKS
from floodmark.core.buckets import State
from floodmark.core.dispatch import Progress
from floodmark.core.tables import ViewStatus
from floodmark.core.transitions import Changed
from floodmark.local.kafka import KafkaServer
from tests.support.eventually import eventually
from tests.support.kafka_tools import committed
from tests.support.lab import Lab
from tests.support.ledger_kit import HOUR_MS
from tests.support.oracle import Recomputation, connected
from tests.support.pipeline import write_parquet
from tests.support.system import System

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1_200)]

SELECT = (
    "SELECT date_trunc('HOUR', event_time) AS hour, value, count(*) AS n, sum(value) AS total "
    "FROM {table} {where} GROUP BY 1, 2"
)
RECOMPUTED = (
    "SELECT date_trunc('hour', event_time), value, count(*), sum(value)::BIGINT FROM {{source}} {where} GROUP BY 1, 2"
)
COLUMNS = ("hour", "value", "n", "total")
numbers = count()


class Floor:
    """A table that is not scanned, with one hourly view, and what a test does to them."""

    def __init__(self, system: System, *, where: str = "", paused: bool = False) -> None:
        self.system = system
        self.table = f"rides{next(numbers)}"
        self.view = f"{self.table}_hourly"
        self.location = system.table(self.table, scan="false")
        system.view(self.view, self.table, select=SELECT.format(table=self.table, where=where), coverage_start_ms=0)  # type: ignore[arg-type]
        system.recomputations[self.view] = Recomputation(RECOMPUTED.format(where=where), COLUMNS)
        if paused:
            system.ledger.views.set_status(self.view, ViewStatus.PAUSED)

    def resume(self) -> None:
        self.system.ledger.views.set_status(self.view, ViewStatus.ACTIVE)

    def put(self, name: str, first_hour: float, last_hour: float, *, value: int = 1, rows: int = 10) -> Path:
        path = write_parquet(self.location / name, first_hour, last_hour, value=value, rows=rows)
        before = self.system.segments_of(self.table)
        self.system.announce(self.table, name)
        eventually(lambda: self.system.segments_of(self.table) != before, what=f"{name} registered")
        return path

    def forget(self, name: str) -> None:
        self.system.announce(self.table, name, action="delete")
        eventually(lambda: name not in self.system.segments_of(self.table), what=f"{name} forgotten")

    def await_built(self, hours: int) -> None:
        self.system.await_built(self.view, up_to_ms=hours * HOUR_MS)

    def await_right(self, buckets: int) -> None:
        """So many buckets are VALID and have rows, and all are right. An event that is heard after its change was built
        marks the bucket for a moment, until the scheduler sees that its source is as it was."""

        def checked() -> bool:
            found = self.system.check(self.view)
            assert found == buckets, f"{found} buckets with rows are VALID, of {buckets}"
            return True

        eventually(checked, what=f"{buckets} buckets of {self.view} right")

    def states(self) -> dict[int, str]:
        return self.system.states(self.view)

    def watermark_hour(self) -> float:
        return (self.system.ledger.views.header(self.view).watermark_ms or 0) / HOUR_MS

    def frozen(self, hour: int) -> str:
        """The error of a frozen bucket, once it is frozen."""

        def error() -> str | None:
            record = self.system.ledger.dispatch.records(self.view).get(hour * HOUR_MS)
            return record.error if record and record.frozen and record.progress is not Progress.CLAIMED else None

        return eventually(error, within_s=120, what=f"bucket {hour} of {self.view} frozen")

    def modes_of(self, hour: int) -> list[str]:
        return [t.mode for t in self.system.tasks() if t.view == self.view and t.bucket_start_ms == hour * HOUR_MS]


# -- the whole cycle ---------------------------------------------------------------------------------------------------


@pytest.mark.scenario("E1")
def test_every_step_of_a_tables_life_ends_in_the_rows_of_a_fresh_computation(system: System) -> None:
    """Load, append, late segment, replace, delete, backfill into the deleted window (INV-3, INV-4)."""
    floor = Floor(system)
    for hour in range(6):
        floor.put(f"s{hour}", hour, hour + 1, value=hour)
    floor.await_built(6)
    floor.await_right(6)
    floor.put("s6", 6, 7)
    floor.await_built(7)
    floor.await_right(7)
    floor.put("late", 2.25, 3.5, rows=40, value=7)
    floor.await_built(7)
    floor.await_right(7)
    assert floor.modes_of(2)[-1] == "OVERWRITE"
    floor.put("s4", 4, 5, value=44, rows=20)  # the same name, another content
    floor.await_built(7)
    floor.await_right(7)
    floor.forget("s5")
    floor.await_built(7)
    floor.await_right(6)
    entry = system.entries(floor.view)[5]
    assert entry.state is State.VALID
    assert entry.fingerprint is not None
    assert entry.fingerprint.is_empty
    assert floor.modes_of(5) == ["APPEND", "DELETE"]
    floor.put("again", 5, 6, value=55)
    floor.await_built(7)
    floor.await_right(7)
    assert floor.modes_of(5) == ["APPEND", "DELETE", "OVERWRITE"]


@pytest.mark.scenario("S9")
def test_a_definition_with_or_puts_only_its_own_windows_rows_into_each_bucket(system: System) -> None:
    """One file over three buckets: bounds pasted into the text would let rows of the others in."""
    floor = Floor(system, where="WHERE value = 1 OR value = 2")
    floor.put("one", 0, 3, value=1, rows=30)
    floor.put("two", 0, 3, value=2, rows=60)
    floor.put("none", 0, 3, value=3, rows=60)
    floor.await_built(3)
    floor.await_right(3)
    state = system.ledger.views.state(floor.view)
    for start_ms, entry in state.entries.items():
        with connected() as duck:
            rows = system.stored_rows(duck, state.header, [f.name for f in entry.files])
        assert {row[0].timestamp() * 1000 for row in rows} == {start_ms}
        assert [row[1:3] for row in rows] == [(1, 10), (2, 20)]


# -- tasks and what they are worth -------------------------------------------------------------------------------------


@pytest.mark.scenario("K1")
def test_tasks_that_a_peer_has_done_are_dropped_as_covered(system: System, kafka: KafkaServer) -> None:
    """The watermark is at 10 by a peer: nothing is written for 5 and 7, and the position moves on (INV-10)."""
    floor = Floor(system, paused=True)
    floor.put("all", 0, 12)
    Lab(system).await_caught_up(within_s=60)  # its mark comes before the peer's work, and not after it
    tasks = [system.task(floor.view, hour * HOUR_MS, "APPEND") for hour in range(10)]
    done = system.work(tasks)  # the peer
    assert {type(decision) for decision in done.values()} == {Changed}
    assert floor.watermark_hour() == 10
    before = system.entries(floor.view)
    system.send([tasks[5], tasks[7]])
    told = eventually(lambda: found if len(found := system.results(floor.view)) >= 2 else None, within_s=60)
    assert {(r.bucket_start_ms // HOUR_MS, r.outcome) for r in told} == {(5, "covered"), (7, "covered")}
    assert system.entries(floor.view) == before
    assert not list(Path(system.ledger.views.header(floor.view).definition.location).rglob("*.parquet"))

    def all_committed() -> bool:
        topic = f"{system.namespace}.{TASKS.name}"
        positions = committed(kafka, f"{system.namespace}.floodmark.worker", topic)
        return sum(positions.values()) >= len(system.tasks())

    eventually(all_committed, within_s=60, what="the position past both tasks")


@pytest.mark.scenario("K9")
def test_an_overwrite_that_keeps_no_row_takes_the_old_ones_away_and_is_not_empty(system: System) -> None:
    floor = Floor(system, where="WHERE value < 100")
    floor.put("s0", 0, 1, value=5)
    floor.await_built(1)
    floor.await_right(1)
    floor.put("s0", 0, 1, value=500)
    floor.await_built(1)
    floor.await_right(0)
    entry = system.entries(floor.view)[0]
    assert (entry.files, entry.fingerprint and entry.fingerprint.count) == ((), 1), "the source has a segment"


# -- inputs that are not what they were --------------------------------------------------------------------------------


@pytest.mark.scenario("K3")
@pytest.mark.scenario("K4")
def test_a_missing_input_freezes_its_bucket_alone_until_the_registry_names_another(system: System) -> None:
    """Twelve buckets, the file of number 5 deleted: the error names it and the watermark stands before it (INV-9)."""
    floor = Floor(system, paused=True)
    paths = [floor.put(f"s{hour}", hour, hour + 1, value=hour) for hour in range(12)]
    paths[5].unlink()
    floor.resume()
    error = floor.frozen(5)
    assert "s5" in error
    assert "deleted while it was registered" in error
    others = set(range(12)) - {5}
    eventually(lambda: {h for h, s in floor.states().items() if s == "VALID"} == others, within_s=120)
    assert floor.watermark_hour() == 5
    assert 5 not in floor.states(), "no entry for a bucket that was never built"
    floor.await_right(11)
    floor.put("mended", 5, 6, value=55)
    floor.forget("s5")
    floor.await_built(12)
    floor.await_right(12)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _change_a_value(path: Path) -> None:
    """As many bytes, and a whole Parquet file, but other rows."""
    table = pq.read_table(path)
    size = path.stat().st_size
    for value in range(2, 100):
        changed = table.set_column(1, table.field(1), [[value] * table.num_rows])
        pq.write_table(changed, path)
        if path.stat().st_size == size:
            return
    raise AssertionError(f"no other content of {size} bytes was found")


@pytest.mark.scenario("K5")
@pytest.mark.parametrize("damage", [_truncate, _change_a_value])
def test_a_truncated_or_changed_input_freezes_its_bucket_and_never_yields_fewer_rows(
    system: System, damage: Callable[[Path], None]
) -> None:
    floor = Floor(system, paused=True)
    paths = [floor.put(f"s{hour}", hour, hour + 1) for hour in range(3)]
    whole = paths[1].read_bytes()
    damage(paths[1])
    floor.resume()
    assert "s1" in floor.frozen(1)
    eventually(lambda: {h for h, s in floor.states().items() if s == "VALID"} == {0, 2}, within_s=120)
    assert floor.watermark_hour() == 1
    paths[1].write_bytes(whole)  # whoever puts it right and asks for another try, or waits for one
    floor.await_built(3)
    floor.await_right(3)


# -- workers that die, freeze and race ---------------------------------------------------------------------------------


@pytest.mark.scenario("K7")
def test_a_worker_killed_at_any_step_of_an_attempt_leaves_no_hole_and_no_duplicate(system: System) -> None:
    """Five more workers, each killed with -9 at another step. The two others finish everything (INV-2, INV-8)."""
    steps = ("claimed", "reading", "files written", "committed", "acknowledged")
    floor = Floor(system, paused=True)
    floor.put("all", 0, 96, rows=960)
    doomed = {step: system.start_odd_worker("SIGKILL", step) for step in steps}
    system.await_in_group(*doomed.values())
    floor.resume()
    for step, worker in doomed.items():
        assert worker.exit_code(within_s=240) == -signal.SIGKILL, f"the worker to be killed when {step}"
    floor.await_built(96)
    floor.await_right(96)


@pytest.mark.scenario("K6")
def test_a_worker_frozen_until_its_peers_did_its_work_converges_without_a_second_commit(system: System) -> None:
    """Frozen for longer than its place in the group, not than its session. It finds its work done, and goes on."""
    floor = Floor(system, paused=True)
    floor.put("all", 0, 48, rows=480)
    frozen = system.start_odd_worker("SIGSTOP", "files written", FLOODMARK_ZOOKEEPER__SESSION_TIMEOUT_MS="40000")
    system.await_in_group(frozen)
    floor.resume()
    frozen.await_event("signal_sent_to_self", within_s=120)
    floor.await_built(48)
    before = {hour: entry.attempt_id for hour, entry in system.entries(floor.view).items()}
    frozen.process.send_signal(signal.SIGCONT)
    frozen.await_event("bucket_covered", view=floor.view, within_s=120)
    assert {hour: entry.attempt_id for hour, entry in system.entries(floor.view).items()} == before
    floor.await_right(48)
    assert frozen.process.poll() is None, "it needs no restart"
    frozen.terminate()
    assert frozen.exit_code() == 0


def test_a_worker_frozen_past_its_session_ends_and_its_work_is_done_by_others(system: System) -> None:
    """Its session is over when it comes back: whatever it has in hand can no longer be committed (INV-13 in spirit)."""
    floor = Floor(system, paused=True)
    floor.put("all", 0, 48, rows=480)
    frozen = system.start_odd_worker("SIGSTOP", "files written")
    system.await_in_group(frozen)
    floor.resume()
    frozen.await_event("signal_sent_to_self", within_s=120)
    floor.await_built(48)
    before = system.entries(floor.view)
    frozen.process.send_signal(signal.SIGCONT)
    assert frozen.exit_code(within_s=60) == 75
    assert system.entries(floor.view) == before
    floor.await_right(48)
