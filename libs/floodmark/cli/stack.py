"""`floodmark fetch`, `up`, `down` and `status`: the stack on one machine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from floodmark.core.errors import FloodmarkError
from floodmark.local.config import DEFAULT_PORTS, HTTP_PORT_BASE, KAFKA, KAFKA_CONTROLLER, ZOOKEEPER
from floodmark.local.detached import StackRequest, launch
from floodmark.local.events import Event, Kind
from floodmark.local.jars import ensure_kafka_jars
from floodmark.local.java import find_java
from floodmark.local.progress import progress_for
from floodmark.local.services import SERVICES, Service
from floodmark.local.stack import ComponentStatus, status_of, take_down
from floodmark.local.supervisor import StopRequest

EXIT_FAILED = 1
EXIT_NOT_READY = 3

Directory = Annotated[Path, typer.Option("--dir", help="Where data, logs and the stack's ports live.")]


def _port(default: int, what: str) -> object:
    text = f"{what}; 0 picks a free one. Default: the one used before, at first {default}."
    return typer.Option(min=0, max=65_535, help=text, show_default=False)


def fetch() -> None:
    """Fetch Kafka into the user's cache, once; later calls only check it."""
    console = Console()
    with errors_told():
        jars = ensure_kafka_jars(say=lambda line: console.print(line, highlight=False, soft_wrap=True))
        console.print(f"Kafka's jars are in {jars}", highlight=False, soft_wrap=True)


def up(
    directory: Directory = Path(".floodmark"),
    *,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the stack is up and leave it running.")] = False,
    no_services: Annotated[bool, typer.Option("--no-services", help="Only ZooKeeper and Kafka.")] = False,
    zookeeper_port: Annotated[int | None, _port(DEFAULT_PORTS[ZOOKEEPER], "ZooKeeper's port")] = None,
    kafka_port: Annotated[int | None, _port(DEFAULT_PORTS[KAFKA], "Kafka's port")] = None,
    kafka_controller_port: Annotated[
        int | None, _port(DEFAULT_PORTS[KAFKA_CONTROLLER], "Port of Kafka's controller")
    ] = None,
    http_port_base: Annotated[int | None, _port(HTTP_PORT_BASE, "First of the services' HTTP ports")] = None,
) -> None:
    """Start ZooKeeper, Kafka and every service on loopback; Ctrl-C stops them."""
    services = () if no_services else SERVICES
    flags = {ZOOKEEPER: zookeeper_port, KAFKA: kafka_port, KAFKA_CONTROLLER: kafka_controller_port}
    asked = {name: port for name, port in flags.items() if port is not None} | _http_ports(http_port_base, services)
    request = StackRequest(directory.resolve(), services, asked)
    with errors_told(), progress_for(Console()) as report:
        find_java()
        ensure_kafka_jars(say=lambda line: report(Event(Kind.NOTED, detail=line)))
        if detach:
            launch(request, report=report)
        else:
            stop = StopRequest()
            stop.listen()
            request.run(report=report, stop=stop)


def down(directory: Directory = Path(".floodmark")) -> None:
    """Stop the stack in a directory, or what a killed one left behind."""
    with errors_told(), progress_for(Console()) as report:
        stopped = take_down(directory.resolve(), report=report)
        text = f"the stack in {directory} is stopped" if stopped else f"nothing runs in {directory}"
        report(Event(Kind.NOTED, detail=text))


def status(
    directory: Directory = Path(".floodmark"),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
) -> None:
    """Show each component; exit code 0 when all are ready, 3 otherwise."""
    with errors_told():
        rows = status_of(directory.resolve())
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    elif rows:
        Console().print(_table(rows))
    else:
        print(f"no stack was ever started in {directory}")
    if not rows or not all(row.ready for row in rows):
        raise typer.Exit(EXIT_NOT_READY)


def _http_ports(base: int | None, services: tuple[Service, ...]) -> dict[str, int]:
    """Consecutive ports from the base on, or any free ones."""
    if base is None:
        return {}
    return {service.name: base + n if base else 0 for n, service in enumerate(services)}


def _table(rows: list[ComponentStatus]) -> Table:
    log = Column("log", overflow="fold")  # a path cut short is no path
    since = Column("up since", overflow="fold")
    table = Table("component", "state", "pid", "address", since, log, box=None, pad_edge=False)
    for row in rows:
        state = "ready" if row.ready else "not ready" if row.pid else "not running"
        table.add_row(row.name, state, str(row.pid or ""), row.address, row.up_since or "", row.log)
    return table


@contextmanager
def errors_told() -> Iterator[None]:
    """What we refuse or fail at is one message on standard error, without a stack trace."""
    try:
        yield
    except FloodmarkError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from error
