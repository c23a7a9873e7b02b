"""One process of the stack: how it is started, awaited, stopped and found again.

DIR/<name>/            configuration and data, kept across restarts
DIR/logs/<name>.log    everything it prints, appended
DIR/run/<name>.json    pid and create time, while it runs
"""

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from floodmark.core.errors import Unavailable
from floodmark.local.ports import LOOPBACK
from floodmark.local.process import ProcessIdentity, end_session, kill_session, read_record, write_record
from floodmark.local.waiting import never, wait_until

TAIL_LINES = 15


class Component(ABC):
    """A server on one loopback port. Subclasses say what to run and when it is ready."""

    ready_within_ms: ClassVar[int] = 60_000
    grace_ms: ClassVar[int] = 20_000

    def __init__(self, directory: Path, *, name: str, title: str, port: int) -> None:
        self.name = name
        self.title = title
        self.port = port
        self.home = directory / name
        self.log_path = directory / "logs" / f"{name}.log"
        self.record_path = directory / "run" / f"{name}.json"
        self._child: subprocess.Popen[bytes] | None = None
        self._identity: ProcessIdentity | None = None
        self._log_start_bytes = 0

    @abstractmethod
    def prepare(self) -> None:
        """Write what the process reads when it starts. Runs before each start and leaves data alone."""

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the server does its work, seen from outside; also true of one that another process started."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start and return when ready; a start that fails leaves no process behind."""
        try:
            self.spawn()
            self.await_ready()
        except BaseException:
            self.stop()
            raise

    def spawn(self) -> None:
        """Start without waiting.

        Remaining risk: a supervisor killed with -9 after the process exists and before the note of it does leaves a
        process that `down` cannot find. The next `up` then says that its port is taken, and by whom.
        """
        assert self._child is None, f"{self.name} is already started"
        self.home.mkdir(parents=True, exist_ok=True)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with self.log_path.open("ab") as log:
            self._log_start_bytes = log.tell()
            self._child = subprocess.Popen(
                self.command(),
                cwd=self.home,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C in the terminal reaches the supervisor only, which keeps the order
            )
        self._identity = ProcessIdentity.of(self._child.pid)
        write_record(self.record_path, self._identity)

    def await_ready(self, *, give_up: Callable[[], bool] = never) -> bool:
        """True when ready, False when told to give up; an exit or the end of our patience is an error."""
        wait_until(
            lambda: give_up() or self.exit_code() is not None or self.is_ready(), timeout_ms=self.ready_within_ms
        )
        if give_up():
            return False
        if (code := self.exit_code()) is not None:
            raise Unavailable(f"{self.title} exited with code {code} before it was ready; {self._log_tail()}")
        if not self.is_ready():
            raise Unavailable(f"{self.title} was not ready after {self.ready_within_ms // 1000} s; {self._log_tail()}")
        return True

    def exit_code(self) -> int | None:
        """How the process ended; None while it runs."""
        assert self._child is not None, f"{self.name} is not started"
        return self._child.poll()

    def stop(self, *, hurry: Callable[[], bool] = never) -> None:
        """SIGTERM, the grace period, SIGKILL. Does nothing when nothing runs."""
        if identity := self.identity():
            end_session(identity, grace_ms=self.grace_ms, hurry=hurry)
        self._forget()

    def kill(self) -> None:
        """SIGKILL at once, as a crash would."""
        if identity := self.identity():
            kill_session(identity)
        self._forget()

    def restart(self) -> None:
        self.stop()
        self.start()

    def identity(self) -> ProcessIdentity | None:
        """The process that runs this component, whoever started it; None if none was noted down."""
        return self._identity or read_record(self.record_path)

    def _forget(self) -> None:
        if self._child is not None:
            self._child.wait()
            self._child = None
            self._identity = None
        self.record_path.unlink(missing_ok=True)

    def _log_tail(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start_bytes)
            lines = log.read().decode(errors="replace").splitlines()
        if not lines:
            return f"{self.log_path} has no line of this start"
        return "\n".join([f"the end of {self.log_path}:", *lines[-TAIL_LINES:]])
