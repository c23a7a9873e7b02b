"""Which test holds which row of docs/scenarios.md, and with what result.

    docs/scenarios.md        the rules, one row each
    @mark.scenario("L9")     a test's claim on a row; a claim on an unknown row stops the run
    build/scenarios.json     the last result of every claiming test, merged after each run

As a pytest plugin this module records results; `python -m tests.support.scenarios` reports them. What a row's tests
say is taken from collecting them now, so a deleted test holds nothing and a new one shows as never run.
"""

import argparse
import contextlib
import io
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from rich.console import Console
from rich.text import Text

from floodmark.core.errors import InvalidInput

DOCUMENT = Path("docs/scenarios.md")
RESULTS = Path("build/scenarios.json")

Claims = Mapping[str, tuple[str, ...]]  # test -> the rows it claims


class Result(BaseModel):
    """How one test ended the last time it ran to its end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: Literal["passed", "failed", "skipped"]
    when: datetime
    duration_s: float
    reason: str = ""  # why it was skipped or what failed


Results = dict[str, dict[str, Result]]  # row -> test -> result
RESULTS_FILE = TypeAdapter(Results)


# --- the document -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    section: str
    given: str
    then: str


def read_rows(text: str) -> tuple[Row, ...]:
    """Every table row of the document, in order. Each line of a table must be a whole row with an id of its own."""
    rows: dict[str, Row] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("## "):
            section = line.removeprefix("## ").strip()
        if not line.startswith("|") or line.startswith(("| Id |", "| ---")):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if len(cells) != 3 or not all(cells):
            raise InvalidInput("scenario-row", f"{DOCUMENT} line {number} needs three cells: id, given, then: {line}")
        row = Row(id=cells[0], section=section, given=cells[1], then=cells[2])
        if row.id in rows:
            raise InvalidInput("scenario-unique", f"{DOCUMENT} line {number} repeats row {row.id}")
        rows[row.id] = row
    return tuple(rows.values())


def load_rows(root: Path) -> tuple[Row, ...]:
    try:
        return read_rows((root / DOCUMENT).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidInput("scenario-document", f"{root / DOCUMENT} does not exist") from error


# --- claims and results -----------------------------------------------------------------------------------------------


def claims_of(items: Iterable[pytest.Item], root: Path) -> Claims:
    """The rows each test claims. A claim that names no row of the document is a usage error: nothing runs."""
    marked = {item.nodeid: list(item.iter_markers("scenario")) for item in items}
    claims = {test: tuple(dict.fromkeys(row for mark in marks for row in mark.args)) for test, marks in marked.items()}
    if not any(marked.values()):
        return claims
    try:
        known = {row.id for row in load_rows(root)}
    except InvalidInput as error:
        raise pytest.UsageError(str(error)) from error
    wrong = [
        f"{test} is marked scenario() without a row" for test, marks in marked.items() if marks and not claims[test]
    ]
    for test, rows in claims.items():
        wrong += [f"{test} claims scenario {row!r}, which {DOCUMENT} does not have" for row in rows if row not in known]
    if wrong:
        raise pytest.UsageError("\n".join(wrong))
    return claims


def merged(before: Results, *, claims: Claims, ran: Mapping[str, Result], whole_files: Collection[str]) -> Results:
    """What is known after a run. A result outlives runs that leave its test out, until test or claim is gone."""

    def stays(row: str, test: str) -> bool:
        return row in claims[test] if test in claims else file_of(test) not in whole_files

    after = {row: {test: result for test, result in tests.items() if stays(row, test)} for row, tests in before.items()}
    for test, result in ran.items():
        for row in claims[test]:
            after.setdefault(row, {})[test] = result
    return {row: dict(sorted(tests.items())) for row, tests in sorted(after.items()) if tests}


def file_of(test: str) -> str:
    return test.partition("::")[0]


def load_results(path: Path) -> tuple[Results, str]:
    """The recorded results, and a complaint when the file had to be disregarded."""
    try:
        return RESULTS_FILE.validate_json(path.read_bytes()), ""
    except FileNotFoundError:
        return {}, ""
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return {}, f"{RESULTS} is malformed and starts anew: {where + ': ' if where else ''}{first['msg']}"


def save_results(path: Path, results: Results) -> None:
    """Replace the file in one step: a reader or a crash sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(RESULTS_FILE.dump_json(results, indent=1))
    partial.replace(path)


# --- the plugin -------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config))


class Recorder:
    """Watches one run and merges what it saw into the results file when the run ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._root = config.rootpath
        self._narrowed = config.getoption("lf", default=False)  # --lf shows only some tests of the files it collects
        self._collect_only = config.getoption("collectonly")
        self._claims: dict[str, tuple[str, ...]] | None = None  # None until collection has succeeded
        self._collected: set[str] = set()
        self._broken: set[str] = set()
        self._phases: dict[str, list[pytest.TestReport]] = {}
        self._ran: dict[str, Result] = {}
        self._complaint = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file reports itself when all of it is collected; for a test or class chosen by name it does not."""
        if report.failed:
            self._broken.add(file_of(report.nodeid))
        elif "::" not in report.nodeid:
            self._collected.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)  # before -k and -m take tests away: those exist, they just do not run
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._claims = dict(claims_of(items, self._root))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phases = self._phases.setdefault(report.nodeid, [])
        phases.append(report)
        if report.when == "teardown":  # an interrupted test never gets here and keeps its earlier result
            self._ran[report.nodeid] = result_of(self._phases.pop(report.nodeid), when=datetime.now(UTC))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """One of several processes has ended: it collected, and told its results as they came."""
        claims, collected, broken = getattr(node, "workeroutput", {}).get("scenarios", ({}, (), ()))
        self._claims = (self._claims or {}) | {test: tuple(rows) for test, rows in claims.items()}
        self._collected |= set(collected)
        self._broken |= set(broken)

    def pytest_sessionfinish(self) -> None:
        if self._claims is None or self._collect_only:
            return
        if (output := getattr(self._config, "workeroutput", None)) is not None:  # of several, the first one writes
            output["scenarios"] = (dict(self._claims), sorted(self._collected), sorted(self._broken))
            return
        before, self._complaint = load_results(self._root / RESULTS)
        known_files = {file_of(test) for tests in before.values() for test in tests}
        whole_files = {file for file in known_files if not (self._root / file).exists()}
        if not self._narrowed:
            whole_files |= self._collected - self._broken
        after = merged(before, claims=self._claims, ran=self._ran, whole_files=whole_files)
        if after != before or self._complaint:
            save_results(self._root / RESULTS, after)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._complaint:
            terminalreporter.write_line(self._complaint, yellow=True)


def result_of(phases: Sequence[pytest.TestReport], *, when: datetime) -> Result:
    """Set-up, call and teardown as one result: the worst of them, with its reason."""
    worst = max(phases, key=lambda report: ("passed", "skipped", "failed").index(report.outcome))
    duration_s = round(sum(report.duration for report in phases), 3)
    return Result(outcome=worst.outcome, when=when, duration_s=duration_s, reason=reason_of(worst))


def reason_of(report: pytest.TestReport) -> str:
    if report.outcome == "passed":
        return ""
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    if isinstance(report.longrepr, tuple):  # (file, line, "Skipped: the reason")
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else report.longreprtext).splitlines()
    return f"{report.when}: {lines[0] if lines else 'no message'}"


# --- the report -------------------------------------------------------------------------------------------------------


class State(StrEnum):
    """What a row's tests say together. The order of the members is the order of the count line."""

    HELD = "held"
    FAILED = "failed"
    UNPROVEN = "unproven"  # a claiming test was skipped or has never run
    UNCLAIMED = "unclaimed"


STYLES = {  # of a row's state, and of one test's outcome
    "held": "green",
    "passed": "green",
    "failed": "bold red",
    "unproven": "yellow",
    "skipped": "yellow",
    "never run": "yellow",
    "unclaimed": "dim",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """One row with every test that claims it and that test's last result, None if it has never run."""

    row: Row
    tests: Mapping[str, Result | None]

    @property
    def state(self) -> State:
        outcomes = {result.outcome if result else None for result in self.tests.values()}
        if not outcomes:
            return State.UNCLAIMED
        if "failed" in outcomes:
            return State.FAILED
        return State.HELD if outcomes == {"passed"} else State.UNPROVEN


def standings(rows: Iterable[Row], claims: Claims, results: Results) -> list[Standing]:
    return [
        Standing(row, {test: results.get(row.id, {}).get(test) for test, ids in claims.items() if row.id in ids})
        for row in rows
    ]


def broken_rows(found: Iterable[Standing]) -> list[str]:
    """The rows that somebody claims and that are not held."""
    return [standing.row.id for standing in found if standing.state in (State.FAILED, State.UNPROVEN)]


def render(console: Console, found: Sequence[Standing], *, now: datetime) -> None:
    for section, members in groupby(found, key=lambda standing: standing.row.section):
        console.print(Text(f"\n{section}", style="bold"))
        for standing in members:
            for line in lines_of(standing, now=now):
                console.print(line, soft_wrap=True)
    console.print()
    if broken := broken_rows(found):
        console.print(Text(f"claimed and not held: {' '.join(broken)}", style="bold red"), soft_wrap=True)
    states = Counter(standing.state for standing in found)
    console.print(f"{len(found)} rows: " + ", ".join(f"{states[state]} {state}" for state in State))


def lines_of(standing: Standing, *, now: datetime) -> Iterable[Text]:
    """The row, then its tests. The cases of a parametrized test share a line only when every one of them passed."""
    rule = " -> ".join(
        textwrap.shorten(part, 60, placeholder=" ...") for part in (standing.row.given, standing.row.then)
    )
    yield Text.assemble(f"  {standing.row.id:<4}", (f"{standing.state:<10}", STYLES[standing.state]), rule)
    for function, group in groupby(standing.tests.items(), key=lambda entry: entry[0].partition("[")[0]):
        cases = dict(group)
        passed = [result for result in cases.values() if result and result.outcome == "passed"]
        if len(passed) == len(cases) > 1:
            oldest = min(passed, key=lambda result: result.when)
            yield line_of(f"{function} ({len(cases)} cases)", oldest, now=now)
        else:
            yield from (line_of(test, result, now=now) for test, result in cases.items())


def line_of(test: str, result: Result | None, *, now: datetime) -> Text:
    outcome = result.outcome if result else "never run"
    age = f"{age_of(now - result.when):<12}" if result else ""
    reason = f"  ({result.reason})" if result and result.reason else ""
    return Text.assemble("        ", (f"{outcome:<10}", STYLES[outcome]), age, test, reason)


def age_of(elapsed: timedelta) -> str:
    for unit, length in (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1))):
        if elapsed >= length:
            return f"{elapsed // length} {unit} ago"
    return "just now"


def collect_claims(root: Path) -> Claims:
    """Every claim in the tree, by letting pytest collect it: parametrized tests get the very ids they run under."""
    found: dict[str, tuple[str, ...]] = {}

    class Collector:
        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            found.update(claims_of(items, root))

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "."], plugins=[Collector()])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise InvalidInput("scenario-claims", f"the tests cannot be collected:\n{output.getvalue().strip()}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.scenarios", description="Which test holds which row")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a claimed row is not held")
    strict: bool = parser.parse_args(arguments).strict
    console, root = Console(highlight=False), Path.cwd()
    try:
        rows, claims = load_rows(root), collect_claims(root)
    except InvalidInput as error:
        console.print(Text(str(error), style="red"), soft_wrap=True)
        return 1
    results, complaint = load_results(root / RESULTS)
    if complaint or not results:
        console.print(Text(complaint or f"no results yet: {RESULTS} is written by running the tests", style="yellow"))
    found = standings(rows, claims, results)
    render(console, found, now=datetime.now(UTC))
    return 1 if strict and broken_rows(found) else 0


if __name__ == "__main__":
    sys.exit(main())
