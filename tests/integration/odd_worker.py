"""A worker that sends itself, or its Spark, a signal the first time an attempt reaches a named step.

Run as `python -m tests.integration.odd_worker SIGKILL "files written"`; with a third argument, `spark`, the signal goes
to the JVM that it started. Everything else is the real service.
"""

import os
import signal
import sys

import psutil
import structlog

from floodmark.service.runner import Runtime, Service, main
from floodmark_worker.app import build
from floodmark_worker.config import WorkerSettings

log = structlog.get_logger()


class SelfInflicted:
    def __init__(self, name: str, step: str, target: str = "itself") -> None:
        self._signal = signal.Signals[name]
        self._step = step
        self._target = target
        self._done = False

    def __call__(self, step: str) -> None:
        if step == self._step and not self._done:
            self._done = True
            log.info("signal_sent_to_self", signal=self._signal.name, step=step)
            os.kill(self._pid(), self._signal)

    def _pid(self) -> int:
        return java_of(os.getpid()).pid if self._target == "spark" else os.getpid()


def java_of(pid: int) -> psutil.Process:
    """The JVM that a process of ours has started."""
    (java,) = (child for child in psutil.Process(pid).children() if child.name() == "java")
    return java


def build_odd(settings: WorkerSettings, runtime: Runtime) -> Service:
    return build(settings, runtime, SelfInflicted(*sys.argv[1:]))


if __name__ == "__main__":
    main("worker", WorkerSettings, build_odd)
