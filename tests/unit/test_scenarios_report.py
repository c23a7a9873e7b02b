"""The ledger of scenarios: claims are checked, results outlive partial runs. At the end: the waiting functions."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from floodmark.core.errors import InvalidInput
from tests.support import scenarios
from tests.support.eventually import eventually, never
from tests.support.scenarios import RESULTS, Result, Results, State, load_results, load_rows, read_rows

ROOT = Path(__file__).parents[2]
DOCUMENT = """# Scenarios
## Letters
| Id | Given | Then |
| --- | --- | --- |
| A1 | one | two |
| A2 | three | four |
| A3 | five | six |
"""
TWO_CLAIMS = """
    import pytest
    @pytest.mark.scenario("A1")
    def test_first(): pass
    @pytest.mark.scenario("A1", "A2")
    def test_second(): pass
"""


class Project:
    """A small project beside this one, with its own document, tests and results."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.pytester.makeini("[pytest]\nmarkers = scenario(row): a claim\naddopts = --strict-markers")
        self.write("docs/scenarios.md", DOCUMENT)

    def write(self, name: str, text: str) -> None:
        path = self.pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def tests(self, source: str) -> None:
        """Replace test_it.py. Python's cached bytecode may be as old as this very second, so it goes too."""
        self.pytester.makepyfile(test_it=source)
        for stale in self.pytester.path.glob("__pycache__/test_it*"):
            stale.unlink()

    def run(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess("-p", "tests.support.scenarios", *arguments)

    def report(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.support.scenarios", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, cwd=self.pytester.path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def results(self) -> Results:
        return load_results(self.pytester.path / RESULTS)[0]

    @property
    def outcomes(self) -> dict[str, dict[str, str]]:
        return {
            row: {test.partition("::")[2]: result.outcome for test, result in tests.items()}
            for row, tests in self.results.items()
        }


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    return Project(pytester)


def test_a_claim_on_an_unknown_row_stops_the_run_and_names_test_and_row(project: Project) -> None:
    """A typing error in a claim must not leave a rule looking covered."""
    project.tests("import pytest\n@pytest.mark.scenario('A1', 'Z9')\ndef test_it(): pass")
    ended = project.run()
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*test_it.py::test_it claims scenario 'Z9', which docs/scenarios.md does not have*"])
    assert project.results == {}


def test_results_of_tests_in_several_processes_are_all_kept(project: Project) -> None:
    project.tests(TWO_CLAIMS)
    project.write("test_other.py", "import pytest\n@pytest.mark.scenario('A2')\ndef test_third(): pass\n")
    project.run("--numprocesses", "2", "--dist", "loadfile").assert_outcomes(passed=3)
    assert project.outcomes == {
        "A1": {"test_first": "passed", "test_second": "passed"},
        "A2": {"test_second": "passed", "test_third": "passed"},
    }


def test_a_mark_without_a_row_stops_the_run(project: Project) -> None:
    """A claim on nothing is a mistake, not a claim."""
    project.tests("import pytest\n@pytest.mark.scenario\ndef test_it(): pass")
    ended = project.run()
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*test_it.py::test_it is marked scenario() without a row*"])


def test_a_stopped_collection_forgets_nothing(project: Project) -> None:
    """A run that never started says nothing about the tests it did not reach."""
    project.tests(TWO_CLAIMS)
    project.run()
    before = project.results
    project.tests("import pytest\n@pytest.mark.scenario('Z9')\ndef test_it(): pass")
    project.run()
    project.tests("this is not Python")
    project.run()
    assert project.results == before != {}


def test_a_project_without_claims_needs_no_document(project: Project) -> None:
    """The plugin stays out of the way of tests that claim nothing."""
    (project.pytester.path / "docs/scenarios.md").unlink()
    project.tests("def test_it(): pass")
    assert project.run().ret == pytest.ExitCode.OK
    assert not (project.pytester.path / RESULTS).exists()


def test_each_row_keeps_the_result_of_each_test_that_claims_it(project: Project) -> None:
    """A test may claim several rows, and a row may be claimed by several tests."""
    project.tests(TWO_CLAIMS)
    before = datetime.now(UTC)
    project.run()
    assert project.outcomes == {
        "A1": {"test_first": "passed", "test_second": "passed"},
        "A2": {"test_second": "passed"},
    }
    result = project.results["A2"]["test_it.py::test_second"]
    assert before <= result.when <= datetime.now(UTC)
    assert result.duration_s >= 0


def test_each_case_of_a_parametrized_test_is_an_entry(project: Project) -> None:
    """One failing case must not hide behind the passing ones."""
    project.tests("""
        import pytest
        @pytest.mark.scenario("A1")
        @pytest.mark.parametrize("n", [1, 2])
        def test_it(n): assert n == 1
    """)
    project.run()
    assert project.outcomes == {"A1": {"test_it[1]": "passed", "test_it[2]": "failed"}}


@pytest.mark.parametrize(
    ("source", "outcome", "reason"),
    [
        ("def test_it(): pytest.skip('no broker')", "skipped", "no broker"),
        (
            "@pytest.mark.xfail(reason='known hole')\ndef test_it(): assert False",
            "skipped",
            "expected to fail: known hole",
        ),
        ("def test_it(): assert 1 == 2", "failed", "call: assert 1 == 2"),
        ("@pytest.fixture\ndef bad(): raise OSError('down')\ndef test_it(bad): pass", "failed", "setup: OSError: down"),
        (
            "@pytest.fixture\ndef bad():\n  yield\n  raise OSError('left')\ndef test_it(bad): pass",
            "failed",
            "teardown: OSError: left",
        ),
    ],
    ids=["skip", "expected failure", "failure", "failing set-up", "failing teardown"],
)
def test_only_a_test_that_passed_from_set_up_to_teardown_counts_as_passed(
    project: Project, source: str, outcome: str, reason: str
) -> None:
    """Skipped, expected to fail or broken around the edges: each is recorded as such, with its reason."""
    project.tests(f"import pytest\npytestmark = pytest.mark.scenario('A1')\n{source}")
    project.run()
    result = project.results["A1"]["test_it.py::test_it"]
    assert (result.outcome, result.reason) == (outcome, reason)


@pytest.mark.parametrize(
    "choice", ["-k=first", "test_it.py::test_first", "test_it.py::TestGroup", "--lf", "test_other.py"]
)
def test_a_test_left_out_of_a_run_keeps_its_last_result(project: Project, choice: str) -> None:
    """Running a part of the suite never makes the rest look unproven."""
    project.pytester.makepyfile(test_other="def test_other(): pass")
    failing = TWO_CLAIMS.replace("test_first(): pass", "test_first(): assert False")
    project.tests(failing + "    class TestGroup:\n        def test_third(self): pass\n")
    project.run()
    before = project.results["A2"]
    project.run(choice)
    assert project.results["A2"] == before
    assert set(project.outcomes["A1"]) == {"test_first", "test_second"}


def test_an_interrupted_test_keeps_its_last_result(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set-up that passed before Ctrl-C is not a test that passed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    project.tests(TWO_CLAIMS.replace("test_first(): pass", "test_first(): assert False"))
    project.run()
    before = project.results
    project.tests(TWO_CLAIMS.replace("test_first(): pass", "test_first(): raise KeyboardInterrupt"))
    ended = project.pytester.runpytest_subprocess("-p", "tests.support.scenarios")
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    assert project.results == before


def test_a_test_that_is_gone_disappears_once_its_file_is_collected(project: Project) -> None:
    """A deleted test holds nothing, even if other tests of its file did not run."""
    project.tests(TWO_CLAIMS)
    project.run()
    project.tests("import pytest\n@pytest.mark.scenario('A1')\ndef test_first(): pass")
    assert project.run("-k", "no_such_test").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert project.outcomes == {"A1": {"test_first": "passed"}}


def test_the_tests_of_a_deleted_file_disappear_with_any_run(project: Project) -> None:
    """A file that is gone cannot be collected, so its absence is enough."""
    project.tests(TWO_CLAIMS)
    project.run()
    (project.pytester.path / "test_it.py").unlink()
    project.pytester.makepyfile(test_other="import pytest\n@pytest.mark.scenario('A3')\ndef test_other(): pass")
    project.run("test_other.py")
    assert project.outcomes == {"A3": {"test_other": "passed"}}


def test_a_withdrawn_claim_disappears(project: Project) -> None:
    """A test that no longer claims a row does not hold it by an earlier result."""
    project.tests(TWO_CLAIMS)
    project.run()
    project.tests(TWO_CLAIMS.replace('"A1", "A2"', '"A1"'))
    project.run("test_it.py::test_second")
    assert project.outcomes == {"A1": {"test_first": "passed", "test_second": "passed"}}


@pytest.mark.parametrize("content", ["{", "[]", '{"A1": {"test_it.py::test_first": {"outcome": "fine"}}}'])
def test_a_malformed_results_file_is_reported_and_started_anew(project: Project, content: str) -> None:
    """Results that cannot be read prove nothing; the run goes on and says what it lost."""
    project.write(str(RESULTS), content)
    project.tests(TWO_CLAIMS)
    ended = project.run()
    assert ended.ret == pytest.ExitCode.OK
    ended.stdout.fnmatch_lines(["build/scenarios.json is malformed and starts anew: *"])
    assert set(project.outcomes) == {"A1", "A2"}


def test_writing_results_leaves_no_partial_file(project: Project) -> None:
    """The file is replaced in one step; what it was built in does not stay behind."""
    project.tests(TWO_CLAIMS)
    project.run()
    assert [path.name for path in (project.pytester.path / "build").iterdir()] == ["scenarios.json"]


def test_the_projects_own_document_reads_in_order_with_its_sections() -> None:
    """Every row of docs/scenarios.md is found, under the heading it stands below."""
    rows = {row.id: row for row in load_rows(ROOT)}
    assert next(iter(rows)) == "F1"
    assert rows["K2"].section == "Worker"
    assert rows["K2"].then == "committed position exactly 5"
    assert len(rows) == len(re.findall(r"^\| [A-Z]\d+ \|", (ROOT / "docs/scenarios.md").read_text(), re.MULTILINE))


def test_a_repeated_row_is_refused() -> None:
    """Two rows of one id would share their claims."""
    with pytest.raises(InvalidInput, match=r"scenario-unique: .* line 8 repeats row A1"):
        read_rows(DOCUMENT + "| A1 | other | rule |\n")


@pytest.mark.parametrize("line", ["| A4 | given only |", "| A4 | a | b | c |", "|  | a | b |", "| A4 | a | b"])
def test_a_row_that_is_not_three_cells_is_refused(line: str) -> None:
    """A broken line must not drop its rule silently."""
    with pytest.raises(InvalidInput, match=r"scenario-row: .* line 8 needs three cells"):
        read_rows(DOCUMENT + line)


def ended(outcome: str) -> Result:
    return Result.model_validate({"outcome": outcome, "when": datetime.now(UTC), "duration_s": 0.1})


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ([], State.UNCLAIMED),
        (["passed", "passed"], State.HELD),
        (["passed", None], State.UNPROVEN),
        (["passed", "skipped"], State.UNPROVEN),
        (["passed", "failed", None], State.FAILED),
    ],
)
def test_a_row_is_held_only_if_all_its_tests_passed_last(outcomes: list[str | None], state: State) -> None:
    """Skipped and never run are not proof; one failure outweighs everything."""
    claims = {f"t{number}": ("A1",) for number in range(len(outcomes))}
    results = {"A1": {f"t{number}": ended(outcome) for number, outcome in enumerate(outcomes) if outcome}}
    assert scenarios.standings(read_rows(DOCUMENT), claims, results)[0].state is state


def test_the_report_shows_every_row_with_its_tests_and_counts(project: Project) -> None:
    """Held, never run and unclaimed are told apart; cases share a line only when all of them passed."""
    project.tests("""
        import pytest
        @pytest.mark.scenario("A1")
        @pytest.mark.parametrize("n", ["red", "blue"])
        def test_first(n): pass
        @pytest.mark.scenario("A2")
        @pytest.mark.parametrize("n", ["red", "first"])
        def test_second(n): pass
    """)
    project.run("-k", "first")
    printed = project.report().stdout
    assert re.search(r"A1\s+held\s+one -> two\n\s+passed\s+just now\s+test_it.py::test_first \(2 cases\)\n", printed)
    assert re.search(
        r"A2\s+unproven\s+three -> four\n\s+never run\s+test_it.py::test_second\[red\]\n\s+passed ", printed
    )
    assert re.search(r"A3\s+unclaimed\s+five -> six\n", printed)
    assert printed.endswith("\nclaimed and not held: A2\n3 rows: 1 held, 0 failed, 1 unproven, 1 unclaimed\n")


def test_strict_fails_exactly_when_a_claimed_row_is_not_held(project: Project) -> None:
    """Unclaimed rows are work to do, not a failure; before any run, every claim is unproven and the report says so."""
    project.tests(TWO_CLAIMS)
    first = project.report("--strict")
    assert (first.returncode, "no results yet" in first.stdout) == (1, True)
    assert project.report().returncode == 0
    project.run()
    assert project.report("--strict").returncode == 0


def test_the_report_fails_when_the_tests_cannot_be_collected(project: Project) -> None:
    """Without the tests nobody knows who claims what; the cause is printed."""
    project.tests("import no_such_module")
    told = project.report()
    assert told.returncode == 1
    assert "the tests cannot be collected" in told.stdout
    assert "No module named 'no_such_module'" in told.stdout


def test_the_report_fails_on_a_repeated_row(project: Project) -> None:
    """The document's own mistakes are named, not worked around."""
    project.write("docs/scenarios.md", DOCUMENT + "| A1 | other | rule |\n")
    told = project.report()
    assert (told.returncode, "repeats row A1" in told.stdout) == (1, True)


@pytest.mark.parametrize(
    ("elapsed_s", "age"), [(59, "just now"), (3_599, "59 min ago"), (86_399, "23 h ago"), (40 * 86_400, "40 d ago")]
)
def test_ages_are_told_in_the_largest_whole_unit(elapsed_s: int, age: str) -> None:
    """A reader wants to know whether a result is fresh, not its seconds."""
    assert scenarios.age_of(timedelta(seconds=elapsed_s)) == age


def test_eventually_returns_the_first_truthy_value() -> None:
    """The value waited for is the value to go on with."""
    answers = iter([0, None, 7, 8])
    assert eventually(lambda: next(answers), every_s=0) == 7


def test_eventually_takes_a_failed_assertion_as_not_yet() -> None:
    """Conditions may be written as assertions."""
    answers = iter([1, 2, 3])

    def settled() -> bool:
        assert next(answers) == 3
        return True

    assert eventually(settled, every_s=0)


def test_eventually_lets_other_errors_through() -> None:
    """A broken condition is a broken test; waiting would only hide it."""
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 / 0, within_s=10)


def test_eventually_names_what_it_waited_for_the_last_value_and_the_time() -> None:
    """The failure must be readable without running the test again."""
    with pytest.raises(AssertionError, match=r"the topic did not come true, waited \d+\.\d\d s; last value: \[\]"):
        eventually(lambda: [], within_s=0.02, every_s=0.01, what="the topic")


def test_eventually_names_the_last_error() -> None:
    """When the condition itself asserted, its words are the best explanation."""

    def condition() -> bool:
        raise AssertionError("lag is 4")

    with pytest.raises(AssertionError, match=r"the lag did not come true, .*; last error: lag is 4"):
        eventually(condition, within_s=0, what="the lag")


def test_eventually_looks_once_more_at_the_deadline() -> None:
    """An interval longer than the deadline must not turn a condition that came true into a failure."""
    answers = iter([False, True])
    assert eventually(lambda: next(answers), within_s=0.01, every_s=60)


def test_never_watches_for_the_whole_period() -> None:
    """A condition that comes true late in the period is still caught, and named with its value."""
    answers = iter([0, 0, 0, "committed"])
    with pytest.raises(AssertionError, match=r"a commit came true after .* of 10 s; value: 'committed'"):
        never(lambda: next(answers), for_s=10, every_s=0.001, what="a commit")


def test_never_ends_when_the_period_is_over() -> None:
    """It returns in silence, having looked at the end as well."""
    looks: list[int] = []
    never(lambda: looks.append(1), for_s=0.01, every_s=60)
    assert len(looks) == 2
