"""Many processes on one view of a real ZooKeeper: every transition happens once, and the history adds up."""

import json
import random
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.ledger_kit import HOUR_MS, Kit, cause, segment, zookeeper_store
from tests.support.ledger_workers import (
    FIRST_HOUR,
    LAST_HOUR,
    LockstepWorker,
    Recorded,
    replay,
    run_in_lockstep,
    states_of,
    worker_process,
)

pytestmark = pytest.mark.stack
TASKS = 1_000
HAMMER_MS = 10_000


@pytest.fixture
def hosts(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.hosts}/{uuid.uuid4().hex}"


@pytest.fixture
def own_history(tmp_path: Path) -> Path:
    return tmp_path / "test.jsonl"


@pytest.fixture
def kit(hosts: str, own_history: Path) -> Iterator[Kit]:
    with zookeeper_store(hosts) as store, own_history.open("w", encoding="utf-8") as file:
        yield Kit(Recorded(store, history=file))


@pytest.mark.scenario("L14")
def test_two_workers_in_lockstep_make_each_transition_once(
    hosts: str, kit: Kit, own_history: Path, tmp_path: Path
) -> None:
    """1,000 tasks, each tried by both at the same moment; under every tenth the source changes before they commit."""
    kit.set_up()
    kit.put(*(segment(f"s{h}", h, h + 1) for h in range(TASKS)))
    hours = list(range(TASKS))
    random.Random(14).shuffle(hours)
    histories = [tmp_path / f"{name}.jsonl" for name in ("w1", "w2")]

    def change(number: int, hour: int) -> None:
        if number % 10 == 3:
            kit.put(segment(f"late{hour}", hour, hour + 0.5))

    with ExitStack() as stack:
        workers = [
            LockstepWorker(stack.enter_context(worker_process(hosts, "lockstep", seed, history)), history.stem)
            for seed, history in enumerate(histories, start=1)
        ]
        tally = run_in_lockstep(workers, hours, between=change)
    assert tally.outcomes == {"committed": TASKS, "covered": TASKS, "superseded": TASKS // 10 * 2}
    assert tally.outcomes.total() == tally.attempts
    history = replay([own_history, *histories])
    assert len(history.committed) == history.committed.total() == TASKS
    assert kit.watermark_hour == TASKS
    assert kit.source_differs() == []
    winners = Counter(attempt.partition("-")[0] for attempt in history.committed)
    assert min(winners["w1"], winners["w2"]) > 0, "a race that one side always wins is none"


@pytest.mark.scenario("L14")
def test_committers_markers_and_a_registrar_on_one_view_leave_a_history_that_adds_up(
    hosts: str, kit: Kit, own_history: Path, tmp_path: Path
) -> None:
    """Two, two and one for ten seconds. Every version of every node has one author, each step is a legal one, and
    each bucket that became VALID had at that instant the source it was built from (INV-3)."""
    kit.set_up(coverage_hour=FIRST_HOUR)
    kit.put(segment("first", FIRST_HOUR, FIRST_HOUR + 1), segment("last", LAST_HOUR - 1, LAST_HOUR))
    roles = ["committer", "committer", "marker", "marker", "registrar"]
    histories = [tmp_path / f"{n}.jsonl" for n in range(len(roles))]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(worker_process(hosts, role, n, history, HAMMER_MS))
            for n, (role, history) in enumerate(zip(roles, histories, strict=True))
        ]
        seen = _watermarks_while_running(kit, processes)
        told = [process.communicate(timeout=60)[0] for process in processes]
        for process, path in zip(processes, histories, strict=True):
            assert process.returncode == 0, path.with_suffix(".log").read_text(encoding="utf-8")[-2_000:]

    history = replay([own_history, *histories])
    attempts = [json.loads(line) for text in told for line in text.splitlines()]
    assert history.committed == Counter(row["attempt"] for row in attempts if row["was"] == "committed")
    assert set(history.committed.values()) == {1}, "each attempt made its bucket VALID once"
    _check_watermark(kit, seen, history.watermarks)
    assert history.states == states_of(kit)
    _mark_what_is_left(kit)
    assert kit.source_differs() == []
    outcomes = Counter(row["was"] for row in attempts)
    assert min(history.marks, len(history.watermarks), outcomes["committed"]) > 20
    assert outcomes["superseded"] > 0, "sources did change under running attempts"


def _watermarks_while_running(kit: Kit, processes: list[subprocess.Popen[str]]) -> list[int]:
    """What a reader sees of the watermark, until the first process ends."""
    seen: list[int] = []
    while all(process.poll() is None for process in processes):
        at_ms = kit.header.watermark_ms
        assert at_ms is not None
        seen.append(at_ms)
        with suppress(subprocess.TimeoutExpired):
            processes[0].wait(timeout=0.02)
    return seen


def _check_watermark(kit: Kit, seen: list[int], written: list[int]) -> None:
    """INV-5: it never decreases, never passes the data, and below it no bucket is VACANT."""
    assert all(a <= b for a, b in pairwise(seen))
    assert all(a < b for a, b in pairwise(written))
    header = kit.header
    assert header.watermark_ms == written[-1] <= LAST_HOUR * HOUR_MS
    assert {*kit.states()} >= set(range(FIRST_HOUR, header.watermark_ms // HOUR_MS))


def _mark_what_is_left(kit: Kit) -> None:
    for event in kit.ledger.registry.outbox("rides"):
        ranges = [i for change in event.changes for i in change.ranges or ()]
        kit.ledger.views.mark_stale("rides_hourly", ranges, cause(event.event_id))
