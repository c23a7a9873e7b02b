"""A worker that sends itself a signal the first time an attempt reaches a named step.

Run as `python -m tests.integration.odd_worker SIGKILL "files written"`. Everything else is the real service.
"""

import os
import signal
import sys

import structlog

from floodmark.service.runner import Runtime, Service, main
from floodmark_worker.app import build
from floodmark_worker.config import WorkerSettings

log = structlog.get_logger()


class SelfInflicted:
    def __init__(self, name: str, step: str) -> None:
        self._signal = signal.Signals[name]
        self._step = step
        self._done = False

    def __call__(self, step: str) -> None:
        if step == self._step and not self._done:
            self._done = True
            log.info("signal_sent_to_self", signal=self._signal.name, step=step)
            os.kill(os.getpid(), self._signal)


def build_odd(settings: WorkerSettings, runtime: Runtime) -> Service:
    return build(settings, runtime, SelfInflicted(sys.argv[1], sys.argv[2]))


if __name__ == "__main__":
    main("worker", WorkerSettings, build_odd)
