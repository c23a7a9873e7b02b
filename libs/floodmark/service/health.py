"""What a service says of itself: is its loop turning, and can it do its work."""

from collections.abc import Callable

from floodmark.core.ports import Clock

Check = Callable[[], str | None]
"""None when well, otherwise the reason."""
START = "start"
"""The check that fails until the service is there, with all its pages."""


class Health:
    """What the service says of itself. The loop beats; adapters add the checks that readiness needs."""

    def __init__(self, clock: Clock, *, step_age_max_ms: int) -> None:
        self._clock = clock
        self._step_age_max_ms = step_age_max_ms
        self._last_step_ms = clock.monotonic_ms()
        self._checks: dict[str, Check] = {}

    def beat(self) -> None:
        self._last_step_ms = self._clock.monotonic_ms()

    def require(self, name: str, check: Check) -> None:
        self._checks[name] = check

    def starting(self) -> str | None:
        """The reason why the service is not there yet."""
        check = self._checks.get(START)
        return check() if check else None

    def live(self) -> dict[str, str]:
        age_ms = self._clock.monotonic_ms() - self._last_step_ms
        return {"loop": f"has not turned for {age_ms} ms"} if age_ms > self._step_age_max_ms else {}

    def ready(self) -> dict[str, str]:
        reasons = {name: reason for name, check in self._checks.items() if (reason := check())}
        return {**self.live(), **reasons}
