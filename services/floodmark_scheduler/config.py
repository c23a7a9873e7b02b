"""The scheduler's settings."""

from pydantic import Field

from floodmark.service.sections import Section
from floodmark.service.settings import DurationMs, ServiceSettings


class SchedulerSection(Section):
    cycle_every_ms: DurationMs = Field(default=1_000, description="look at everything at least this often")
    append_buffer_ms: int = Field(default=0, ge=0, le=30 * 24 * 3_600_000, description="leave the newest data alone")
    live_buckets: int = Field(default=4, ge=1, le=10_000, description="so many buckets at the end of the data are live")
    live_quota: int = Field(default=64, ge=1, le=100_000, description="tasks out at once in the live lane")
    repair_quota: int = Field(default=128, ge=1, le=100_000)
    backfill_quota: int = Field(default=512, ge=1, le=100_000)
    deaths_max: int = Field(
        default=10, ge=1, le=1_000, description="workers that die of a task before it is quarantined"
    )
    unclaimed_max_ms: DurationMs = Field(default=60_000, description="give a task out again when nobody took it")
    stalled_after_ms: DurationMs = Field(default=60_000, description="input moves and the watermark does not")


class SchedulerSettings(ServiceSettings):
    scheduler: SchedulerSection = SchedulerSection()
