"""`floodmark ledger`: look into ZooKeeper, carry a view's state out of it and back in, give what is there an owner."""

import json
import logging
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.console import Console

from floodmark.catalog.imports import LakeFiles
from floodmark.catalog.times import time_ms
from floodmark.cli.ledger_tables import rendered
from floodmark.core.counting import counted
from floodmark.core.errors import FloodmarkError, InvalidInput, Unavailable
from floodmark.core.ports import SystemClock
from floodmark.ledger import exchange, inspection, protection
from floodmark.ledger.access import Access
from floodmark.ledger.ledger import Ledger, ledger_on
from floodmark.ledger.session import Session
from floodmark.ledger.zookeeper import ZooKeeperStore
from floodmark.local import config as stack
from floodmark.local.config import ZOOKEEPER
from floodmark.local.ports import LOOPBACK
from floodmark.local.services import SETTINGS_FILE
from floodmark.service.settings import ServiceSettings, ZooKeeperSettings, load

EXIT_REFUSED = 1
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h: the server, not the request, is the trouble
SESSION_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_MS = 5_000

app = typer.Typer(no_args_is_help=True, help="Look into the ledger; export and import a view's state.")

Hosts = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        envvar="FLOODMARK_ZOOKEEPER__HOSTS",
        help="ZooKeeper's host:port, comma-separated.",
        show_default=f"that of --dir, or {ZooKeeperSettings().hosts}",
    ),
]
Directory = Annotated[Path | None, typer.Option("--dir", help="Use the ZooKeeper of the stack in this directory.")]


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A table or a view.")],
    *,
    bucket: Annotated[str | None, typer.Option(help="A time inside one bucket: 2014-01-05T10:00Z, or ms.")] = None,
    table: Annotated[bool, typer.Option("--table", help="NAME is a table.")] = False,
    view: Annotated[bool, typer.Option("--view", help="NAME is a view.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object.")] = False,
    zookeeper: Hosts = None,
    directory: Directory = None,
) -> None:
    """Show what the ledger knows of a table, a view or one bucket."""
    with refusals_told():
        if table and view:
            raise InvalidInput("ambiguous-name", "--table and --view exclude each other")
        kind = "table" if table else "view" if view else None
        bucket_ms = None if bucket is None else time_ms(bucket)
        now_ms = SystemClock().now_ms()
        with opened_ledger(zookeeper, directory) as ledger:
            document = inspection.document_of(ledger, name, kind=kind, bucket_ms=bucket_ms, now_ms=now_ms)
    if as_json:
        print(json.dumps(document, indent=2))
        return
    console = Console(highlight=False)
    for part in rendered(document):
        console.print(part)


@app.command("export")
def export_(
    view: Annotated[str, typer.Argument(help="A view.")], *, zookeeper: Hosts = None, directory: Directory = None
) -> None:
    """Write the state of a view to standard output, as JSON."""
    with refusals_told():
        with opened_ledger(zookeeper, directory) as ledger:
            exported = exchange.export_view(ledger, view, now_ms=SystemClock().now_ms())
        print(exported.model_dump_json(indent=1))


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="What `export` wrote; - for standard input.")],
    *,
    zookeeper: Hosts = None,
    directory: Directory = None,
) -> None:
    """Create a view from an export. Its buckets are STALE until their source is seen to be unchanged."""
    with refusals_told():
        export = exchange.parse(_read(file), what=str(file))
        with opened_ledger(zookeeper, directory) as ledger:
            files = LakeFiles(export.view.location)
            header = exchange.import_view(ledger, export, now_ms=SystemClock().now_ms(), files=files)
    buckets = sum(run.count for run in export.buckets)
    about = f"view {header.definition.name} imported as incarnation {header.incarnation}"
    print(f"{about}: {counted(buckets, 'bucket')}, all STALE")


@app.command()
def protect(
    *,
    former_password_file: Annotated[
        Path | None, typer.Option(help="The password that was in use before, when it has changed.")
    ] = None,
    zookeeper: Hosts = None,
    directory: Directory = None,
) -> None:
    """Give every node to zookeeper.username alone. Once, when authentication is turned on or its password changed."""
    with refusals_told():
        settings = _settings(zookeeper, directory)
        if not settings.username:
            raise InvalidInput("nobody", "set zookeeper.username and zookeeper.password first")
        former = _read(former_password_file).decode().rstrip("\r\n") if former_password_file else ""
        access = replace(settings.access, former_password=former)
        with opened_session(settings.hosts, access) as session:
            nodes = protection.protect(session)
    print(f"{nodes} nodes are {settings.username}'s alone")


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InvalidInput("file", f"{file} cannot be read: {error.strerror}") from error


@contextmanager
def opened_ledger(hosts: str | None, directory: Path | None, *, for_writing: bool = False) -> Iterator[Ledger]:
    """The ledger. For a look it is taken as it is: not even its root nodes are created."""
    settings = _settings(hosts, directory)
    with opened_session(settings.hosts, settings.access) as session:
        store = ZooKeeperStore(session)
        if for_writing:
            store.ensure_root()
        yield ledger_on(store, clock=SystemClock(), randomness=random.SystemRandom())


@contextmanager
def opened_session(hosts: str, access: Access) -> Iterator[Session]:
    _quiet_logs()
    session = Session(hosts=hosts, timeout_ms=SESSION_TIMEOUT_MS, access=access, on_lost=lambda: None)
    session.open(timeout_ms=CONNECT_TIMEOUT_MS)
    try:
        yield session
    finally:
        session.close()


def _settings(hosts: str | None, directory: Path | None) -> ZooKeeperSettings:
    """As a service would read them; the flags say where, the settings as whom."""
    if directory is None:
        found = load(ServiceSettings).zookeeper
        return found.model_copy(update={"hosts": hosts}) if hosts else found
    config = stack.read(directory.resolve())
    if config is None:
        raise InvalidInput("stack-dir", f"no stack was ever started in {directory}")
    file = directory / SETTINGS_FILE
    found = load(ServiceSettings, str(file) if file.exists() else None).zookeeper
    return found.model_copy(update={"hosts": f"{LOOPBACK}:{config.ports[ZOOKEEPER]}"})


def _quiet_logs() -> None:
    """Standard output is the answer, and standard error has one sentence if there is none."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)


@contextmanager
def refusals_told() -> Iterator[None]:
    """One sentence on standard error, and an exit code that tells a refusal from a server that is away."""
    try:
        yield
    except FloodmarkError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_UNAVAILABLE if isinstance(error, Unavailable) else EXIT_REFUSED) from error
