"""A program on a terminal of its own: what is typed into it, and what it shows."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

_CONTROL = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[@-_])")
_ROWS, _COLUMNS = 50, 300


class Terminal:
    def __init__(self, command: Sequence[str], **environ: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        # Nobody is there to answer where the cursor is.
        # A COLUMNS that is inherited would count for more than the terminal.
        own = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": str(_COLUMNS), **environ}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, **own}, start_new_session=True
        )
        os.close(slave)
        self._shown = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def paste(self, text: str) -> None:
        """As terminals do it: the program can tell it from typing."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def await_shown(self, text: str, *, within_s: float = 60) -> str:
        """Until this is shown; returns what was shown up to it, which counts no more."""
        deadline_s = time.monotonic() + within_s
        while text not in (shown := _plain(self._shown)):
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"{text!r} was not shown within {within_s} s, but {shown!r}"
            if select.select([self._master], [], [], left_s)[0]:
                self._shown += os.read(self._master, 65_536)
        before, _, after = shown.partition(text)
        self._shown = after.encode()
        return before + text


def _plain(shown: bytes) -> str:
    return _CONTROL.sub("", shown.decode(errors="ignore")).replace("\r\n", "\n").replace("\r", "\n")
