"""Makes a failing run shorter: leaves out acts and mishaps for as long as the same rule is still broken."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tests.simulation.plan import Act, Plan
from tests.simulation.teeth import switched_on
from tests.simulation.world import Result, World

T = TypeVar("T")
RUNS_MAX = 100


@dataclass
class Shrinker:
    """Runs are repeated with less; a run that breaks another rule, or none, does not count."""

    first: Result
    bug: str | None
    best: Result
    left_out: frozenset[str] = frozenset()
    runs: int = 0

    def shrunk(self) -> Result:
        before = -1
        while before != self._size() and self.runs < RUNS_MAX:
            before = self._size()
            self._try_without_mishaps(self.best.mishaps)
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

    def _try_without_acts(self, acts: Sequence[Act]) -> bool:
        kept = tuple(act for act in self.best.plan.acts if act not in acts)
        return self._try(replace(self.best.plan, acts=kept), self.left_out)

    def _try_without_mishaps(self, mishaps: Sequence[str]) -> bool:
        return bool(mishaps) and self._try(self.best.plan, self.left_out | set(mishaps))

    def _try(self, plan: Plan, left_out: frozenset[str]) -> bool:
        self.runs += 1
        with switched_on(self.bug):
            result = World(plan, left_out).run()
        if result.rule != self.first.rule:
            return False
        self.best, self.left_out = result, left_out
        return True


def shrunk(result: Result, bug: str | None) -> Result:
    return Shrinker(result, bug, result).shrunk()
