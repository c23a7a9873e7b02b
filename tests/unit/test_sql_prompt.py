"""The prompt of `floodmark sql`: statements over several lines, refusals told, and on to the next."""

import io
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from floodmark.cli import sql
from floodmark.client import Connection, QueryFailed
from floodmark.core.errors import Unavailable


class PlayedBroker(Connection):
    """Answers every statement with itself, and refuses those that say so."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.asked: list[str] = []

    def document(self, text: str, **_: Any) -> dict[str, Any]:
        self.asked.append(text)
        if "refuse" in text:
            raise QueryFailed(400, "a-rule", "write something else")
        rows = [[len(self.asked), None]]
        return {"columns": [{"name": "n"}, {"name": "x"}], "rows": rows, "receipt": None, "settings": {}}

    def get(self, path: str) -> Any:
        raise Unavailable("nobody is there")


def prompted(typed: str) -> tuple[PlayedBroker, str]:
    broker, shown = PlayedBroker(), io.StringIO()
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(typed)
        sql.prompt(broker, Console(file=shown, width=200))
    return broker, shown.getvalue()


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "history"
    monkeypatch.setattr(sql, "HISTORY", path)
    return path


def test_a_statement_ends_with_a_semicolon_and_may_have_several_lines(history: Path) -> None:
    broker, shown = prompted("SELECT 1\rFROM t;\r\rSHOW TABLES;\rexit\r")
    assert broker.asked == ["SELECT 1\nFROM t;", "SHOW TABLES;"]
    assert "(1 rows)" in shown
    assert "SHOW TABLES;" in history.read_text()


def test_a_refusal_is_told_and_the_next_statement_is_asked() -> None:
    broker, shown = prompted("refuse this;\rSHOW TABLES;\rquit;\r")
    assert len(broker.asked) == 2
    assert "error: a-rule: write something else" in shown


def test_the_end_of_input_ends_the_prompt() -> None:
    assert prompted("\x04")[0].asked == []


def test_a_receipt_is_told_in_half_a_line() -> None:
    receipt = {
        "view": "v", "from_view": {"buckets": 3}, "from_base": {"ranges": [{}]}, "read": {"bytes": 1234},
        "planning_ms": 1, "execution_ms": 20,
    }  # fmt: skip
    shown = io.StringIO()
    sql.show({"columns": [{"name": "n"}], "rows": [[1]], "receipt": receipt}, Console(file=shown, width=200))
    assert "(1 rows; view v: 3 buckets, 1 ranges from base; 1,234 bytes read, 21 ms)" in shown.getvalue()
