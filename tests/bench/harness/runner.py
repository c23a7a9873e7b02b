"""Runs suites: set up once, measure every figure its number of times, tear down. One failure never stops the rest."""

import contextlib
import importlib
import pkgutil
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from floodmark.core.errors import InvalidInput
from tests.bench.harness import results
from tests.bench.harness.figures import Figure, Run
from tests.bench.harness.results import Detail, FigureResult

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    figures: tuple[Figure, ...]
    open: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    rows: tuple[FigureResult, ...]
    teardown_error: str | None = None

    @property
    def failed(self) -> bool:
        return self.teardown_error is not None or any(row.detail.error for row in self.rows)


def suite_names(package: str) -> list[str]:
    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return sorted(module.name for module in modules if not module.ispkg and not module.name.startswith("_"))


def load_suite(package: str, name: str) -> Suite:
    """The figures of one module, in the order they are written, and its `suite()` if it has one."""
    module = importlib.import_module(f"{package}.{name}")
    figures = tuple(value for value in vars(module).values() if isinstance(value, Figure))
    if not figures:
        raise InvalidInput("bench-suite", f"suite {name} declares no figure")
    names = [figure.name for figure in figures]
    for repeated in {figure for figure in names if names.count(figure) > 1}:
        raise InvalidInput("bench-suite", f"suite {name} declares figure {repeated!r} twice")
    return Suite(name, figures, getattr(module, "suite", contextlib.nullcontext))


def run_suite(suite: Suite, *, say: Say) -> SuiteOutcome:
    """Every figure of the suite. When its set-up fails, each figure is recorded as failed with that error."""
    machine = results.machine()
    rows: list[FigureResult] = []
    try:
        with suite.open() as resources:
            for figure in suite.figures:
                rows.append(measure(figure, resources, machine=machine))
                say(summary(rows[-1]))
    except Exception as error:  # whatever went wrong is the result
        if len(rows) == len(suite.figures):
            return SuiteOutcome(tuple(rows), f"suite {suite.name} did not close: {describe(error)}")
        rows = [not_measured(figure, f"set-up: {describe(error)}", machine=machine) for figure in suite.figures]
        for row in rows:
            say(summary(row))
    return SuiteOutcome(tuple(rows))


def measure(figure: Figure, resources: object, *, machine: str) -> FigureResult:
    """The median of the figure's runs, or the error of the first run that failed."""
    found = []
    for number in range(figure.runs):
        try:
            found.append(figure.measure(Run(number, resources)))
        except Exception as error:  # whatever went wrong is the result
            return not_measured(figure, f"run {number}: {describe(error)}", machine=machine)
    values = [measurement.value for measurement in found]
    value = statistics.median(values)
    detail = Detail(
        measured_at=results.now(),
        machine=machine,
        values=values,
        min=min(values),
        max=max(values),
        each=[measurement.detail for measurement in found],
    )
    return _row(figure, value=value, met=figure.goal.met_by(value), runs=len(values), detail=detail)


def not_measured(figure: Figure, error: str, *, machine: str) -> FigureResult:
    detail = Detail(measured_at=results.now(), machine=machine, error=error)
    return _row(figure, value=None, met=False, runs=0, detail=detail)


def _row(figure: Figure, *, value: float | None, met: bool, runs: int, detail: Detail) -> FigureResult:
    return FigureResult(
        name=figure.name, value=value, goal=str(figure.goal), met=met, unit=figure.unit, runs=runs, detail=detail
    )


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def summary(row: FigureResult) -> str:
    if row.value is None:
        return f"  failed   {row.name}: {row.detail.error}"
    return f"  {'met' if row.met else 'NOT MET':<8} {row.name}: {row.value:.4g} {row.unit}, goal {row.goal}"


def unmet(rows: Sequence[FigureResult]) -> list[FigureResult]:
    """Measured, and short of the goal. A figure that failed is counted as a failure instead."""
    return [row for row in rows if row.value is not None and not row.met]
