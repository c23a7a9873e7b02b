"""Hears of files in local directories as they come, so that the next scan need not be waited for.

What is heard is only a reason to scan at once. A directory that cannot be watched, and every object store, is scanned
by the clock alone.
"""

import threading
from collections.abc import Callable, Set

import structlog
from watchfiles import watch

log = structlog.get_logger()

STEP_MS, BURST_MS_MAX = 10, 100
"""Files that come within a step of each other are heard of together, but none later than this."""


class Watching:
    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        self._directories: Set[str] = frozenset()
        self._ended = threading.Event()

    def follow(self, directories: Set[str]) -> None:
        """Watch these from now on, and no others."""
        if directories == self._directories:
            return
        self.close()
        self._directories, self._ended = directories, threading.Event()
        threading.Thread(target=self._run, args=(directories, self._ended), name="watch", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _run(self, directories: Set[str], ended: threading.Event) -> None:
        if not directories:
            return
        try:
            for _ in watch(
                *directories,
                watch_filter=None,
                debounce=BURST_MS_MAX,
                step=STEP_MS,
                stop_event=ended,
                raise_interrupt=False,
                ignore_permission_denied=True,
            ):
                self._on_news()
        except Exception as error:
            # Whatever it is (too many watches, a directory that is gone): the clock still scans.
            log.warning("directories_not_watched", directories=sorted(directories), error=str(error))
