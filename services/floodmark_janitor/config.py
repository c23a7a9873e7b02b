"""The janitor's settings."""

from pydantic import Field

from floodmark.core.garbage import Terms
from floodmark.service.sections import Section
from floodmark.service.settings import DurationMs, ServiceSettings

GRACE_MAX_MS = 30 * 86_400_000
DEFAULT = Terms()


class JanitorSection(Section):
    every_ms: DurationMs = Field(default=60_000, description="how often every location is looked at")
    grace_ms: int = Field(
        default=DEFAULT.grace_ms, ge=1, le=GRACE_MAX_MS, description="a file of a view is kept at least this long"
    )
    skew_ms: int = Field(default=DEFAULT.skew_ms, ge=0, le=3_600_000, description="how far clocks may be apart")
    retire_batch_max: int = Field(default=500, ge=1, le=10_000, description="segments removed in one write")


class JanitorSettings(ServiceSettings):
    janitor: JanitorSection = JanitorSection()
