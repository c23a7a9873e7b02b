"""A worker or a broker that lingers when it stops, until SIGUSR1 lets it go, so that a test can ask what it says then.

Run as `python -m tests.integration.lingering_service worker`, or `broker`. Everything else is the real service.
"""

import signal
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

import floodmark_broker.app
import floodmark_worker.app
from floodmark.core.ports import Clock
from floodmark.service.runner import Runtime, Service, main
from floodmark.service.stop import StopToken
from floodmark_broker.config import BrokerSettings
from floodmark_worker.config import WorkerSettings


@dataclass(frozen=True)
class Lingering:
    """A service whose drain takes as long as it may, or until it is let go."""

    service: Service
    clock: Clock
    let_go: StopToken

    def step(self) -> int:
        return self.service.step()

    def drain(self, *, deadline_ms: int) -> int:
        abandoned = self.service.drain(deadline_ms=deadline_ms)
        self.let_go.wait_ms(max(0, deadline_ms - self.clock.monotonic_ms()))
        return abandoned


SERVICES: dict[str, tuple[Any, Any]] = {
    "worker": (WorkerSettings, floodmark_worker.app),
    "broker": (BrokerSettings, floodmark_broker.app),
}


def run(name: str) -> NoReturn:
    settings_type, app = SERVICES[name]

    def build(settings: Any, runtime: Runtime) -> Service:
        let_go = StopToken()
        signal.signal(signal.SIGUSR1, lambda *_: let_go.request("SIGUSR1"))
        return Lingering(app.build(settings, runtime), runtime.clock, let_go)

    main(name, settings_type, build)


if __name__ == "__main__":
    run(sys.argv[1])
