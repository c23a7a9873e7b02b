"""A long run on the containers: files change, both brokers are asked, and containers are killed, paused, cut off.

    make chaos MINUTES=60
    python -m tests.e2e.chaos --minutes 60 --seed 7

Every answer is compared with DuckDB's over the registered files of the version it stands on. Every few minutes the
faults stop until every view reflects every change. Ends with the counts; exit code 1 if an answer was wrong or a change
lost.
"""

import argparse
import random
import sys
import threading
import time
from dataclasses import dataclass, field

from tests.e2e.faults import Mischief
from tests.e2e.stack import LOGS, Containers, containers, why_not
from tests.e2e.world import World

EXIT_FAILED = 1
EXIT_NOTHING_RUN = 69  # EX_UNAVAILABLE of sysexits.h
ROUND_S = 180
TELL_EVERY_S = 60


@dataclass
class Chaos:
    system: Containers
    seed: int
    minutes: float
    began_s: float = field(default_factory=time.monotonic)
    converged_s: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        dice = random.Random(self.seed)
        self.world = World(self.system, random.Random(dice.random()))
        self.mischief = Mischief(
            self.system,
            random.Random(dice.random()),
            self.world.achieved,
            lasts_s=(1, 20),  # a session lasts 6 s
            servers_last_s=(1, 12),
            at_once=3,
        )

    @property
    def left_s(self) -> float:
        return self.minutes * 60 - (time.monotonic() - self.began_s)

    def run(self) -> bool:
        """Whether everything held. Stops at the first change that is lost: what comes after it would tell nothing."""
        self.began_s = time.monotonic()
        while self.left_s > 0 and not self.lost:
            with self.world.living() as failed, self.mischief.running():
                self._wait(min(ROUND_S, self.left_s), failed)
            self._rest()
        self._tell("end")
        for reason, count in self.world.silences.most_common(5):
            _say(f"not answered, {count} times: {reason}")
        for wrong in self.world.wrong[:3]:
            _say(f"WRONG: {wrong}")
        for lost in self.lost:
            _say(f"LOST: {lost}")
        return not self.world.wrong and not self.lost

    def _wait(self, for_s: float, failed: threading.Event) -> None:
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s and not failed.wait(min(TELL_EVERY_S, max(0.0, until_s - time.monotonic()))):
            self._tell(f"minute {(time.monotonic() - self.began_s) / 60:.0f}")

    def _rest(self) -> None:
        """No more faults. Within a bounded time every container is healthy and every change reflected."""
        began_s = time.monotonic()
        try:
            self.system.await_healthy()
            self.world.converge()
            self.converged_s.append(time.monotonic() - began_s)
            self.world.check_views()
        except AssertionError as error:
            self.lost.append(str(error))

    def _tell(self, when: str) -> None:
        faults, counts = self.mischief.done, self.world.counts
        _say(
            f"{when}: {faults['kill']} kills, {faults['pause']} pauses, {faults['partition']} partitions, "
            f"{faults['restart']} restarts; {self.world.changes} changes, {counts['queries']} queries "
            f"({counts['from views']} from views, {counts['mixed']} mixed, {counts['from base']} from base; "
            f"{counts['queries without an answer']} more were not answered), {len(self.world.wrong)} wrong answers, "
            f"{len(self.lost)} lost changes, longest time to converge {max(self.converged_s, default=0):.1f} s"
        )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.chaos", description="Chaos on the containers")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    asked = parser.parse_args()
    if reason := why_not():
        _say(f"nothing was run: {reason}")
        return EXIT_NOTHING_RUN
    _say(f"seed {asked.seed}, {asked.minutes:g} minutes; the containers are starting")
    with containers() as system:
        held = Chaos(system, asked.seed, asked.minutes).run()
    _say(f"the logs of all containers are in {LOGS}")
    return 0 if held else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
