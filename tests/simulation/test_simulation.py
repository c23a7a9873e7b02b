"""The simulator in the gate: no seed breaks a rule, a seed runs the same way every time, and known bugs are caught."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.plan import drawn
from tests.simulation.shrink import shrunk
from tests.simulation.teeth import BUGS, switched_on
from tests.simulation.teeth import ledger as _ledger  # noqa: F401 - registers its bugs
from tests.simulation.teeth import services as _services  # noqa: F401 - registers its bugs
from tests.simulation.world import Result, World, run_seed

ROOT = Path(__file__).parents[2]
SEEDS_AT_ONCE, PARTS = 75, 8
"""Sized for the whole file to take about a minute and a half; `make sim` runs as many as one likes."""
DIGESTS = "from tests.simulation.world import run_seed\nfor seed in range(40): print(run_seed(seed).digest)"
QUICKLY_CAUGHT = (
    "source-check-outside-the-write",
    "source-check-before-the-retry-loop",
    "runs-settled-without-a-check",
    "delete-removes-the-entry",
    "no-synthesis-of-vacant",
    "watermark-follows-the-clock",
    "watermark-in-a-second-write",
    "watermark-left-to-the-other",
    "moved-segment-reports-one-range",
    "outbox-cleared-before-publishing",
    "results-matched-first-in-first-out",
    "offset-committed-before-the-mark",
    "offset-committed-before-the-build",
    "one-hull-debounce",
    "event-before-the-registry-write",
    "freeze-by-a-flag-that-is-ignored",
    "equal-or-keep",
    "hold-released-when-listing-ends",
    "marks-stop-at-the-watermark",
    "dead-spark-held-against-its-tasks",
    "too-large-a-write-is-not-halved",
)
"""Caught by many seeds. The others, which take hundreds, are in docs/reliability.md, and how to find them."""
QUICKLY = 100


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_a_rule(part: int) -> None:
    """INV-2 to INV-14 after every step, and at rest every view is what its base table says."""
    for seed in range(part * SEEDS_AT_ONCE, (part + 1) * SEEDS_AT_ONCE):
        result = run_seed(seed)
        assert not result.rule, f"{result.message}\nfor its story: make sim ARGS='--seed {seed} --shrink'"


def test_the_table_of_known_bugs_has_each_of_them_once() -> None:
    """With the seed that catches it; a bug that nobody has run proves nothing."""
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \| [\d,]+ \| [\d,]+ \| ", text, re.MULTILINE)
    assert sorted(rows) == sorted(BUGS)
    assert f"All {len(BUGS)} were caught" in text


def test_a_run_does_something() -> None:
    """Were nothing built, marked or asked, nothing could be found wrong."""
    told = "".join(run_seed(seed).trace for seed in range(20))
    for word in (
        "STALE -> VALID",
        "VACANT -> VALID",
        "VALID -> STALE",
        "bucket_reverted",
        "file_deleted",
    ):
        assert word in told, f"in twenty runs nobody wrote {word!r}"


def test_two_runs_of_one_seed_give_the_same_trace_byte_by_byte() -> None:
    """In processes that hash text differently: the order of a set must not matter either."""

    def digests(hash_seed: str) -> str:
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        made = subprocess.run([sys.executable, "-c", DIGESTS], cwd=ROOT, env=environ, capture_output=True, check=True)
        return made.stdout.decode()

    first = digests("1")
    assert len(set(first.split())) == 40
    assert digests("3") == first


def caught(bug: str) -> Result:
    with switched_on(bug):
        for seed in range(QUICKLY):
            result = World(drawn(seed)).run()
            if result.rule:
                return result
    raise AssertionError(f"{bug} was not caught within {QUICKLY} seeds")


@pytest.mark.parametrize("bug", QUICKLY_CAUGHT)
def test_a_known_bug_is_caught(bug: str) -> None:
    """And the seed that caught it finds nothing without it."""
    seed = caught(bug).plan.seed
    assert not run_seed(seed).rule


def test_a_found_violation_is_replayed_and_shrunk() -> None:
    """The same rule, in a shorter story that replays as well."""
    bug = "offset-committed-before-the-mark"
    found = caught(bug)
    short = shrunk(found, bug)
    assert short.rule == found.rule
    assert len(short.plan.acts) + len(short.mishaps) < len(found.plan.acts) + len(found.mishaps)
    left_out = set(found.mishaps) - set(short.mishaps)
    with switched_on(bug):
        assert World(short.plan, left_out).run().rule == short.rule


def test_the_switches_leave_nothing_behind() -> None:
    """After a bug was on, the code is the one it was."""
    before = {name: [vars(owner)[at] for owner, at, _ in known.made()] for name, known in BUGS.items()}
    for name in BUGS:
        with switched_on(name):
            pass
    assert {name: [vars(owner)[at] for owner, at, _ in known.made()] for name, known in BUGS.items()} == before
