"""`floodmark sql` at a real terminal, as a new user meets it: the story of the tutorial, and what a prompt is for."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerUnderTest, Rides
from tests.support.eventually import eventually
from tests.support.service_process import ROOT, new_table
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]
PROMPT = "floodmark>"
TAB, UP = "\t", "\x1b[A"


@pytest.fixture
def terminal(broker: BrokerUnderTest, tmp_path: Path) -> Iterator[Terminal]:
    with opened(broker, tmp_path) as made:
        yield made


def opened(broker: BrokerUnderTest, home: Path) -> Terminal:
    command = [sys.executable, "-c", "from floodmark.cli.main import app; app()", "sql", "--url", broker.url]
    made = Terminal(command, HOME=str(home))
    made.await_shown(PROMPT)
    return made


def asked(terminal: Terminal, statement: str, answer: str, *, within_s: float = 120) -> str:
    """Type a statement, line by line, and wait for something in its answer, and for the prompt after it."""
    terminal.type(statement.replace("\n", "\r") + "\r")
    return terminal.await_shown(answer, within_s=within_s) + terminal.await_shown(PROMPT)


# -- what a prompt is for ----------------------------------------------------------------------------------------------


def test_rows_are_a_table_and_a_refusal_is_followed_by_the_next_prompt(
    broker: BrokerUnderTest, terminal: Terminal
) -> None:
    rides = Rides(broker)
    rides.await_registered()
    shown = asked(terminal, f"SELECT count(*) AS n,\n  min(city) AS place FROM {rides.name};", "bytes read")
    assert re.search(r"\nn +place *\n1000 ", shown), shown
    assert "(1 row; from base; " in shown
    shown = asked(terminal, "SELECT x FROM no_such_table;", "there is no table")
    assert "error: unknown-table: " in shown
    asked(terminal, f"SELECT count(*) AS again FROM {rides.name};", "(1 row")
    terminal.type("exit\r")
    assert terminal.process.wait(30) == 0


def test_names_are_completed_also_those_that_were_created_meanwhile(
    broker: BrokerUnderTest, terminal: Terminal
) -> None:
    rides = Rides(broker)
    rides.await_registered()
    asked(terminal, "SHOW TABLES;", " row")  # the prompt after it knows the table
    terminal.type(f"SELECT count(*) AS counted FROM {rides.name[:-2]}")
    terminal.await_shown(rides.name)  # as an offer, which Tab takes
    terminal.type(f"{TAB};\r")
    assert "1000" in terminal.await_shown("(1 row")


def test_what_was_asked_is_remembered_by_the_next_prompt(broker: BrokerUnderTest, tmp_path: Path) -> None:
    with opened(broker, tmp_path) as first:
        asked(first, "SET floodmark.rewrite = off;", "(1 row")
        first.type("\x04")
        assert first.process.wait(30) == 0
    with opened(broker, tmp_path) as second:
        second.type(f"{UP}\r")
        shown = second.await_shown("(1 row")
        assert re.search(r"rewrite +off", shown), shown
    assert (tmp_path / ".floodmark_history").stat().st_mode & 0o077 == 0


# -- the story of the tutorial -----------------------------------------------------------------------------------------


class Story:
    """The tutorial's section, its paths and names made ones that only this test uses."""

    def __init__(self, directory: Path) -> None:
        text = (ROOT / "docs/tutorial.md").read_text()
        section = text[text.index("## 2. A table") : text.index("## 4. From a program")]
        own = new_table()
        section = section.replace("/tmp/", f"{directory}/").replace("trips_hourly", f"{own}_hourly")
        section = re.sub(r"\b(FROM|CREATE TABLE) trips\b", rf"\1 {own}", section)
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        self.sql = [text for kind, text in blocks if kind == "sql"]
        self.shell = [text for kind, text in blocks if kind == ""]
        self.view = f"{own}_hourly"

    def run(self, block: int) -> None:
        """A block for the shell, up to where it would start the prompt."""
        script = self.shell[block].replace(".venv/bin/floodmark sql\n", "").replace(".venv/bin/python", sys.executable)
        subprocess.run(["bash", "-e"], input=script, text=True, check=True, cwd=ROOT)


def pasted(terminal: Terminal, block: str, *answers: str) -> str:
    """Whole blocks are pasted, comments and all; each statement's answer in turn."""
    terminal.paste(block.rstrip())
    terminal.type("\r")
    shown = "".join(terminal.await_shown(answer, within_s=120) for answer in answers)
    return shown + terminal.await_shown(PROMPT)


def repeated(terminal: Terminal, statement: str, wanted: str) -> None:
    """Ask until the answer has it, as a user would."""

    def found() -> bool:
        shown = asked(terminal, statement, " row")
        assert re.search(wanted, shown), shown
        return True

    eventually(found, within_s=240, every_s=0.5, what=f"{wanted} in the answer to {statement}")


def test_the_story_of_the_tutorial_happens_as_it_is_told(terminal: Terminal, tmp_path: Path) -> None:
    story = Story(tmp_path)
    first, pause, last = story.sql
    *_, by_day, _ = first.splitlines()
    story.run(0)
    shown = pasted(terminal, first, " is defined at ", " is defined, covering", " row", " rows; ", "rows)")
    assert "error" not in shown
    repeated(terminal, "SHOW MATERIALIZED VIEWS;", rf"{story.view} .* 120 VALID ")
    repeated(terminal, by_day, rf"\(5 rows; view {story.view}: 120 buckets; ")
    pasted(terminal, pause, "is paused")
    story.run(1)
    count, why, resume = last.splitlines()
    repeated(terminal, count, r"\n1001000 *\n\(1 row; view \w+: 96 buckets, \d+ ranges? from base")
    assert "late.parquet" in asked(terminal, why, " row")
    asked(terminal, resume, "is active")
    repeated(terminal, count, rf"\n1001000 *\n\(1 row; view {story.view}: 120 buckets; ")
