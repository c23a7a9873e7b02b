"""Makes a failing run shorter: leaves out acts and mishaps for as long as the same rule is still broken.

What is left out also moves everything after it in time, and the one interleaving that mattered may be gone. So a
shorter plan is tried with a few other timings as well; the timing that broke the rule is kept with it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tests.simulation.plan import Plan
from tests.simulation.teeth import switched_on
from tests.simulation.world import Result, World

T = TypeVar("T")
RUNS_MAX = 50
TIMINGS = 4


@dataclass
class Shrinker:
    """A run that breaks another rule, or none, does not count."""

    bug: str | None
    best: Result
    left_out: frozenset[str] = frozenset()
    runs: int = 0

    def shrunk(self) -> Result:
        self._try(replace(self.best.plan, mishap_rate=0), timings=2 * TIMINGS)
        before = -1
        while before != self._size() and self.runs < RUNS_MAX:
            before = self._size()
            self._halve(list(self.best.plan.acts), self._try_without_acts)
            self._halve(list(self.best.mishaps), self._try_without_mishaps)
        return self.best

    def _size(self) -> int:
        return len(self.best.plan.acts) + len(self.best.mishaps)

    def _halve(self, items: list[T], attempt: Callable[[Sequence[T]], bool]) -> None:
        """Leave out the whole, or else each half, and so on down to single ones."""
        if not items or self.runs >= RUNS_MAX or attempt(items):
            return
        if len(items) > 1:
            half = len(items) // 2
            self._halve(items[:half], attempt)
            self._halve(items[half:], attempt)

    def _try_without_acts(self, acts: Sequence[object]) -> bool:
        kept = tuple(act for act in self.best.plan.acts if act not in acts)
        return self._try(replace(self.best.plan, acts=kept), timings=1 if self.best.mishaps else TIMINGS)

    def _try_without_mishaps(self, mishaps: Sequence[str]) -> bool:
        return self._try(self.best.plan, left_out=self.left_out | set(mishaps))

    def _try(self, plan: Plan, *, timings: int = 1, left_out: frozenset[str] | None = None) -> bool:
        left_out = self.left_out if left_out is None else left_out
        for timed in _timed(plan, timings):
            self.runs += 1
            with switched_on(self.bug):
                result = World(timed, left_out).run()
            if result.rule == self.best.rule:
                self.best, self.left_out = result, left_out
                return True
        return False


def _timed(plan: Plan, count: int) -> Iterator[Plan]:
    yield plan
    for n in range(1, count):
        yield replace(plan, seed=plan.seed + n * 1_000_003)


def shrunk(result: Result, bug: str | None) -> Result:
    return Shrinker(bug, result).shrunk()
