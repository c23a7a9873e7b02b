"""`floodmark janitor --dry-run`: what the janitor would delete, and why it keeps the rest. The service deletes."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from floodmark.catalog.durations import format_duration, parse_duration_ms
from floodmark.catalog.leftovers import Finding, findings
from floodmark.catalog.times import utc
from floodmark.cli.ledger import Directory, Hosts, opened_ledger, refusals_told
from floodmark.core.errors import InvalidInput
from floodmark.core.garbage import Terms
from floodmark.core.ports import SystemClock

NOTE = "A dry run does not know since when a file is unnamed: the age of the file stands in for it."
COLUMNS = ("of", "path", "bytes", "verdict", "why", "unnamed since", "grace left", "held by")


def janitor(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look, print, delete nothing.")] = False,
    grace: Annotated[str, typer.Option(help="The service's janitor.grace_ms, as a duration.")] = format_duration(
        Terms().grace_ms
    ),
    skew: Annotated[str, typer.Option(help="Its janitor.skew_ms.")] = format_duration(Terms().skew_ms),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    zookeeper: Hosts = None,
    directory: Directory = None,
) -> None:
    """Show what a pass of the janitor would delete, and why it would keep each other candidate."""
    with refusals_told():
        if not dry_run:
            raise InvalidInput(
                "dry-run", "deleting is the janitor service's work; say --dry-run to see what it would do"
            )
        terms = Terms(parse_duration_ms(grace, what="grace"), parse_duration_ms(skew, what="skew"))
        with opened_ledger(zookeeper, directory) as ledger:
            found = findings(ledger, now_ms=SystemClock().now_ms(), terms=terms)
    if as_json:
        print(json.dumps({"note": NOTE, "findings": [asdict(f) for f in found]}, indent=2))
    else:
        _print(found)


def _print(found: list[Finding]) -> None:
    if found:
        table = Table(*(Column(name, overflow="fold") for name in COLUMNS), box=None, pad_edge=False)
        for finding in found:
            table.add_row(*(Text(str(cell)) for cell in _row(finding)))
        Console(highlight=False).print(table)
    print(f"{sum(f.verdict == 'delete' for f in found)} of {len(found)} candidates would be deleted now.")
    print(NOTE)


def _row(finding: Finding) -> tuple[object, ...]:
    left = format_duration(finding.grace_left_ms) if finding.grace_left_ms else "-"
    since, holders = utc(finding.unnamed_since_ms), ", ".join(finding.held_by) or "-"
    return (finding.owner, finding.path, finding.bytes, finding.verdict, finding.reason, since, left, holders)
