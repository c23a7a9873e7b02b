"""The broker's settings."""

from typing import Self

from pydantic import Field, model_validator

from floodmark.service.access import Token, check_reach
from floodmark.service.sections import Section
from floodmark.service.settings import DurationMs, ServiceSettings, SparkSettings


class BrokerSection(Section):
    concurrency_max: int = Field(default=4, ge=1, le=64, description="queries at once")
    waiting_max: int = Field(default=64, ge=0, le=10_000, description="queries that wait for their turn")
    rows_max: int = Field(default=100_000, ge=1, le=10_000_000, description="rows of one answer")
    time_max_ms: DurationMs = Field(default=300_000, description="how long a query may take, waiting included")
    hold_ttl_ms: DurationMs = Field(default=60_000, ge=1_000, description="a dead broker's files are kept so long")
    views_location: str = Field(default="", description="where views go that are created without a LOCATION")
    read_tokens: tuple[Token, ...] = Field(default=(), description="bearer tokens that may ask")
    admin_tokens: tuple[Token, ...] = Field(default=(), description="bearer tokens that may define and drop as well")


class BrokerSettings(ServiceSettings):
    broker: BrokerSection = BrokerSection()
    spark: SparkSettings = SparkSettings()

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked for a token."""
        return not self.broker.read_tokens and not self.broker.admin_tokens

    @model_validator(mode="after")
    def _others_need_tokens(self) -> Self:
        named = "broker.admin_tokens or broker.read_tokens"
        check_reach(self.http.host, has_tokens=not self.is_open, settings=named)
        return self
