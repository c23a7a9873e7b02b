"""Processes by identity, and ending everything that one of them started.

A pid alone is no identity, since it is used again. A pid with its create time is. Each component leads a session of
its own (`start_new_session`), so "everything it started" is the session, also after the leader itself is gone.
"""

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from floodmark.core.errors import Unavailable
from floodmark.local.files import write_atomically
from floodmark.local.waiting import never, wait_until

# The kernel keeps create times relative to boot; an adjusted clock shifts them all a little. A pid that is used again
# within this time of its first use would take the machine's whole range of pids in between.
CLOCK_SLACK_S = 2.0
KILL_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, now and for ever."""

    pid: int
    created_s: float

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity":
        """The process that has this pid now: ourselves, or a child that has not been waited for."""
        return cls(pid, psutil.Process(pid).create_time())

    def is_running(self) -> bool:
        """A zombie has ended; only its parent has not looked yet."""
        process = self._process()
        with suppress(psutil.NoSuchProcess):
            return process is not None and process.status() != psutil.STATUS_ZOMBIE
        return False

    def send(self, number: signal.Signals) -> None:
        """Signal this process and never another that has its pid by now."""
        if process := self._process():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def session(self) -> list[psutil.Process]:
        """The running processes of the session that this process leads or led."""
        if psutil.pid_exists(self.pid) and self._process() is None:
            return []  # the pid, and with it the session id, belongs to someone else now
        return [process for process in psutil.process_iter() if _is_running_in(process, self.pid)]

    def _process(self) -> psutil.Process | None:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.created_s) <= CLOCK_SLACK_S:
                return process
        return None


def _is_running_in(process: psutil.Process, session_id: int) -> bool:
    try:
        return os.getsid(process.pid) == session_id and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False  # ended while we looked, or not ours to see


def end_session(leader: ProcessIdentity, *, grace_ms: int, hurry: Callable[[], bool] = never) -> None:
    """Ask the leader to stop, and kill whatever of its session is left when it ended, the grace is over or we hurry."""
    leader.send(signal.SIGTERM)
    wait_until(lambda: not leader.is_running() or hurry(), timeout_ms=grace_ms)
    kill_session(leader)


def kill_session(leader: ProcessIdentity) -> None:
    """SIGKILL to every process of the session, repeated in case one was forking, until none is left."""

    def none_left() -> bool:
        members = leader.session()
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        return not members

    if not wait_until(none_left, timeout_ms=KILL_WAIT_MS):
        raise Unavailable(f"pid {leader.pid} and what it started survived SIGKILL for {KILL_WAIT_MS} ms")


def write_record(path: Path, identity: ProcessIdentity) -> None:
    """Leave a note by which a later command finds this process, should its supervisor be killed."""
    write_atomically(path, json.dumps(asdict(identity)) + "\n")


def read_record(path: Path) -> ProcessIdentity | None:
    """The process a note speaks of; None if there is no note."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return ProcessIdentity(pid=int(fields["pid"]), created_s=float(fields["created_s"]))
