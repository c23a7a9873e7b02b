"""The prompt of `floodmark sql`: statements over several lines, refusals told, and on to the next."""

import io
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console
from typer.testing import CliRunner

from floodmark.cli import sql
from floodmark.cli.main import app
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
    assert "(1 row)" in shown
    assert "SHOW TABLES;" in history.read_text()


def test_a_comment_after_the_semicolon_does_not_keep_a_statement_open() -> None:
    broker, _ = prompted("SHOW TABLES;   -- all; of them\rSELECT ';--' /* ; */;\rexit\r")
    assert broker.asked == ["SHOW TABLES;", "SELECT ';--' /* ; */;"]


def test_statements_that_are_pasted_together_are_asked_one_by_one() -> None:
    pasted = "\x1b[200~SHOW TABLES;  -- first\nSELECT 1\n  FROM `a;b`;\n;-- nothing\n\x1b[201~"
    broker, _ = prompted(f"{pasted}\rexit\r")
    assert broker.asked == ["SHOW TABLES;", "-- first\nSELECT 1\n  FROM `a;b`;"]


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
    assert "(1 row; view v: 3 buckets, 1 range from base; 1,234 bytes read, 21 ms)" in shown.getvalue()


@pytest.mark.parametrize(("text", "sent"), [("token-one\n", "token-one"), ("token-one\ntoken-two\n", "token-one")])
def test_a_token_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sent: str) -> None:
    """Its first line, so that the broker's own file of tokens will do."""
    told: list[str | None] = []

    def connected(_url: str, *, token: str | None) -> None:
        told.append(token)
        raise Unavailable("enough")

    monkeypatch.setattr("floodmark.cli.sql.connect", connected)
    file = tmp_path / "token"
    file.write_text(text)
    CliRunner().invoke(app, ["sql", "SELECT 1", "--token-file", str(file)])
    monkeypatch.setenv("FLOODMARK_TOKEN_FILE", str(file))
    CliRunner().invoke(app, ["sql", "SELECT 1"])
    assert told == [sent, sent]


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["sql", "SELECT 1", "--token-file", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert result.stderr == f"error: token-file: {tmp_path / 'none'} cannot be read: No such file or directory\n"
