"""Announcements that have to wait come again in any order. What is said last of a file counts all the same."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from floodmark.bus.delivery import Assignment
from floodmark.bus.ports import Partition, Record
from floodmark.contracts.envelope import originate
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark_ingester.announcements import Announcements
from floodmark_ingester.registrar import Request, Trouble
from tests.support.worker_kit import NotedDelivery

AWAY = Unavailable("the store is away")


@dataclass
class Office:
    """A registrar that does what it is asked, or has the trouble the test gives it."""

    troubles: dict[str, Trouble] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    said: int = 0
    assignments: dict[int, Assignment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        registrar: Any = self
        self.announcements = Announcements(registrar)

    def register(self, requests: Sequence[Request]) -> list[Trouble | None]:
        named = [f"{request.action} {request.path or request.name}" for request in requests]
        self.done += [name for name in named if name not in self.troubles]
        return [self.troubles.get(name) for name in named]

    def say(self, action: str, partition: int = 0, **what: str) -> NotedDelivery:
        message = SegmentAnnounced.model_validate({"table": "rides", "action": action, **what})
        self.said += 1
        record = Record(Partition("announcements.v1", partition), self.said, None, b"")
        envelope = originate(message, event_id=f"e{self.said}", source="test", time_ms=None)
        assignment = self.assignments.setdefault(partition, Assignment(record.partition))
        return NotedDelivery(record, envelope, assignment, None)  # type: ignore[arg-type]

    def hear(self, *deliveries: NotedDelivery) -> list[object]:
        self.announcements.handle(deliveries)
        return [delivery.outcome for delivery in deliveries]


@pytest.fixture
def office() -> Office:
    return Office()


def test_an_older_announcement_that_comes_again_after_a_newer_one_has_nothing_left_to_say(office: Office) -> None:
    """Otherwise the file would be forgotten though it is there, and nobody would ever say so."""
    delete, add = office.say("delete", path="a.parquet"), office.say("add", path="a.parquet")
    office.troubles = {"delete a.parquet": AWAY, "add a.parquet": AWAY}
    assert office.hear(delete, add) == [AWAY, AWAY]
    office.troubles = {}
    assert office.hear(add) == ["finished"]
    assert office.hear(delete) == ["finished"]
    assert office.done == ["add a.parquet"]


def test_one_that_is_overtaken_inside_its_batch_is_so_when_it_comes_again(office: Office) -> None:
    delete, add = office.say("delete", path="a.parquet"), office.say("add", path="a.parquet")
    office.troubles = {"delete a.parquet": AWAY}
    assert office.hear(delete, add) == [AWAY, "finished"]
    office.troubles = {}
    assert office.hear(delete) == ["finished"]
    assert office.done == ["add a.parquet"]


def test_what_comes_again_together_is_done_in_the_order_it_was_said(office: Office) -> None:
    delete, add = office.say("delete", path="a.parquet"), office.say("add", path="a.parquet")
    assert office.hear(add, delete) == ["finished", "finished"]
    assert office.done == ["delete a.parquet", "add a.parquet"]


@pytest.mark.parametrize(
    "later",
    [
        {"path": "b.parquet"},
        {"path": "a.parquet", "partition": 1},
        {"path": "c.parquet", "name": "b.parquet"},
    ],
    ids=["another file", "another partition", "another name"],
)
def test_only_what_is_said_later_of_the_same_file_overtakes(office: Office, later: dict[str, Any]) -> None:
    delete, add = office.say("delete", path="a.parquet"), office.say("add", **later)
    office.troubles = {"delete a.parquet": AWAY}
    office.hear(delete, add)
    office.troubles = {}
    assert office.hear(delete) == ["finished"]
    assert office.done[-1] == "delete a.parquet"


def test_a_name_is_a_file_too(office: Office) -> None:
    add, delete = office.say("add", path="a.parquet", name="a"), office.say("delete", name="a")
    office.troubles = {"add a.parquet": AWAY}
    office.hear(add, delete)
    office.troubles = {}
    office.hear(add)
    assert office.done == ["delete a"]


def test_what_was_refused_overtakes_nothing(office: Office) -> None:
    delete, add = office.say("delete", path="a.parquet"), office.say("add", path="a.parquet")
    office.troubles = {"delete a.parquet": AWAY, "add a.parquet": InvalidInput("parquet", "not a Parquet file")}
    office.hear(delete, add)
    office.troubles = {}
    office.hear(delete)
    assert office.done == ["delete a.parquet"]


def test_an_older_one_overtakes_nothing(office: Office) -> None:
    delete, add = office.say("delete", path="a.parquet"), office.say("add", path="a.parquet")
    office.troubles = {"add a.parquet": AWAY}
    office.hear(delete, add)
    office.troubles = {}
    office.hear(add)
    assert office.done == ["delete a.parquet", "add a.parquet"]


def test_what_was_revoked_is_not_remembered(office: Office) -> None:
    """It is read again by whoever has the partition then."""
    office.troubles = {"delete a.parquet": AWAY}
    office.hear(office.say("delete", path="a.parquet"), office.say("add", path="a.parquet"))
    office.assignments.pop(0).held = False
    office.hear(office.say("add", path="b.parquet"))
    assert not office.announcements._postponed
    assert not office.announcements._overtaken
