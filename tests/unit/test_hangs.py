"""A run ends although a test hangs, and says which it was and where it stood."""

import re
from pathlib import Path

import pytest

HANGING = """
    import time
    def test_hangs_while_it_cleans_up():
        try:
            time.sleep(60)
        finally:
            time.sleep(60)
    def test_another(): pass
"""
MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text()
TWO_AT_A_TIME = re.findall("^TWO_AT_A_TIME := (.*)", MAKEFILE, re.MULTILINE)[0].split()


def run(pytester: pytest.Pytester, tests: str, *arguments: str, hang_after_s: int) -> pytest.RunResult:
    root = Path(__file__).parents[2]
    pytester.makeini(f"[pytest]\npythonpath = {root}\ntimeout = 3\nhang_after_timeout = {hang_after_s}")
    pytester.makepyfile(test_it=tests)
    pytester.makeconftest("pytest_plugins = ['tests.support.hangs']")
    return pytester.runpytest_subprocess(*arguments, timeout=120)


def test_a_test_that_does_not_heed_its_timeout_ends_and_says_where_it_stood(pytester: pytest.Pytester) -> None:
    made = run(pytester, HANGING, hang_after_s=3)
    made.stderr.fnmatch_lines(["Timeout (0:00:06)!", "*test_it.py*in test_hangs_while_it_cleans_up"])
    assert made.ret != 0


def test_a_run_of_several_processes_names_the_test_and_ends(pytester: pytest.Pytester) -> None:
    """As `make test` runs them. xdist loses what the ended process was to do next, and must not wait for it."""
    for n in range(4):
        pytester.makepyfile(**{f"test_other_{n}": "def test_one(): pass\ndef test_two(): pass\ndef test_three(): pass"})
    made = run(pytester, HANGING, *TWO_AT_A_TIME, hang_after_s=3)
    made.stdout.fnmatch_lines(["*crashed while running 'test_it.py::test_hangs_while_it_cleans_up'*"])
    made.stdout.fnmatch_lines(["=* 1 failed*"])
    assert made.ret != 0


def test_a_test_that_heeds_its_timeout_fails_like_any_other(pytester: pytest.Pytester) -> None:
    tests = "import time\ndef test_slow(): time.sleep(60)\ndef test_another(): pass"
    made = run(pytester, tests, hang_after_s=60)
    made.assert_outcomes(failed=1, passed=1)
