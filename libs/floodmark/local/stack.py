"""One stack in one directory: brought up, taken down, looked at.

A lock on DIR/lock is held exactly as long as a supervisor lives, so "is one running?" has a certain answer, even
after a kill -9. DIR/run names the processes; whoever gets the lock and finds names there has found orphans.
"""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from floodmark.core.errors import Unavailable
from floodmark.local import config as configuration
from floodmark.local.component import Component
from floodmark.local.events import Event, Kind, Report
from floodmark.local.files import FileLock
from floodmark.local.ports import require_free
from floodmark.local.process import ProcessIdentity, end_session, read_record, write_record
from floodmark.local.services import Service
from floodmark.local.supervisor import StopRequest, Supervisor
from floodmark.local.waiting import wait_until

SUPERVISOR = "supervisor"
ORPHAN_GRACE_MS = 25_000
# Every component may use its grace in turn; past that the supervisor itself hangs.
DOWN_WITHIN_MS = 120_000
RECORD_WITHIN_MS = 10_000


def bring_up(
    directory: Path, *, services: tuple[Service, ...], asked: Mapping[str, int], report: Report, stop: StopRequest
) -> None:
    """Run a stack until a stop is asked for. Everything that can be refused is refused before anything starts."""
    lock = _lock(directory)
    if not lock.try_acquire():
        raise Unavailable(f"a stack already runs in {directory}{_whose(directory)}; stop it with `floodmark down`")
    try:
        write_record(_record_path(directory, SUPERVISOR), ProcessIdentity.of(os.getpid()))
        _end_orphans(directory, report)
        stack = configuration.configure(directory, services=services, asked=asked)
        require_free(stack.titled_ports())
        for change in configuration.changed_ports(stack):
            report(Event(Kind.NOTED, detail=change))
        configuration.save(stack)
        up = Event(Kind.UP, detail=f"the stack in {directory} is up")
        Supervisor(stack.components(), report=report, stop=stop).run(on_up=lambda: report(up))
    finally:
        _record_path(directory, SUPERVISOR).unlink(missing_ok=True)
        lock.release()


def take_down(directory: Path, *, report: Report) -> bool:
    """Stop whatever runs in a directory; False when nothing did. Returns when all of it has ended."""
    if not directory.is_dir():
        return False
    lock = _lock(directory)
    if lock.try_acquire():
        found = False
    else:
        found = True
        report(Event(Kind.NOTED, detail=f"stopping the stack in {directory}{_whose(directory)}"))
        _end_supervisor(directory, lock)
    try:
        return _end_orphans(directory, report) or found
    finally:
        _record_path(directory, SUPERVISOR).unlink(missing_ok=True)
        lock.release()


def _end_supervisor(directory: Path, lock: FileLock) -> None:
    """Ask the supervisor to stop, wait until its lock is ours and it has ended; one that hangs is killed."""
    # One that starts this very moment has the lock and has not written its name yet.
    wait_until(lambda: _supervisor(directory) is not None, timeout_ms=RECORD_WITHIN_MS)
    if supervisor := _supervisor(directory):
        supervisor.send(signal.SIGTERM)
        if wait_until(lock.try_acquire, timeout_ms=DOWN_WITHIN_MS):
            # It lets go of its lock a moment before it ends.
            wait_until(lambda: not supervisor.is_running(), timeout_ms=RECORD_WITHIN_MS)
            return
        supervisor.send(signal.SIGKILL)
    if not wait_until(lock.try_acquire, timeout_ms=RECORD_WITHIN_MS):
        raise Unavailable(f"the supervisor of {directory} does not stop and does not say its pid; its lock stays held")


def _end_orphans(directory: Path, report: Report) -> bool:
    """Stop the processes that a killed supervisor left behind, in the order in which it would have."""
    records = [path for path in (directory / "run").glob("*.json") if path.stem != SUPERVISOR]
    found = False
    for path in sorted(records, key=lambda path: (_stop_rank(path.stem), path.stem)):
        identity = read_record(path)
        if identity is not None and identity.session():
            found = True
            end_session(identity, grace_ms=ORPHAN_GRACE_MS)
            name = configuration.title_of(path.stem)
            report(Event(Kind.NOTED, detail=f"{name} (pid {identity.pid}) was left by a killed supervisor; stopped it"))
        path.unlink(missing_ok=True)
    return found


def _stop_rank(name: str) -> int:
    """Services first, then Kafka, then ZooKeeper."""
    return {configuration.KAFKA: 1, configuration.ZOOKEEPER: 2}.get(name, 0)


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """One component as it is now."""

    name: str
    pid: int | None
    address: str
    up_since: str | None
    ready: bool
    log: str


def status_of(directory: Path) -> list[ComponentStatus]:
    """Each component of the stack that was started here last; empty if none ever was."""
    stack = configuration.read(directory)
    return [_status(component) for component in stack.components()] if stack else []


def _status(component: Component) -> ComponentStatus:
    identity = component.identity()
    running = identity if identity is not None and identity.is_running() else None
    return ComponentStatus(
        name=component.name,
        pid=running.pid if running else None,
        address=component.address,
        up_since=datetime.fromtimestamp(running.created_s, UTC).isoformat(timespec="seconds") if running else None,
        ready=running is not None and component.is_ready(),
        log=str(component.log_path),
    )


def _lock(directory: Path) -> FileLock:
    return FileLock(directory / "lock")


def _record_path(directory: Path, name: str) -> Path:
    return directory / "run" / f"{name}.json"


def _supervisor(directory: Path) -> ProcessIdentity | None:
    """The living supervisor; the name of a killed one may still lie there."""
    identity = read_record(_record_path(directory, SUPERVISOR))
    return identity if identity is not None and identity.is_running() else None


def _whose(directory: Path) -> str:
    supervisor = _supervisor(directory)
    return f" (pid {supervisor.pid})" if supervisor else ""
