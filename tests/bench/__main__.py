"""Measure suites, keep their rows under build/bench and render docs/benchmarks.md.

Exit code 0 when everything was measured, met or not; 1 when something could not be measured, and with --strict also
when a goal was not met; 2 for an unknown suite.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from floodmark.core.errors import InvalidInput
from tests.bench.harness import document, results
from tests.bench.harness.results import FigureResult
from tests.bench.harness.runner import Say, describe, load_suite, run_suite, suite_names, unmet


def main(arguments: Sequence[str] | None = None, *, package: str = "tests.bench") -> int:
    known = suite_names(package)
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure, and render docs/benchmarks.md")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"one of: {', '.join(known)} (all by default)")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is not met")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.suites) - set(known)):
        parser.error(f"unknown suite {', '.join(unknown)}; there are: {', '.join(known)}")
    console, root = Console(highlight=False), Path.cwd()

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    failed, rows = measure_all(package, options.suites or known, root=root, say=say)
    failed |= not render_all(root, say=say)
    short = unmet(rows)
    if short:
        say(f"{len(short)} of {len(rows)} figures did not meet their goal: {', '.join(row.name for row in short)}")
    return 1 if failed or (options.strict and short) else 0


def measure_all(package: str, suites: Sequence[str], *, root: Path, say: Say) -> tuple[bool, list[FigureResult]]:
    """Run the suites one after another, keeping each one's rows as soon as they are there."""
    failed = False
    rows: list[FigureResult] = []
    for name in suites:
        say(name)
        try:
            suite = load_suite(package, name)
        except Exception as error:  # a suite that cannot be imported must not stop the others
            say(f"  failed   suite {name} cannot be loaded: {describe(error)}")
            failed = True
            continue
        outcome = run_suite(suite, say=say)
        results.save(root, name, outcome.rows)
        rows += outcome.rows
        failed |= outcome.failed
        if outcome.teardown_error:
            say(f"  failed   {outcome.teardown_error}")
    return failed, rows


def render_all(root: Path, *, say: Say) -> bool:
    """Render every results file there is. One that cannot be read leaves its section of the document alone."""
    measured, readable = {}, True
    for path in sorted((root / results.RESULTS).glob("*.json")):
        try:
            measured[path.stem] = results.load(path)
        except InvalidInput as error:
            say(f"not rendered: {error}")
            readable = False
    target = root / document.DOCUMENT
    before = target.read_text(encoding="utf-8") if target.exists() else ""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(document.rendered(before, measured), encoding="utf-8")
    return readable


if __name__ == "__main__":
    sys.exit(main())
