"""What happens to the system in one run: drawn from the seed beforehand, as a list that can be printed and shortened.

An act is a change of the base table, a word from a person, or something that goes wrong; `at_ms` counts from the start.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.core.segments import PART_BYTES_MAX
from tests.simulation.files import Row
from tests.simulation.spark import COUNT, POISON, SUM

BUCKET_MS = 60_000
SLICE_MS = 4 * BUCKET_MS
BUCKETS = 9
"""The data lies in so many buckets before the start."""
BASE_BUCKET = 256 * 100
"""A boundary between two shards; runs begin a little after it."""
TABLE, FIRST, SECOND = "t", "v1", "v2"
HORIZON_MS = 15_000
STREAM_MS = 5_000
PROCESSES = (("ingester", 1), ("consistency", 2), ("scheduler", 2), ("worker", 2), ("janitor", 1))
REPLICAS = tuple(f"{service}-{n}" for service, count in PROCESSES for n in range(1, count + 1))
LOSABLE_TOPICS = ("segments.v1", "tasks.v1", "results.v1")
ANCIENT, BETWEEN, FUTURE = "x", "y", "z"
FAR_BUCKETS = 256 * 40
NAMES = ("a", "b", "c", "d", "e", "f")


@dataclass(frozen=True)
class Act:
    at_ms: int
    kind: str
    subject: str = ""
    rows: tuple[Row, ...] = ()
    number: int = 0
    word: str = ""

    def __str__(self) -> str:
        told = [f"{self.at_ms / 1000:7.3f} s  {self.kind}", self.subject, self.word]
        told += [str(self.number)] if self.number else []
        told += [f"{len(self.rows)} rows from {self.rows[0][0]} to {self.rows[-1][0]}"] if self.rows else []
        return " ".join(part for part in told if part)


@dataclass(frozen=True)
class Plan:
    seed: int
    start_ms: int
    acts: tuple[Act, ...]
    mishap_rate: float
    scanned: bool
    """Whether the ingester finds files by itself; otherwise each change is announced."""
    retention_ms: int | None
    second_bucket_ms: int
    coverage: str
    lossy: bool
    """Whether the bus loses some of what it has acknowledged."""
    write_items_max: int | None = None
    """How many buckets and segments one write may change, where it is a write too large that is to be seen."""
    part_bytes_max: int = PART_BYTES_MAX
    """When a slice of the registry is cut."""


def drawn(seed: int) -> Plan:
    """Some runs are peaceful, some have mishaps of single calls, some have crashes and worse, most have all of it."""
    chance = random.Random(f"plan/{seed}")
    start_ms = (BASE_BUCKET + chance.randint(1, BUCKETS)) * BUCKET_MS
    stormy = chance.random() < 0.8
    scanned = chance.random() < 0.6
    acts = _changes(chance, start_ms) + _words(chance, start_ms)
    if stormy:
        acts += _storms(chance, scanned=scanned)
        acts += _deaths_of_spark(random.Random(f"spark/{seed}"))
    acts += _replacements(random.Random(f"replace/{seed}"))
    acts += _moves_while_cut_off(random.Random(f"moves/{seed}"), acts)
    acts += _far_rows(random.Random(f"far/{seed}"), start_ms)
    return Plan(
        seed=seed,
        start_ms=start_ms,
        acts=tuple(sorted(acts, key=lambda act: act.at_ms)),
        mishap_rate=chance.choice((0.0, 0.003, 0.01, 0.03)),
        scanned=scanned,
        # A path that is being cleared away is refused to whoever announces it; only a scan comes back to it by itself.
        retention_ms=chance.choice((None, None, (BUCKETS - 3) * BUCKET_MS)) if scanned else None,
        second_bucket_ms=chance.choice((BUCKET_MS, 2 * BUCKET_MS)),
        coverage=chance.choice(("extend", "extend", "extend", "fixed")),
        lossy=random.Random(f"lossy/{seed}").random() < 0.2,
        write_items_max=random.Random(f"items/{seed}").choice((None, None, None, 1, 2, 3)),
        part_bytes_max=random.Random(f"parts/{seed}").choice((PART_BYTES_MAX, PART_BYTES_MAX, 100, 250)),
    )


def _changes(chance: random.Random, start_ms: int) -> list[Act]:
    acts = [Act(0, "write", name, _rows(chance, start_ms)) for name in NAMES[: chance.randint(1, 3)]]
    acts.append(Act(0, "write", "end", ((start_ms - 1, "k0", 1),)))
    at_ms = 0
    for _ in range(chance.randint(2, 7)):
        at_ms += chance.randint(0, 2 * HORIZON_MS // 7)
        kind = chance.choice(("write", "write", "write", "write late", "rewrite", "delete", "move", "poison"))
        rows = () if kind == "delete" else _rows(chance, start_ms)
        if kind == "poison":
            rows = (*rows[:-1], (rows[-1][0], POISON, 1))
        acts.append(Act(min(at_ms, HORIZON_MS), kind, chance.choice(NAMES), rows))
    return acts


def _rows(chance: random.Random, start_ms: int) -> tuple[Row, ...]:
    """A few rows within one to three buckets, often right at their edges."""
    first = chance.randint(1, BUCKETS)
    last = max(0, first - chance.randint(0, 2))
    low, high = start_ms - first * BUCKET_MS, start_ms - last * BUCKET_MS - 1
    times = sorted(chance.choice((low, high, chance.randint(low, max(low, high)))) for _ in range(chance.randint(1, 4)))
    return tuple((t, f"k{chance.randint(0, 2)}", chance.randint(1, 99)) for t in times)


def _far_rows(chance: random.Random, start_ms: int) -> list[Act]:
    """In some runs a row lies far before all others, or far after, and later some lie in the middle of nowhere."""
    acts: list[Act] = []
    if chance.random() < 0.3:
        ancient_ms = (start_ms // BUCKET_MS - FAR_BUCKETS - chance.randint(0, 300)) * BUCKET_MS
        at_ms = chance.choice((0, 0, chance.randint(0, HORIZON_MS)))
        acts.append(Act(at_ms, "write", ANCIENT, ((ancient_ms, "k0", 1),)))
        for _ in range(chance.randint(0, 3)):
            between_ms = chance.randint(ancient_ms, start_ms - 1)
            soon_ms = min(HORIZON_MS, at_ms + chance.choice((chance.randint(0, 2_500), chance.randint(0, HORIZON_MS))))
            acts.append(Act(soon_ms, "write", BETWEEN, ((between_ms, "k1", chance.randint(1, 9)),)))
        if chance.random() < 0.3:
            acts.append(Act(chance.randint(2_000, HORIZON_MS), "delete", chance.choice((ANCIENT, BETWEEN))))
        if chance.random() < 0.3:
            acts.append(Act(chance.randint(2_000, HORIZON_MS), "refresh all", FIRST))
    if chance.random() < 0.1:
        far_ms = start_ms + FAR_BUCKETS * BUCKET_MS
        acts.append(Act(chance.choice((0, chance.randint(0, HORIZON_MS))), "write", FUTURE, ((far_ms, "k2", 1),)))
    return acts


def _words(chance: random.Random, start_ms: int) -> list[Act]:
    acts = [Act(chance.choice((0, 500)), "create", FIRST, word=chance.choice((COUNT, SUM)))]
    if chance.random() < 0.4:
        acts.append(Act(chance.randint(0, HORIZON_MS), "create", SECOND, word=SUM))
    if chance.random() < 0.3:
        at_ms = chance.randint(1_000, HORIZON_MS - 4_000)
        acts.append(Act(at_ms, "drop", FIRST))
        acts.append(Act(at_ms + chance.randint(0, 3_000), "create", FIRST, word=chance.choice((COUNT, SUM))))
    for _ in range(chance.choice((0, 1, 1, 2))):
        first = chance.randint(1, BUCKETS)
        at_ms, bucket_ms = chance.randint(1_000, HORIZON_MS), start_ms - first * BUCKET_MS
        acts.append(Act(at_ms, "refresh", FIRST, number=bucket_ms))
        if chance.random() < 0.7:  # while it is looked at again, something really changes there
            late = ((bucket_ms + chance.randint(0, BUCKET_MS - 1), "k0", chance.randint(1, 99)),)
            acts.append(Act(min(HORIZON_MS, at_ms + chance.randint(0, 1_500)), "write", chance.choice(NAMES), late))
    if chance.random() < 0.05:
        acts.append(Act(chance.randint(4_000, HORIZON_MS // 2), "stream", number=STREAM_MS))
    for _ in range(chance.randint(0, 3)):
        acts.append(Act(chance.randint(2_000, HORIZON_MS), "query", chance.choice((FIRST, FIRST, SECOND))))
    return acts


STORMS = (
    *("crash",) * 4,
    *("pause",) * 3,
    *("stop",) * 2,
    "cut store",
    "cut bus",
    *("lag",) * 4,
    "slow disk",
    "jump clock",
    "lose topic",
    "rebalance",
    "vanish",
    "two leaders",
)


def _storms(chance: random.Random, *, scanned: bool) -> list[Act]:
    acts = []
    for _ in range(chance.randint(1, 6)):
        at_ms, kind = chance.randint(200, HORIZON_MS), chance.choice(STORMS)
        subject = chance.choice(REPLICAS)
        duration_ms = chance.choice((300, 1_500, 4_000, 7_000, 9_000))
        if kind == "lose topic":
            # Without a scan, nobody announces anew what was lost with the announcements.
            subject = chance.choice((*LOSABLE_TOPICS, "announcements.v1") if scanned else LOSABLE_TOPICS)
        elif kind == "vanish":
            subject = chance.choice((*NAMES, "end"))
        elif kind == "jump clock":
            # Files are safe while the clocks of those that write and delete them are at most `skew_ms` apart.
            most_ms = 250 if subject.startswith(("worker", "janitor")) else 5_000
            duration_ms = chance.choice((-most_ms, most_ms))
        elif kind == "lag":
            subject = chance.choice((*REPLICAS, "consistency-1", "consistency-2"))
        elif kind == "rebalance":
            subject = chance.choice(("consistency", "worker"))
        elif kind == "two leaders":
            subject = chance.choice(("scheduler", "sweep"))
        elif kind == "slow disk":
            subject = ""
        acts.append(Act(at_ms, kind, subject, number=duration_ms))
        if subject == "tasks.v1" and chance.random() < 0.5:  # and with it those who had read from it
            acts += [Act(at_ms + chance.randint(0, 300), "crash", f"worker-{n}") for n in (1, 2)]
    return acts


def _replacements(chance: random.Random) -> list[Act]:
    """A view is replaced by another, sometimes in another place."""
    if chance.random() >= 0.2:
        return []
    at_ms = chance.randint(1_500, HORIZON_MS)
    return [Act(at_ms, "replace", FIRST, number=chance.choice((0, 1)), word=chance.choice((COUNT, SUM)))]


def _deaths_of_spark(chance: random.Random) -> list[Act]:
    """The engine of a worker dies under it, sometimes that of the next one too."""
    deaths = chance.choice((0, 0, 0, 1, 1, 2))
    return [Act(chance.randint(200, HORIZON_MS), "kill spark", f"worker-{chance.randint(1, 2)}") for _ in range(deaths)]


def _moves_while_cut_off(chance: random.Random, acts: Sequence[Act]) -> list[Act]:
    """Partitions that go, and often come back, while whoever reads them stands still for want of the store."""
    moves = []
    for cut in (act for act in acts if act.kind == "cut store" and act.subject.startswith(("consistency", "worker"))):
        service, half_ms = cut.subject.partition("-")[0], cut.number // 2
        for earliest_ms in (cut.at_ms, cut.at_ms + half_ms):
            if chance.random() < 0.8:
                moves.append(Act(earliest_ms + chance.randint(0, half_ms), "rebalance", service))
    return moves
