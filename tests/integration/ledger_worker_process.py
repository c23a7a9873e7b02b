"""A process that works on one ledger, for tests of concurrency: processes have nothing in common but ZooKeeper.

Arguments: hosts, role, seed, file for its history, milliseconds to run (not for `lockstep`).

    lockstep    obeys lines on standard input, `build HOUR ATTEMPT` and `commit HOUR`, and answers each with one line
    committer   builds and commits buckets as fast as it can
    marker      marks what the events in the outbox name, and acknowledges them
    registrar   adds, replaces and removes segments

Every successful write to the view or its source becomes a line of the history.
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from floodmark.core.buckets import Cause, Entry, State
from floodmark.core.registry import Put, Remove
from floodmark.core.transitions import Build, Decision, Mode, Reason, Rejected
from floodmark.ledger.engine import Budget, Budgets
from tests.support.ledger_kit import HOUR_MS, VIEW, Kit, segment, zookeeper_store
from tests.support.ledger_workers import FIRST_HOUR, LAST_HOUR, Recorded, WaitingClock, insisting

BUDGETS = Budgets(critical=Budget("critical", 512, 2, 8))
"""Short waits, since these processes meet all the time; so many that a leader's election fits in."""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def kind_of(decision: Decision) -> str:
    """How a worker counts an attempt: its own transition, one that was there already, or one in vain."""
    if isinstance(decision, Rejected):
        covered = decision.reason in (Reason.NOT_VACANT, Reason.NOT_STALE)
        return "covered" if covered else "superseded" if decision.reason is Reason.SUPERSEDED else str(decision.reason)
    return "committed"


# -- lockstep ------------------------------------------------------------------------------------------------------


def lockstep(kit: Kit) -> None:
    incarnation = insisting(lambda: kit.header.incarnation)
    built: dict[int, Build] = {}
    say("ready")
    for line in sys.stdin:
        word, hour, *rest = line.split()
        if word == "build":
            built[int(hour)] = insisting(partial(kit.build, int(hour), Mode.APPEND, rest[0]))
            say("built")
        else:
            say(kind_of(insisting(partial(kit.commit_one, built[int(hour)], incarnation))))


# -- the hammer ----------------------------------------------------------------------------------------------------


def committer(kit: Kit, randomness: random.Random, name: str) -> Iterator[None]:
    incarnation = kit.header.incarnation
    number = 0
    while True:
        hour = _interesting_hour(kit, randomness)
        build = _wanted(kit, hour, f"{name}-{number}")
        if build is not None:
            number += 1
            time.sleep(randomness.uniform(0, 0.06))  # the work itself, in which the source may change
            decision = kit.commit_one(build, incarnation)
            say(json.dumps({"attempt": build.attempt_id, "hour": hour, "was": kind_of(decision)}))
        yield


def _interesting_hour(kit: Kit, randomness: random.Random) -> int:
    """Any hour, or one where the frontier is, which all committers want to move."""
    at_ms = kit.header.watermark_ms
    assert at_ms is not None
    frontier = at_ms // HOUR_MS
    if frontier < LAST_HOUR and randomness.random() < 0.5:
        return min(frontier + randomness.randrange(3), LAST_HOUR - 1)
    return randomness.randrange(FIRST_HOUR, max(frontier, FIRST_HOUR + 1))


def _wanted(kit: Kit, hour: int, attempt: str) -> Build | None:
    """What a scheduler would ask for: nothing for a VALID bucket."""
    entry: Entry | None = kit.entry(hour)
    if entry is None:
        return kit.build(hour, Mode.APPEND, attempt)
    if entry.state is State.VALID:
        return None
    build = kit.build(hour, Mode.OVERWRITE, attempt)
    return replace(build, mode=Mode.DELETE) if build.fingerprint.is_empty else build


def marker(kit: Kit) -> Iterator[None]:
    while True:
        for event in kit.ledger.registry.outbox("rides"):
            ranges = [i for change in event.changes for i in change.ranges or ()]
            kit.ledger.views.mark_stale(VIEW.name, ranges, Cause("event", event.event_id, 0))
            kit.ledger.registry.acknowledge("rides", event)
        yield


def registrar(kit: Kit, randomness: random.Random) -> Iterator[None]:
    known: set[str] = set()
    while True:
        name = f"s{randomness.randrange(60)}"
        if name in known and randomness.random() < 0.3:
            known.discard(name)
            kit.ledger.registry.apply("rides", [Remove(name)])
        else:
            known.add(name)
            start = randomness.randrange(FIRST_HOUR, LAST_HOUR - 3)
            made = segment(name, start, start + randomness.choice((0.5, 1, 3)), crc=randomness.randrange(10**6))
            kit.ledger.registry.apply("rides", [Put(made)])
        time.sleep(0.01)  # its pace, not a wait: the others are to catch up now and then
        yield


def hammer(role: str, kit: Kit, seed: int, run_ms: int) -> None:
    randomness = random.Random(seed)
    steps = {
        "committer": lambda: committer(kit, randomness, f"c{seed}"),
        "marker": lambda: marker(kit),
        "registrar": lambda: registrar(kit, randomness),
    }[role]()
    until_s = time.monotonic() + run_ms / 1000
    for _ in steps:
        if time.monotonic() > until_s:
            return


def main(hosts: str, role: str, seed: str, history: str, run_ms: str = "0") -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # standard output is for answers
    with zookeeper_store(hosts, timeout_ms=20_000) as store, Path(history).open("w", encoding="utf-8") as file:
        kit = Kit(Recorded(store, history=file), clock=WaitingClock(), seed=int(seed), budgets=BUDGETS)
        if role == "lockstep":
            lockstep(kit)
        else:
            hammer(role, kit, int(seed), int(run_ms))


if __name__ == "__main__":
    main(*sys.argv[1:])
