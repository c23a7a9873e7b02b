"""The `floodmark` command: each group of commands lives in its own module and is added here."""

import typer

from floodmark.cli import catalog, demo, files, janitor, ledger, sql, stack

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Materialized views that are never stale to the reader.",
)
_COMMANDS = (
    demo.demo,
    stack.up,
    stack.down,
    stack.status,
    stack.fetch,
    sql.sql,
    files.files,
    catalog.retry,
    janitor.janitor,
)
for command in _COMMANDS:
    app.command()(command)
app.add_typer(catalog.tables, name="table")
app.add_typer(catalog.views, name="view")
app.add_typer(ledger.app, name="ledger")
