"""Files that are whole or absent, and locks that a dead process cannot keep."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write through a temporary file in the same directory: a reader sees the old text or the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class FileLock:
    """An advisory lock on a file. The kernel releases it with the process, so a kill -9 leaves nothing to clean up."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock unless someone else holds it."""
        return self._acquire(fcntl.LOCK_EX | fcntl.LOCK_NB)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Hold the lock, after waiting for whoever holds it now."""
        self._acquire(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _acquire(self, operation: int) -> bool:
        assert self._descriptor is None, f"lock {self._path} is already held here"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True
