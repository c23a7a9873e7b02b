"""A broker on the shared system: asked through the Python client, checked by DuckDB over the registered base files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pytest

import floodmark
from floodmark.client import Answer, Connection
from tests.support.service_process import ServiceUnderTest
from tests.support.system import SMALL_SPARK, START_WITHIN_S, System

Row = tuple[Any, ...]


@dataclass
class BrokerUnderTest:
    system: System
    process: ServiceUnderTest
    connection: Connection

    @property
    def url(self) -> str:
        return url_of(self.process)

    def sql(self, text: str, **limits: Any) -> Answer:
        return self.connection.sql(text, **limits)

    def rows(self, text: str, **limits: Any) -> list[Row]:
        return comparable(self.sql(text, **limits).rows())

    def duck(self, text: str, table: str) -> list[Row]:
        """What DuckDB answers over the files that are registered now, and nothing else."""
        definition = self.system.ledger.registry.definition(table)
        segments = self.system.ledger.registry.snapshot(table).by_name.values()
        paths = [f"{definition.location}/{s.path}" for s in segments]
        return duck_rows(text, {table: paths})


def url_of(process: ServiceUnderTest) -> str:
    return f"http://127.0.0.1:{process.await_event('http_port_opened')['port']}"


def duck_rows(text: str, tables: dict[str, Sequence[str]]) -> list[Row]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, paths in tables.items():
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({list(paths)!r})")
        return comparable(connection.execute(text).fetchall())


def comparable(rows: Sequence[Row]) -> list[Row]:
    """In any order, floats to nine digits: sums of doubles depend on the order they are added in."""
    return sorted((tuple(_value(v) for v in row) for row in rows), key=repr)


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return value


def start_broker(system: System, **environ: str) -> BrokerUnderTest:
    process = system.start("broker", **{**SMALL_SPARK, **environ})
    process.await_event("service_started", within_s=START_WITHIN_S)
    return BrokerUnderTest(system, process, floodmark.connect(url_of(process)))


@pytest.fixture(scope="session")
def broker(system: System) -> BrokerUnderTest:
    """One broker for all tests that ask; each has tables and views of its own."""
    views = str(system.lake / "broker_views")
    return start_broker(system, FLOODMARK_BROKER__VIEWS_LOCATION=views)
