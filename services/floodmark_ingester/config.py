"""The ingester's settings."""

from typing import Self

from pydantic import Field, model_validator

from floodmark.service.access import Token, check_reach
from floodmark.service.sections import Section
from floodmark.service.settings import DurationMs, ServiceSettings


class IngesterSection(Section):
    announcements_in_flight_max: int = Field(default=2_000, ge=1, le=100_000)
    batch_max: int = Field(default=500, ge=1, le=10_000, description="announcements registered together")
    threads_max: int = Field(default=4, ge=1, le=64, description="files read at once")
    scan_every_ms: DurationMs = Field(
        default=500, description="how often locations are listed; files in local directories are heard of as they come"
    )
    settle_ms: DurationMs = Field(default=10_000, description="an unfinished file that stands still is refused then")
    outbox_every_ms: DurationMs = Field(default=5_000, description="how often leftover events are looked for")
    admin_tokens: tuple[Token, ...] = Field(default=(), description="bearer tokens that may announce files by HTTP")


class IngesterSettings(ServiceSettings):
    ingester: IngesterSection = IngesterSection()

    @model_validator(mode="after")
    def _others_need_tokens(self) -> Self:
        check_reach(self.http.host, has_tokens=bool(self.ingester.admin_tokens), settings="ingester.admin_tokens")
        return self
