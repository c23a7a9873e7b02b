"""What a suite declares: figures, each with a name, a goal and a function that measures it once.

    @figure(name="finish, 50,000 outstanding over 8", goal=AtMost(3), unit="ratio", runs=5)
    def any_order(run: Run) -> Measurement:
        return interleaved_ratio(many, few)

A figure is best a ratio of two things measured within one run: it says the same on a fast machine and a slow one.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Sample = Callable[[], float]


@dataclass(frozen=True, slots=True)
class AtLeast:
    bound: float

    def met_by(self, value: float) -> bool:
        return value >= self.bound

    def __str__(self) -> str:
        return f"at least {self.bound:g}"


@dataclass(frozen=True, slots=True)
class AtMost:
    bound: float

    def met_by(self, value: float) -> bool:
        return value <= self.bound

    def __str__(self) -> str:
        return f"at most {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Reported:
    """No goal: the figure is there to be known."""

    def met_by(self, _value: float) -> bool:
        return True

    def __str__(self) -> str:
        return "none"


Goal = AtLeast | AtMost | Reported


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition: its number from 0, and what the suite's `suite()` set up for all of them."""

    number: int
    resources: Any = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run's value. Infinite or undefined ones are refused: the median would hide them."""

    value: float
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"measured {self.value}, which is not a finite number")


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    goal: Goal
    unit: str
    runs: int
    measure: Callable[[Run], Measurement]


def figure(
    *, name: str, goal: Goal, unit: str = "ratio", runs: int = 5
) -> Callable[[Callable[[Run], Measurement]], Figure]:
    """Declare the decorated function as a figure of its suite."""
    assert runs >= 1, f"figure {name!r} needs at least one run, not {runs}"
    return lambda measure: Figure(name=name, goal=goal, unit=unit, runs=runs, measure=measure)


def interleaved_ratio(a: Sample, b: Sample, *, blocks: int = 5, names: tuple[str, str] = ("a", "b")) -> Measurement:
    """A over B, sampled in the order A B B A, so that noise and drift hit both alike.

    The sum over one block cancels steady drift; the median over the blocks drops the one that was disturbed.
    """
    assert blocks >= 1, f"a ratio needs at least one block, not {blocks}"
    a_samples, b_samples, ratios = [], [], []
    for _ in range(blocks):
        first, *middle, last = a(), b(), b(), a()
        if sum(middle) <= 0:
            raise ValueError(f"{names[1]} measured {sum(middle):g}, a ratio over it means nothing")
        a_samples += [first, last]
        b_samples += middle
        ratios.append((first + last) / sum(middle))
    medians = {name: statistics.median(found) for name, found in zip(names, (a_samples, b_samples), strict=True)}
    return Measurement(statistics.median(ratios), {**medians, "ratios": ratios})
