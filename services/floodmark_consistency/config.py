"""The consistency service's settings."""

from typing import Self

from pydantic import Field, model_validator

from floodmark.service.sections import Section
from floodmark.service.settings import DurationMs, ServiceSettings


class ConsistencySection(Section):
    quiet_ms: DurationMs = Field(default=100, description="mark a view when nothing new came for this long")
    age_max_ms: DurationMs = Field(default=1_000, description="mark a view at the latest this long after a change")
    count_max: int = Field(default=20_000, ge=1, le=1_000_000, description="mark a view at once after so many changes")
    index_refresh_ms: DurationMs = Field(default=1_000, description="how often the list of views is read")
    sweep_every_ms: DurationMs = Field(default=60_000)
    sweep_grace_ms: DurationMs = Field(default=15_000, description="a younger change may still have its event")
    events_in_flight_max: int = Field(default=50_000, ge=1, le=1_000_000)
    threads_max: int = Field(default=8, ge=1, le=64)

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.quiet_ms > self.age_max_ms:
            raise ValueError("quiet_ms must not exceed age_max_ms")
        if self.sweep_grace_ms <= self.age_max_ms:
            raise ValueError(
                "sweep_grace_ms must exceed age_max_ms, or the sweep would repair what is about to be marked"
            )
        return self


class ConsistencySettings(ServiceSettings):
    consistency: ConsistencySection = ConsistencySection()
