"""`floodmark sql`: one statement to the broker, or a prompt with history and completion."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from floodmark.cli.ledger import refusals_told
from floodmark.client import Connection, connect
from floodmark.core.counting import counted
from floodmark.core.errors import FloodmarkError, InvalidInput
from floodmark.local import config as stack
from floodmark.local.ports import LOOPBACK

BROKER = "broker"
HISTORY = Path("~/.floodmark_history")
KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "CREATE TABLE", "CREATE MATERIALIZED VIEW",
    "CREATE OR REPLACE MATERIALIZED VIEW", "USING parquet", "LOCATION", "TBLPROPERTIES", "ALTER TABLE", "DRY RUN",
    "REFRESH MATERIALIZED VIEW", "PAUSE MATERIALIZED VIEW", "RESUME MATERIALIZED VIEW", "DROP MATERIALIZED VIEW",
    "SHOW TABLES", "SHOW REFUSED FILES", "SHOW MATERIALIZED VIEWS", "SHOW CREATE TABLE",
    "SHOW CREATE MATERIALIZED VIEW", "DESCRIBE", "EXPLAIN", "WHY STALE",
    "SET floodmark.rewrite = ", "SET floodmark.freshness = ",
)  # fmt: skip
_COMMENT = r"--[^\n]*|/\*.*?\*/"
_APART = re.compile(rf"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|{_COMMENT}|;""", re.DOTALL)
"""What a semicolon may be part of without ending a statement, and one that does."""


def sql(
    statement: Annotated[str | None, typer.Argument(help="One statement; - reads it from standard input.")] = None,
    *,
    url: Annotated[
        str | None, typer.Option(help="The broker.", show_default="that of --dir, or http://127.0.0.1:8185")
    ] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Use the broker of this stack.")] = None,
    token: Annotated[str | None, typer.Option(envvar="FLOODMARK_TOKEN", help="A bearer token.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(envvar="FLOODMARK_TOKEN_FILE", help="A file with the token, which `ps` does not show."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The broker's answer as one JSON object.")] = False,
) -> None:
    """Ask the broker. Without a statement: a prompt, where a statement ends with a semicolon."""
    with refusals_told():
        broker = connect(_url(url, directory), token=token or _token(token_file))
        if statement is None and sys.stdin.isatty():
            prompt(broker, Console(highlight=False))
            return
        text = sys.stdin.read() if statement in (None, "-") else str(statement)
        answer = broker.document(text)
    if as_json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        show(answer, Console(highlight=False))


def _token(file: Path | None) -> str | None:
    """The first line: the broker's own file of tokens will do."""
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InvalidInput("token-file", f"{file} cannot be read: {error.strerror}") from error
    return lines[0].strip()


def _url(url: str | None, directory: Path | None) -> str:
    if url is not None or directory is None:
        return url or "http://127.0.0.1:8185"
    config = stack.read(directory.resolve())
    if config is None or BROKER not in config.ports:
        raise InvalidInput("stack-dir", f"no stack with a broker was ever started in {directory}")
    return f"http://{LOOPBACK}:{config.ports[BROKER]}"


def prompt(broker: Connection, console: Console) -> None:
    """Statements until the end of input. A refusal is told, and the next one may do better."""
    session: PromptSession[str] = PromptSession(
        "floodmark> ",
        multiline=Condition(_is_open),
        prompt_continuation="        -> ",
        history=_history(),
    )
    while True:
        try:
            text = session.prompt(completer=_completer(broker))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if _ends(text):
            return
        for statement in statements(text):
            _run(broker, statement, console)


def _run(broker: Connection, text: str, console: Console) -> None:
    """Ctrl-C hangs up, which stops the query."""
    try:
        show(broker.document(text), console)
    except KeyboardInterrupt:
        console.print("stopped")
    except FloodmarkError as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)


def _is_open() -> bool:
    """Whether Enter begins another line: a statement goes on until its semicolon."""
    text = get_app().current_buffer.text
    return not _ends(text) and not all(one.endswith(";") for one in statements(text))


def statements(text: str) -> Iterator[str]:
    """What was typed or pasted, statement by statement; the last one may want its semicolon yet."""
    start = 0
    for found in _APART.finditer(text):
        if found[0] == ";":
            yield from _said(text[start : found.end()])
            start = found.end()
    yield from _said(text[start:])


def _said(text: str) -> Iterator[str]:
    """Nothing of what is only blanks and comments."""
    if re.sub(_COMMENT, "", text, flags=re.DOTALL).strip(" \t\r\n;"):
        yield text.strip()


def _ends(text: str) -> bool:
    return text.strip().lower().rstrip("; ") in ("exit", "quit")


def _history() -> History:
    path = HISTORY.expanduser()
    try:
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _completer(broker: Connection) -> Completer:
    """Keywords, and the names and columns there are now."""
    names: set[str] = set()
    try:
        for table in broker.get("/v1/tables"):
            names |= {table["name"], *(column["name"] for column in table["columns"])}
        names |= {view["name"] for view in broker.get("/v1/views")}
    except FloodmarkError:
        pass  # the first statement will say what is wrong
    return WordCompleter([*KEYWORDS, *sorted(names)], ignore_case=True)


# -- showing -----------------------------------------------------------------------------------------------------------


def show(answer: dict[str, Any], console: Console) -> None:
    columns = [column["name"] for column in answer["columns"]]
    if columns in (["result"], ["statement"]):
        for row in answer["rows"]:
            console.print(Text(str(row[0])), soft_wrap=True)
        return
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, pad_edge=False)
    for row in answer["rows"]:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console.print(table)
    footer = f"({counted(len(answer['rows']), 'row')}{''.join(_told(answer['receipt']))})"
    console.print(Text(footer), style="dim", soft_wrap=True)


def _told(receipt: dict[str, Any] | None) -> Iterable[str]:
    """The receipt in half a line; EXPLAIN and --json have all of it."""
    if receipt is None or "execution_ms" not in receipt:
        return
    if receipt["view"]:
        yield f"; view {receipt['view']}: {counted(receipt['from_view']['buckets'], 'bucket')}"
        if receipt["from_base"]["ranges"]:
            yield f", {counted(len(receipt['from_base']['ranges']), 'range')} from base"
    else:
        yield "; from base"
    yield f"; {counted(receipt['read']['bytes'], 'byte')} read, {receipt['planning_ms'] + receipt['execution_ms']} ms"
