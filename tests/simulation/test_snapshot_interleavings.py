"""Every interleaving of a query's plan with a rebuild, a retention and the janitor: INV-11 holds for what is planned.

The controls put the mistakes back that the order in `Desk._take_turn` is there to prevent.
"""

from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs

from floodmark.query import desk as desk_module
from floodmark.query.desk import Desk, _Table, _Turn
from floodmark.query.plan import Bounded, Freshness, Strict
from floodmark_janitor import collecting, retiring
from tests.simulation.explorer import Actor, Explorer, Nodes, Report
from tests.simulation.snapshot_cases import (
    FROM_TABLE,
    FROM_VIEW,
    NodeLake,
    PlanOracle,
    StillKeeper,
    at_start,
    broker,
    collector,
    retirer,
    worker,
)

LATELY = Bounded(10_000)
TURN_CALLS = 12
"""A turn makes no more store calls than this: a query that is to begin before a later one begins after the turn."""


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> list[NodeLake]:
    """The lake of whoever runs."""
    current: list[NodeLake] = []
    monkeypatch.setattr(desk_module, "HoldKeeper", StillKeeper)
    monkeypatch.setattr(collecting, "attempt_files", lambda _: list(current[0].attempt_files()))
    for janitor in (collecting, retiring):
        monkeypatch.setattr(janitor, "Lake", lambda _: current[0])
    return current


def explored(start: Nodes, *actors: Actor) -> Report:
    with capture_logs() as logs:
        report = Explorer(start, actors, PlanOracle()).explore()
    print(report)  # noqa: T201 - pytest shows it on request, and with every failure
    assert any(line["event"] == "file_deleted" for line in logs), "the janitor never deleted anything"
    return report


def first_turn(lake: list[NodeLake]) -> Report:
    """A broker that has just started, a rebuild, and the janitor after the file that the rebuild replaces."""
    start, _ = at_start(held=False)
    return explored(start, broker(FROM_VIEW, Strict()), worker(), collector(lake, rounds=1))


def next_turn(lake: list[NodeLake], freshness: Freshness, asks_at: int) -> Report:
    """A broker that exchanges its hold, a query in the middle of it, and the janitor after the first segment."""
    start, held = at_start(held=True)
    asker = broker(FROM_TABLE, freshness, held=held, asks_at=asks_at)
    return explored(start, asker, retirer(lake, rounds=2))


@pytest.mark.scenario("Q9")
def test_a_first_hold_protects_the_replaced_files_of_what_is_planned(lake: list[NodeLake]) -> None:
    """INV-11: whatever the watches tell, and however late."""
    report = first_turn(lake)
    assert not report.wrong, report


@pytest.mark.scenario("Q9")
@pytest.mark.parametrize("freshness", [Strict(), LATELY], ids=["strict", "bounded"])
@pytest.mark.parametrize("asks_at", range(0, TURN_CALLS + 1, 2))
def test_an_exchange_of_holds_protects_the_segments_of_what_is_planned(
    lake: list[NodeLake], freshness: Freshness, asks_at: int
) -> None:
    """INV-11: whenever in a turn a query begins, one hold that sees its segments stands until it has ended."""
    report = next_turn(lake, freshness, asks_at)
    assert not report.wrong, report


# -- controls ------------------------------------------------------------------------------------------------------


def must_find(reports: Iterable[Report]) -> None:
    assert any(rule.startswith("INV-11") for report in reports for rule in report.rules), "nothing was found"


def test_control_what_was_read_before_the_hold_was_taken_is_not_protected(
    lake: list[NodeLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries are read, a bucket is built anew, the janitor finds no hold, and only then the hold is taken."""

    def reading_first(desk: Desk, name: str, table: _Table) -> None:
        _read_everything(desk, name, table)
        table.turn = _taken(desk, name)

    monkeypatch.setattr(Desk, "_take_turn", reading_first)
    must_find([first_turn(lake)])


def test_control_the_old_hold_let_go_before_everything_was_read_again(
    lake: list[NodeLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that accepts the registry of a moment ago begins under a hold that does not see it."""

    def letting_go_first(desk: Desk, name: str, table: _Table) -> None:
        before, table.turn = table.turn, _taken(desk, name)
        if before is not None:
            desk._end(before)
        _read_everything(desk, name, table)

    monkeypatch.setattr(Desk, "_take_turn", letting_go_first)
    must_find(next_turn(lake, LATELY, asks_at) for asks_at in range(TURN_CALLS + 1))


def _taken(desk: Desk, name: str) -> _Turn:
    hold = desk._holds.take(name, desk._reader, ttl_ms=desk._hold_ms)
    keeper = StillKeeper(desk._holds, hold, ttl_ms=desk._hold_ms, on_lost=lambda: None)
    return _Turn(keeper, desk._holds, desk._clock.monotonic_ms())


def _read_everything(desk: Desk, name: str, table: _Table) -> None:
    desk._prove(name, table)
    desk._pictures.attend(desk._definition(name, table))
