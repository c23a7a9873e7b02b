"""Runs seeds and says what was found: `python -m tests.simulation --seeds 1000`.

--bug NAME      with a known bug put back; stops at the first seed that catches it
--teeth         every known bug in turn; prints the table of docs/reliability.md
--seed N        one seed only, and its story
--shrink        make what was found as short as it gets
"""

import argparse
import re
import sys
import time

from tests.simulation.plan import drawn
from tests.simulation.shrink import shrunk
from tests.simulation.teeth import BUGS, switched_on
from tests.simulation.teeth import ledger as _ledger  # noqa: F401 - registers its bugs
from tests.simulation.teeth import services as _services  # noqa: F401 - registers its bugs
from tests.simulation.world import Result, World

STORY_LINES_MAX = 60
TELL_EVERY_S = 5


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.teeth:
        return _teeth([options.bug] if options.bug else list(BUGS), options.seeds)
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    found = _run(seeds, options.bug, stop_at_first=options.bug is not None or options.stop)
    for result in found[:5]:
        _tell(shrunk(result, options.bug) if options.shrink else result)
    if options.trace and options.seed is not None:
        with switched_on(options.bug):
            sys.stdout.write(World(drawn(options.seed)).run().trace)
    return 0 if bool(found) == (options.bug is not None) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--bug", choices=sorted(BUGS))
    parser.add_argument("--teeth", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--stop", action="store_true", help="at the first seed that finds something")
    parser.add_argument("--trace", action="store_true", help="print every step of --seed")
    return parser


def _run(seeds: "range | list[int]", bug: str | None, *, stop_at_first: bool) -> list[Result]:
    """Run the seeds, telling how far it is. Returns those that found something."""
    found: list[Result] = []
    begun_s = told_s = time.monotonic()
    busy_from_s = time.process_time()
    steps = done = 0
    with switched_on(bug):
        for seed in seeds:
            result = World(drawn(seed)).run()
            steps, done = steps + result.steps, done + 1
            if result.rule:
                found.append(result)
                _say(f"seed {seed}: {result.message[:200]}")
                if stop_at_first:
                    break
            if time.monotonic() - told_s > TELL_EVERY_S:
                told_s = time.monotonic()
                _say(f"{done:,} of {len(seeds):,} seeds, {steps:,} steps, {len(found)} violations")
    took_s, busy_s = time.monotonic() - begun_s, time.process_time() - busy_from_s
    each = f"{took_s / done * 1000:.0f} ms each, {busy_s / done * 1000:.0f} ms of processor time"
    _say(f"{done:,} seeds, {steps:,} steps, {len(found)} violations, {took_s:.0f} s ({each})")
    return found


def _teeth(bugs: list[str], seeds: int) -> int:
    """Every bug must be caught. One line of the table for each."""
    missed = 0
    sys.stdout.write("| Bug | First seed | Steps | Rule | Shrunk to |\n| --- | --- | --- | --- | --- |\n")
    for name in bugs:
        found = _run(range(seeds), name, stop_at_first=True)
        if not found:
            missed += 1
            sys.stdout.write(f"| `{name}` | **not within {seeds:,}** | | | |\n")
            continue
        short = shrunk(found[0], name)
        size = f"{len(short.plan.acts)} acts, {len(short.mishaps)} mishaps, {short.steps:,} steps"
        row = (f"`{name}`", str(found[0].plan.seed), f"{found[0].steps:,}", found[0].rule, size)
        sys.stdout.write(f"| {' | '.join(row)} |\n")
        sys.stdout.flush()
    return missed


def _tell(result: Result) -> None:
    """The story: what was planned, then what happened to the bucket in question, and the end of it all."""
    out = [f"\nseed {result.plan.seed} breaks {result.message}", "", "planned:"]
    out += [f"  {act}" for act in result.plan.acts]
    out += ["mishaps:", *(f"  {mishap}" for mishap in result.mishaps)] if result.mishaps else []
    bucket = re.search(r"bucket (\d+)", result.message)
    lines = result.trace.splitlines()
    mine = [line for line in lines if _matters(line, bucket[1] if bucket else "")]
    out += ["happened:", *(f"  {line[:220]}" for line in mine[-STORY_LINES_MAX:])]
    sys.stdout.write("\n".join(out) + "\n")


def _matters(line: str, bucket: str) -> bool:
    noise = ("partitions_assigned", "wrote Create leaders", "result_received", "published ")
    if any(word in line for word in noise):
        return False
    return not bucket or bucket in line or "  plan  " in line or " wrote " not in line


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
