"""Processes that work on one ledger at once, started and led by a test, and the judge of what they wrote."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from floodmark.core.buckets import Entry
from floodmark.core.errors import OutcomeUnknown, Unavailable
from floodmark.core.fingerprint import Fingerprint, fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.segments import Segment, Slice, segments_in
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Committed, Conflicted, Create, Op, Set
from floodmark.ledger.zookeeper import ZooKeeperStore
from tests.support.bus_doubles import FrozenClock
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit
from tests.support.memory_store import OneByOne, Watched

T = TypeVar("T")

FIRST_HOUR, LAST_HOUR = 200, 312
"""Of a hammered view: the frontier crosses from one shard into the next at hour 256."""
_ROOT = Path(__file__).parents[2]


class WaitingClock(FrozenClock):
    """Stands still for stamps, and waits in real time: connections come back in real time only."""

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)


def insisting(act: Callable[[], T]) -> T:
    """As a service does: what could not be reached, or not be known, is tried again with the same attempt id."""

    def known() -> list[T]:
        try:
            return [act()]
        except (Unavailable, OutcomeUnknown):
            return []

    return eventually(known, within_s=60, what="a known outcome")[0]


@contextmanager
def worker_process(hosts: str, role: str, seed: int, history: Path, run_ms: int = 0) -> Iterator[subprocess.Popen[str]]:
    """One process of tests/integration/ledger_worker_process.py; it is gone afterwards, whatever happened."""
    module = "tests.integration.ledger_worker_process"
    with history.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, hosts, role, str(seed), str(history), str(run_ms)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# -- lockstep ------------------------------------------------------------------------------------------------------


class LockstepWorker:
    """One worker that does one thing at a time, when told."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.name = name
        self._orders, self._answers = process.stdin, process.stdout
        assert self.answer() == "ready"

    def order(self, line: str) -> None:
        self._orders.write(line + "\n")
        self._orders.flush()

    def answer(self) -> str:
        return self._answers.readline().strip()


@dataclass
class Tally:
    """What became of all attempts at all tasks."""

    attempts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


def run_in_lockstep(
    workers: Sequence[LockstepWorker],
    hours: Iterable[int],
    *,
    between: Callable[[int, int], None] = lambda _number, _hour: None,
) -> Tally:
    """Every worker tries every task, all at the same time, until one of them has it.

    `between` may act when all have built and none has committed: it gets the number of the task and its hour.
    """
    tally = Tally()
    for number, hour in enumerate(hours):
        for round_ in range(3):
            _all(workers, [f"build {hour} {worker.name}-{hour}-{round_}" for worker in workers])
            if round_ == 0:
                between(number, hour)
            outcomes = _all(workers, [f"commit {hour}"] * len(workers))
            tally.attempts += len(workers)
            tally.outcomes.update(outcomes)
            if set(outcomes) != {"superseded"}:
                break
    return tally


def _all(workers: Sequence[LockstepWorker], lines: Sequence[str]) -> list[str]:
    """Give every worker its order, and only then hear the first answer."""
    for worker, line in zip(workers, lines, strict=True):
        worker.order(line)
    return [worker.answer() for worker in workers]


# -- the history of a view -----------------------------------------------------------------------------------------


@dataclass
class Recorded(OneByOne, Watched):
    """Writes down what each successful write left behind, and the transaction id that orders it among all processes.

    One thread writes through it, so the last id that its client has seen is the one of its own last write.
    """

    history: TextIO = sys.stderr

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        answer = super().commit(ops)
        if isinstance(answer, Committed):
            assert isinstance(self.inner, ZooKeeperStore)
            place = {"zxid": self.inner._client.last_zxid}
            for op, version in zip(ops, answer.versions, strict=True):
                if isinstance(op, Set | Create) and (facts := _facts(op)) is not None:
                    line = json.dumps({**place, "node": op.path, "version": version, **facts})
                    self.history.write(line + "\n")
            self.history.flush()
        return answer


def _facts(op: Set | Create) -> dict[str, Any] | None:
    """What a write says of the view or of its source; None for every other node."""
    if op.path == paths.view(VIEW.name):
        return {"watermark": codec.decode_view(op.data, what=op.path).watermark_ms}
    if op.path.startswith(f"{paths.slices(VIEW.table)}/"):
        listed = codec.decode_slice_node(op.data, what=op.path).segments
        return {"segments": [[s.name, s.crc, s.start_ms, s.last_ms, s.path, s.rows, s.bytes] for s in listed]}
    if op.path.startswith(f"{paths.shards(VIEW.name)}/"):
        entries = codec.decode_shard(op.data, VIEW.grid, what=op.path).entries
        return {"states": {str(start // HOUR_MS): _state(entry) for start, entry in entries.items()}}
    return None


def _state(entry: Entry) -> list[str]:
    return [str(entry.state), entry.attempt_id, str(entry.fingerprint)]


@dataclass
class Replay:
    """Follows every write to a view and its source in the one order in which they happened, and judges each."""

    committed: Counter[str] = field(default_factory=Counter)
    """How often each attempt made a bucket VALID."""
    marks: int = 0
    watermarks: list[int] = field(default_factory=list)
    states: dict[int, list[str]] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)
    _slices: dict[str, Slice] = field(default_factory=dict)

    def follow(self, row: dict[str, Any]) -> None:
        node = row["node"]
        expected = self._versions.get(node, -1) + 1
        assert row["version"] == expected, f"{node} has version {row['version']} where {expected} comes next"
        self._versions[node] = expected
        if "watermark" in row:
            self.watermarks.append(row["watermark"])
        elif "segments" in row:
            self._slices[node.rpartition("/")[2]] = Slice.of(Segment(*fields) for fields in row["segments"])
        else:
            self._follow_shard(node, {int(hour): state for hour, state in row["states"].items()})

    def _follow_shard(self, node: str, after: dict[int, list[str]]) -> None:
        number = int(node.rpartition("/")[2])
        before = {h: s for h, s in self.states.items() if VIEW.grid.shard_of(h * HOUR_MS) == number}
        assert set(before) <= set(after), f"{node} lost an entry"
        for hour in (h for h in after if after[h] != before.get(h)):
            self._judge(hour, before.get(hour), after[hour])
        self.states |= after

    def _judge(self, hour: int, old: list[str] | None, new: list[str]) -> None:
        """VACANT or STALE becomes VALID by an attempt of its own, VALID becomes STALE, and nothing else happens."""
        step = f"hour {hour}: {old} -> {new}"
        if new[0] == "STALE":
            assert old is not None, step
            assert old == ["VALID", *new[1:]], step
            self.marks += 1
            return
        assert old is None or (old[0] == "STALE" and old[1] != new[1]), step
        assert new[2] == str(self._source(hour)), f"{step} is not what the source was at that instant (INV-3)"
        self.committed[new[1]] += 1

    def _source(self, hour: int) -> Fingerprint:
        window = Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS)
        slices = [self._slices[key] for key in TABLE.grid.keys_for_window(window)]
        return fingerprint(segments_in(window, slices).values())


def replay(histories: Iterable[Path]) -> Replay:
    """Put the histories of all processes together; each version of each node must have one author among them."""
    lines = (line for history in histories for line in history.read_text(encoding="utf-8").splitlines())
    result = Replay()
    for row in sorted(map(json.loads, lines), key=lambda row: row["zxid"]):
        result.follow(row)
    return result


def states_of(kit: Kit) -> dict[int, list[str]]:
    """The states a view has now, as a replay would have them."""
    entries = kit.ledger.views.state(VIEW.name).entries
    return {start // HOUR_MS: _state(entry) for start, entry in entries.items()}
