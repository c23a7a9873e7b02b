"""No announcement ends its consumer: whatever a path says, each record gets an outcome, and so do those beside it."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from floodmark.bus.delivery import Assignment
from floodmark.bus.ports import Partition, Record
from floodmark.contracts import envelope
from floodmark.core.errors import InvalidInput
from floodmark.core.tables import TableDefinition
from floodmark_ingester.announcements import Announcements
from floodmark_ingester.registrar import Registrar
from tests.support.ledger_kit import Kit
from tests.support.memory_store import MemoryStore
from tests.support.pipeline import write_parquet
from tests.support.worker_kit import NotedDelivery

GOOD = "good.parquet"
PIECES = st.sampled_from(
    (
        *"/:%?#@[]\\~. \0\n\x7f",
        "//",
        "..",
        "%2e%2e",
        "%2F",
        "%00",
        "%ff",
        "%",
        "a",
        "_h",
        "é",
        "\u2100",
        "\u202e",
        "🂡",
        "file:",
        "s3:",
        "http:",
        "://",
        "::1",
        "u:p@",
        ":99999999",
        "LOCATION",
        "x" * 300,
        "é" * 600,
        GOOD,
        ".parquet",
    )
)
PATHS = st.one_of(st.lists(PIECES, min_size=1, max_size=12).map("".join), st.text(min_size=1, max_size=40))


class Ingester:
    """The ingester's handler with all that is behind it, on a directory with one file."""

    def __init__(self, location: Path) -> None:
        self.location = location
        write_parquet(location / GOOD, 1, 2)
        (location / "a").mkdir()
        (location / "link").symlink_to(location)
        self.ledger = Kit(MemoryStore()).ledger
        self.ledger.registry.create_table(TableDefinition("rides", str(location), "event_time"))
        self.announcements = Announcements(Registrar(self.ledger, ThreadPoolExecutor(1), lambda _: None))
        self.offset = 0

    def heard(self, fields: dict[str, Any]) -> NotedDelivery | None:
        """None when the contract refuses it already."""
        document = {"kind": "segment-announced.v1", "table": "rides", **fields}
        self.offset += 1
        record = Record(Partition("announcements.v1", 0), self.offset, None, json.dumps(document).encode())
        try:
            message = envelope.decode("announcements.v1", record.value, [], fallback_id=str(self.offset))
        except InvalidInput:
            return None
        return NotedDelivery(record, message, Assignment(record.partition), None)  # type: ignore[arg-type]

    def handle(self, *announced: dict[str, Any]) -> list[object]:
        deliveries = [delivery for fields in announced if (delivery := self.heard(fields)) is not None]
        self.announcements.handle(deliveries)
        return [delivery.outcome for delivery in deliveries]


@pytest.fixture(scope="module")
def ingester() -> Iterator[Ingester]:
    location = Path(tempfile.mkdtemp())
    yield Ingester(location)
    shutil.rmtree(location)


@settings(deadline=None, max_examples=400)
@given(PATHS, st.sampled_from(["add", "replace", "delete"]), st.none() | PATHS)
@example("http://[::1/a.parquet", "add", None)
@example("http://a\u2100b/x.parquet", "delete", None)
@example("part:1.parquet", "add", None)
@example("day:1/a.parquet", "add", None)
@example("file://LOCATION/%00", "add", None)
@example("file://LOCATION/a%2F..%2F..", "delete", None)
@example("\ud800", "add", "\ud800")
@example("é" * 2_000, "add", None)
def test_no_path_ends_the_ingester(ingester: Ingester, path: str, action: str, name: str | None) -> None:
    path = path.replace("LOCATION", str(ingester.location))
    odd = {"action": action, "path": path, **({"name": name} if name else {})}
    outcomes = ingester.handle(odd, {"action": "add", "path": GOOD})
    assert outcomes[-1] == "finished"
    assert all(outcome == "finished" or isinstance(outcome, InvalidInput) for outcome in outcomes)
    ingester.handle({"action": "delete", "path": GOOD})
    if name:
        ingester.handle({"action": "delete", "name": name})
