"""docs/benchmarks.md: one section for each suite.

Only the sections of the suites given are replaced. What was measured earlier, and whose results are no longer at hand,
stays as it was written.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.harness.figures import Reported
from tests.bench.harness.results import FigureResult

DOCUMENT = Path("docs/benchmarks.md")
HEADER = """# Benchmarks

Every figure is the median of its runs, with the lowest and the highest beside it. Most are ratios of two things
measured alternately within one run, so that a slow or busy machine affects both alike. `make bench` measures and
writes this file; the raw rows are in `build/bench/`.
"""
SECTION = re.compile(r"^## (?P<suite>\w+)\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def rendered(document: str, measured: Mapping[str, Sequence[FigureResult]]) -> str:
    """The document with the sections of the measured suites replaced, all of them in order of name."""
    sections = {match["suite"]: match[0].strip() for match in SECTION.finditer(document)}
    sections |= {suite: section(suite, rows) for suite, rows in measured.items()}
    return "\n\n".join([HEADER.strip(), *(sections[suite] for suite in sorted(sections))]) + "\n"


def section(suite: str, rows: Sequence[FigureResult]) -> str:
    newest = max(rows, key=lambda row: row.detail.measured_at).detail
    table = ["| Figure | Value | Goal | Met | Spread | Runs |", "| --- | --- | --- | --- | --- | --- |"]
    table += ["| " + " | ".join(map(as_cell, cells(row))) + " |" for row in rows]
    reproduce = f"`make bench SUITE={suite}` on {newest.measured_at:%Y-%m-%d}: {newest.machine}."
    return "\n".join([f"## {suite}", "", reproduce, "", *table])


def cells(row: FigureResult) -> tuple[str, ...]:
    if row.value is None or row.detail.min is None or row.detail.max is None:
        return (row.name, f"failed: {row.detail.error}", row.goal, "no", "-", str(row.runs))
    value = f"{number(row.value)} {row.unit}"
    spread = f"{number(row.detail.min)} to {number(row.detail.max)}"
    return (row.name, value, row.goal, _met(row), spread, str(row.runs))


def _met(row: FigureResult) -> str:
    if row.goal == str(Reported()):
        return "-"
    return "yes" if row.met else "**no**"


def as_cell(text: str) -> str:
    """One line, and no character that would end the cell: an error message may hold anything."""
    return " ".join(text.split()).replace("|", "\\|")


def number(value: float) -> str:
    """Three significant digits, never in exponent form for sizes people read."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
