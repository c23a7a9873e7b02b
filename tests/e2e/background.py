"""Threads that run beside a block of code, and whose failures are that block's failure."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(*runs: Callable[[threading.Event], None]) -> Iterator[threading.Event]:
    """Run these until the block ends. They are given the event that tells them to; one that fails tells the others."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def guarded(run: Callable[[threading.Event], None]) -> None:
        try:
            run(stop)
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=guarded, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
