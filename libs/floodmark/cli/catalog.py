"""`floodmark table`, `floodmark view` and `floodmark retry`: define tables and views, see how they stand."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from floodmark.catalog.definitions import create_table, create_view
from floodmark.catalog.documents import fields_of, table_request, view_request
from floodmark.catalog.durations import format_duration
from floodmark.catalog.status import Pin, TableStanding, ViewStanding, table_standings, view_standings
from floodmark.catalog.times import time_ms, utc
from floodmark.cli.ledger import Directory, Hosts, opened_ledger, refusals_told
from floodmark.core.counting import counted
from floodmark.core.errors import InvalidInput

tables = typer.Typer(no_args_is_help=True, help="Define base tables, list them, drop them.")
views = typer.Typer(no_args_is_help=True, help="Define views, list them with their state, drop them.")

Name = Annotated[str | None, typer.Argument(help="May stand in the file instead.", show_default=False)]
File = Annotated[Path | None, typer.Option("--file", help="A definition in TOML; flags win over what it says.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")]


# -- tables ------------------------------------------------------------------------------------------------------------


@tables.command("create")
def create_table_command(
    name: Name = None,
    *,
    location: Annotated[str | None, typer.Option(help="A directory, or a URI such as s3://lake/rides.")] = None,
    time_column: Annotated[str | None, typer.Option(help="The column that says when a row happened.")] = None,
    scan: Annotated[
        bool | None, typer.Option("--scan/--no-scan", help="Look for files by itself. Default: yes.")
    ] = None,
    glob: Annotated[str | None, typer.Option(help="Which file names are scanned. Default: *.parquet")] = None,
    retention: Annotated[
        str | None, typer.Option(help="Delete data older than this, such as 30d. Default: never.")
    ] = None,
    time_unit: Annotated[
        str | None, typer.Option(help="What a time column of whole numbers counts: s, ms, us or ns. Default: ms.")
    ] = None,
    file: File = None,
    zookeeper: Hosts = None,
    directory: Directory = None,
) -> None:
    """Define a table. Its columns are those of the first file that is there, unless the definition file has them."""
    given = {"name": name, "location": location, "time_column": time_column, "scan": scan, "glob": glob}
    given |= {"retention": retention, "time_unit": time_unit}
    with refusals_told():
        request = table_request(_fields(file, "table", given))
        with opened_ledger(zookeeper, directory, for_writing=True) as ledger:
            header = create_table(ledger, request)
    print(f"table {header.definition.name} is defined at {header.definition.location}")


@tables.command("drop")
def drop_table(
    name: Annotated[str, typer.Argument(help="A table.")], *, zookeeper: Hosts = None, directory: Directory = None
) -> None:
    """Drop a table that no view uses. Its files stay where they are."""
    with refusals_told(), opened_ledger(zookeeper, directory, for_writing=True) as ledger:
        if not ledger.dropping.drop(name):
            raise InvalidInput("unknown-table", f"there is no table {name!r}")
    print(f"table {name} is dropped; its files are where they were")


@tables.command("list")
def list_tables(*, as_json: AsJson = False, zookeeper: Hosts = None, directory: Directory = None) -> None:
    """Every table with its data: segments, refused files, from when to when, registry version.

    Why files are refused: floodmark sql "SHOW REFUSED FILES t".
    """
    with refusals_told(), opened_ledger(zookeeper, directory) as ledger:
        standings = table_standings(ledger)
    if as_json:
        print(json.dumps([_table_facts(s) for s in standings], indent=2))
    else:
        columns = ("table", "segments", "refused files", "from", "to", "version", "location")
        _print(columns, [_table_row(s) for s in standings], none="no table is defined")


def _table_facts(standing: TableStanding) -> dict[str, Any]:
    header = standing.header
    return {
        "name": header.definition.name,
        "location": header.definition.location,
        "segments": header.segment_count,
        "refused_files": standing.refused,
        "min_start_ms": header.min_start_ms,
        "max_last_ms": header.max_last_ms,
        "version": header.version,
    }


def _table_row(standing: TableStanding) -> tuple[object, ...]:
    header, definition = standing.header, standing.header.definition
    refused = "unreadable" if standing.refused is None else standing.refused
    data = (header.segment_count, refused, utc(header.min_start_ms), utc(header.max_last_ms))
    return (definition.name, *data, header.version, definition.location)


# -- views -------------------------------------------------------------------------------------------------------------


@views.command("create")
def create_view_command(
    name: Name = None,
    *,
    table: Annotated[str | None, typer.Option(help="The base table.")] = None,
    bucket: Annotated[str | None, typer.Option(help="Width of a bucket: 15m, 1h, 1d.")] = None,
    select: Annotated[str | None, typer.Option(help="The query.")] = None,
    location: Annotated[str | None, typer.Option(help="Where its files go: a directory or a URI.")] = None,
    coverage: Annotated[str | None, typer.Option(help="extend or fixed: what older data does. Default: extend")] = None,
    coverage_start: Annotated[str | None, typer.Option(help="Cover from this time on. Default: from the data.")] = None,
    file: File = None,
    zookeeper: Hosts = None,
    directory: Directory = None,
) -> None:
    """Define a view."""
    given = {"name": name, "table": table, "bucket": bucket, "select": select, "location": location}
    given |= {"coverage": coverage, "coverage_start": coverage_start}
    with refusals_told():
        request = view_request(_fields(file, "view", given), time_ms=time_ms)
        with opened_ledger(zookeeper, directory, for_writing=True) as ledger:
            header = create_view(ledger, request)
    print(f"view {header.definition.name} is defined, covering from {utc(header.coverage_start_ms)} on")


@views.command("drop")
def drop_view(
    name: Annotated[str, typer.Argument(help="A view.")], *, zookeeper: Hosts = None, directory: Directory = None
) -> None:
    """Drop a view. Builds of it that are running can never commit afterwards."""
    with refusals_told(), opened_ledger(zookeeper, directory) as ledger:
        if not ledger.views.drop(name):
            raise InvalidInput("unknown-view", f"there is no view {name!r}")
    print(f"view {name} is dropped")


@views.command("list")
def list_views(*, as_json: AsJson = False, zookeeper: Hosts = None, directory: Directory = None) -> None:
    """Every view: status, watermark, how far it is behind the data, buckets by state, and what pins it."""
    with refusals_told(), opened_ledger(zookeeper, directory) as ledger:
        standings = view_standings(ledger)
    if as_json:
        print(json.dumps([asdict(s) for s in standings], indent=2))
    else:
        columns = ("view", "table", "status", "watermark", "behind the data", "buckets", "pinned by")
        _print(columns, [_view_row(s) for s in standings], none="no view is defined")


def _view_row(standing: ViewStanding) -> tuple[object, ...]:
    behind = "-" if standing.lag_ms is None else format_duration(standing.lag_ms) if standing.lag_ms else "0"
    counts = ", ".join(f"{count} {kind}" for kind, count in standing.counts.items()) or "none"
    named = (standing.name, standing.table, standing.status, utc(standing.watermark_ms))
    return (*named, behind, counts, "\n".join(_pin(p) for p in standing.pins) or "-")


def _pin(pin: Pin) -> str:
    return f"{utc(pin.start_ms)} {pin.condition} after {counted(pin.tries, 'attempt')}: {pin.error}"


def retry(
    view: Annotated[str, typer.Argument(help="A view.")],
    bucket: Annotated[str, typer.Argument(help="A time inside the bucket: 2014-01-05T10:00Z, or ms.")],
    *,
    zookeeper: Hosts = None,
    directory: Directory = None,
) -> None:
    """Release a bucket from quarantine: it is tried again, from the beginning."""
    with refusals_told(), opened_ledger(zookeeper, directory) as ledger:
        header = ledger.views.header(view)
        start_ms = header.definition.grid.start_of(time_ms(bucket))
        if not ledger.dispatch.release(header, start_ms):
            record = ledger.dispatch.records(view).get(start_ms)
            is_ = f"is {record.progress}" if record else "has no task"
            raise InvalidInput("not-quarantined", f"bucket {utc(start_ms)} of view {view!r} {is_}")
    print(f"bucket {utc(start_ms)} of view {view} is released")


# -- forms -------------------------------------------------------------------------------------------------------------


def _fields(file: Path | None, section: str, given: dict[str, Any]) -> dict[str, Any]:
    """What the file says, and over it what the flags say. Paths are relative to the file, or to where we stand."""
    fields: dict[str, Any] = {}
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput("definition", f"{file} cannot be read: {error}") from error
        fields = _located(fields_of(text, section=section, what=str(file)), file.resolve().parent)
    return fields | _located({key: value for key, value in given.items() if value is not None}, Path.cwd())


def _located(fields: dict[str, Any], base: Path) -> dict[str, Any]:
    location = fields.get("location")
    if not isinstance(location, str) or "://" in location:
        return fields
    return {**fields, "location": str((base / location).resolve())}


def _print(columns: tuple[str, ...], rows: list[tuple[object, ...]], *, none: str) -> None:
    if not rows:
        print(none)
        return
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console(highlight=False).print(table)
