"""The bench harness: medians against goals, failures recorded beside results, earlier results kept."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from floodmark.core.errors import InvalidInput
from tests.bench.__main__ import main
from tests.bench.harness.document import DOCUMENT, HEADER, number, rendered
from tests.bench.harness.figures import AtLeast, AtMost, Figure, Measurement, Run, figure, interleaved_ratio
from tests.bench.harness.results import RESULTS, Detail, FigureResult
from tests.bench.harness.runner import Suite, load_suite, run_suite

IMPORTS = "from tests.bench.harness.figures import AtLeast, AtMost, Measurement, figure\n"
GOOD = IMPORTS + "@figure(name='good', goal=AtMost(2))\ndef good(run): return Measurement(run.number)\n"
POOR = IMPORTS + "@figure(name='poor', goal=AtLeast(9), runs=1)\ndef poor(run): return Measurement(1)\n"
BROKEN = IMPORTS + "@figure(name='broken', goal=AtMost(2))\ndef broken(run): raise OSError('no | disk')\n"


class Suites:
    """A package of suites and the directory their results go to."""

    def __init__(self, root: Path, package: str) -> None:
        self.root, self.package = root, package

    def write(self, **sources: str) -> None:
        for name, source in sources.items():
            (self.root / self.package / f"{name}.py").write_text(source)

    def run(self, *arguments: str) -> int:
        return main(arguments, package=self.package)

    def rows(self, suite: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads((self.root / RESULTS / f"{suite}.json").read_text())
        return found

    @property
    def document(self) -> str:
        return (self.root / DOCUMENT).read_text()


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suites:
    package = f"suites_{tmp_path.name}"  # a name of its own: imported modules outlive the test
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Suites(tmp_path, package)


def measuring(*values: float, goal: AtLeast | AtMost) -> Figure:
    declare = figure(name="a figure", goal=goal, unit="ms", runs=len(values))
    return declare(lambda run: Measurement(values[run.number], {"number": run.number}))


def only_row(suite: Suite) -> FigureResult:
    (row,) = run_suite(suite, say=lambda line: None).rows
    return row


# --- measuring --------------------------------------------------------------------------------------------------------


def test_the_value_is_the_median_and_every_run_is_kept() -> None:
    """One disturbed run must not decide a figure, nor be hidden."""
    row = only_row(Suite("s", (measuring(1, 90, 2, goal=AtMost(5)),)))
    assert (row.name, row.value, row.goal, row.met, row.unit, row.runs) == ("a figure", 2, "at most 5", True, "ms", 3)
    assert (row.detail.values, row.detail.min, row.detail.max) == ([1, 90, 2], 1, 90)
    assert row.detail.each == [{"number": 0}, {"number": 1}, {"number": 2}]


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [(AtLeast(2), 2, True), (AtLeast(2), 1.9, False), (AtMost(2), 2, True), (AtMost(2), 2.1, False)],
)
def test_a_goal_includes_its_bound(goal: AtLeast | AtMost, value: float, met: bool) -> None:
    """ "At most 2" is met by 2."""
    assert only_row(Suite("s", (measuring(value, goal=goal),))).met is met


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_a_failure(value: float) -> None:
    """A median over an undefined value would look like a result."""
    row = only_row(Suite("s", (measuring(1, value, goal=AtMost(2)),)))
    assert (row.value, row.met) == (None, False)
    assert row.detail.error == f"run 1: ValueError: measured {value}, which is not a finite number"


def test_the_suite_is_set_up_once_for_all_runs_and_torn_down() -> None:
    """Servers are started once; every run of every figure sees the same ones."""
    events: list[str] = []

    @contextmanager
    def prepared() -> Iterator[str]:
        events.append("up")
        yield "server"
        events.append("down")

    def measured(run: Run) -> Measurement:
        events.append(run.resources)
        return Measurement(1)

    figures = tuple(figure(name=name, goal=AtMost(1), runs=2)(measured) for name in ("one", "two"))
    run_suite(Suite("s", figures, prepared), say=lambda line: None)
    assert events == ["up", *["server"] * 4, "down"]


def test_a_failing_set_up_is_recorded_for_every_figure() -> None:
    """Figures that could not be measured are not met, and say why."""

    @contextmanager
    def unprepared() -> Iterator[None]:
        raise OSError("port taken")
        yield

    outcome = run_suite(Suite("s", (measuring(1, goal=AtMost(5)),), unprepared), say=lambda line: None)
    assert outcome.failed
    assert [(row.met, row.detail.error) for row in outcome.rows] == [(False, "set-up: OSError: port taken")]


def test_a_failing_teardown_is_a_failure_and_keeps_what_was_measured() -> None:
    """The figures are real; the suite still did not end well."""

    @contextmanager
    def untidy() -> Iterator[None]:
        yield
        raise OSError("still running")

    outcome = run_suite(Suite("s", (measuring(1, goal=AtMost(5)),), untidy), say=lambda line: None)
    assert outcome.teardown_error == "suite s did not close: OSError: still running"
    assert [row.met for row in outcome.rows] == [True]


def test_an_interleaved_ratio_samples_both_sides_in_mirrored_order() -> None:
    """A B B A: a machine that slows down steadily slows both sides by the same amount."""
    order, clock = "", 0

    def sample(name: str, cost: int) -> float:
        nonlocal order, clock
        order, clock = order + name, clock + 1
        return cost + clock  # drifts by one with every sample

    found = interleaved_ratio(lambda: sample("A", 100), lambda: sample("B", 100), blocks=2, names=("many", "few"))
    assert order == "ABBAABBA"
    assert found.value == 1
    assert found.detail == {"many": 104.5, "few": 104.5, "ratios": [1, 1]}


def test_one_disturbed_block_does_not_move_the_ratio() -> None:
    """A pause of the machine hits one block; the median passes over it."""
    samples = iter([4, 4, 4, 900, 4, 4])
    assert interleaved_ratio(lambda: next(samples), lambda: 2, blocks=3).value == 2


def test_a_ratio_over_nothing_is_refused() -> None:
    """A side that measured zero was not measured."""
    with pytest.raises(ValueError, match="few measured 0, a ratio over it means nothing"):
        interleaved_ratio(lambda: 1, lambda: 0, names=("many", "few"))


# --- suites -----------------------------------------------------------------------------------------------------------


def test_a_suite_without_figures_is_refused(suites: Suites) -> None:
    """An empty suite would be reported as measured."""
    suites.write(empty="")
    with pytest.raises(InvalidInput, match="suite empty declares no figure"):
        load_suite(suites.package, "empty")


def test_two_figures_of_one_name_are_refused(suites: Suites) -> None:
    """A name is how a figure is followed over time."""
    suites.write(twins=GOOD + GOOD.replace("def good", "def same"))
    with pytest.raises(InvalidInput, match="suite twins declares figure 'good' twice"):
        load_suite(suites.package, "twins")


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_suites_rows_have_exactly_the_agreed_fields(suites: Suites) -> None:
    """Other tools read these files."""
    suites.write(speed=GOOD)
    assert suites.run("speed") == 0
    (row,) = suites.rows("speed")
    assert list(row) == ["name", "value", "goal", "met", "unit", "runs", "detail"]
    assert (row["name"], row["value"], row["goal"], row["met"], row["runs"]) == ("good", 2, "at most 2", True, 5)


def test_a_goal_not_met_is_said_clearly_and_fails_only_when_strict(
    suites: Suites, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measuring succeeded; whether the goal matters is the caller's choice."""
    suites.write(speed=GOOD + POOR)
    assert suites.run() == 0
    assert "1 of 2 figures did not meet their goal: poor" in capsys.readouterr().out
    assert "| poor | 1 ratio | at least 9 | **no** | 1 to 1 | 1 |" in suites.document
    assert suites.run("--strict") == 1


def test_a_failing_figure_is_recorded_and_the_others_still_run(suites: Suites) -> None:
    """The error stands where the value would; its text cannot break the table."""
    suites.write(speed=BROKEN + GOOD)
    assert suites.run() == 1
    broken, good = suites.rows("speed")
    assert (broken["value"], broken["met"], broken["runs"], good["met"]) == (None, False, 0, True)
    assert "| broken | failed: run 0: OSError: no \\| disk | at most 2 | no | - | 0 |" in suites.document


def test_a_suite_that_cannot_be_imported_does_not_stop_the_others(suites: Suites) -> None:
    """One broken module costs one suite."""
    suites.write(a_bad="import no_such_module", b_good=GOOD)
    assert suites.run() == 1
    assert suites.rows("b_good")


def test_an_unknown_suite_is_refused_with_the_names_there_are(
    suites: Suites, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured under a mistyped name."""
    suites.write(speed=GOOD)
    with pytest.raises(SystemExit, match="2"):
        suites.run("sped")
    assert "unknown suite sped; there are: speed" in capsys.readouterr().err


def test_a_results_file_that_cannot_be_read_leaves_its_section_alone(
    suites: Suites, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier figures in the document are better than none; the command says which file and fails."""
    suites.write(size=GOOD, speed=GOOD)
    suites.run()
    (suites.root / RESULTS / "size.json").write_text("[{}]")
    assert suites.run("speed") == 1
    assert "size.json is not a list of figures" in capsys.readouterr().out
    assert "## size\n" in suites.document


# --- the document -----------------------------------------------------------------------------------------------------


def row(name: str, value: float) -> FigureResult:
    at = {"measured_at": "2025-03-01T10:00:00Z", "machine": "2 cores, 8 GiB"}
    detail = Detail.model_validate({**at, "values": [value], "min": value, "max": value})
    return FigureResult(name=name, value=value, goal="at most 9", met=True, unit="ratio", runs=1, detail=detail)


def test_a_suite_shows_where_when_and_how_it_was_measured() -> None:
    """The machine and the day are those of the measurement, not those of rendering."""
    text = rendered("", {"speed": [row("one", 1)]})
    assert text.startswith(HEADER.strip())
    assert "`make bench SUITE=speed` on 2025-03-01: 2 cores, 8 GiB.\n" in text
    assert text.endswith("| one | 1 ratio | at most 9 | yes | 1 to 1 | 1 |\n")


def test_rendering_one_suite_keeps_the_sections_measured_earlier() -> None:
    """build/ may have been cleaned since; the document remembers."""
    before = rendered("", {"alpha": [row("a", 1)], "beta": [row("b", 2)], "gamma": [row("c", 3)]})
    after = rendered(before, {"beta": [row("b", 4)]})
    assert after == before.replace(
        "| b | 2 ratio | at most 9 | yes | 2 to 2 |", "| b | 4 ratio | at most 9 | yes | 4 to 4 |"
    )
    assert after != before


def test_rendering_the_same_results_again_changes_nothing() -> None:
    """A second run of the renderer leaves the working tree clean."""
    measured = {"alpha": [row("a", 1)]}
    assert rendered(rendered("", measured), measured) == rendered("", measured)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.96461, "0.965"), (12.345, "12.3"), (123.4, "123"), (1_234_567.8, "1,234,568"), (0.0001, "0.0001")],
)
def test_numbers_are_rounded_to_what_a_reader_needs(value: float, text: str) -> None:
    """Three digits, and no exponent for large numbers."""
    assert number(value) == text
