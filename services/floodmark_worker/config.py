"""The worker's settings."""

from typing import Literal

from pydantic import Field

from floodmark.service.sections import Section
from floodmark.service.settings import DurationMs, ServiceSettings, SparkSettings


class WorkerSection(Section):
    tasks_in_flight_max: int = Field(default=2_000, ge=1, le=100_000, description="read and not finished")
    jobs_max: int = Field(default=2, ge=1, le=64, description="Spark jobs at once")
    batch_buckets_max: int = Field(default=256, ge=1, le=1_024, description="buckets built by one job")
    batch_bytes_max: int = Field(default=1 << 30, ge=1 << 20, le=1 << 40, description="input read by one job")
    linger_ms: int = Field(default=25, ge=0, le=10_000, description="wait so long for tasks that fit together")
    hold_ttl_ms: DurationMs = Field(default=60_000, ge=1_000, description="a dead worker's files are kept so long")
    verify: Literal["content", "stamp"] = Field(
        default="content", description="content: the CRC of every input; stamp: size and time, where those are reliable"
    )
    verify_threads_max: int = Field(default=4, ge=1, le=64, description="inputs looked at at once")
    tries_max: int = Field(default=5, ge=1, le=1_000, description="then a bucket is quarantined")
    frozen_tries_max: int = Field(default=100, ge=1, le=100_000, description="the same for one whose input is missing")
    backoff_first_ms: DurationMs = 1_000
    backoff_cap_ms: DurationMs = 300_000


class WorkerSettings(ServiceSettings):
    worker: WorkerSection = WorkerSection()
    spark: SparkSettings = SparkSettings()
