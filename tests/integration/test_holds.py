"""Readers' holds: taken, renewed, lost, counted and cleared away, in memory and on a real ZooKeeper (INV-11)."""

import uuid
from dataclasses import dataclass, replace

import pytest

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.ledger.holds import Hold, HoldKeeper
from floodmark.ledger.store import Node, Store
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.bus_doubles import FrozenClock
from tests.support.eventually import eventually
from tests.support.ledger_kit import Kit, segment, zookeeper_store
from tests.support.memory_store import Faulty, Watched

TTL_MS = 1_000


def take(kit: Kit, reader: str = "broker-1") -> Hold:
    return kit.ledger.holds.take("rides", reader, ttl_ms=TTL_MS)


def test_a_hold_stands_at_the_version_it_was_taken_at_until_it_runs_out(kit: Kit) -> None:
    """Whoever looks at it sees its reader, its version and its end."""
    kit.put(segment("a", 0, 1))
    hold = take(kit)
    now_ms = kit.clock.now_ms()
    assert (hold.registry_version, hold.taken_at_ms, hold.expires_at_ms) == (1, now_ms, now_ms + TTL_MS)
    assert Kit(kit.store, clock=kit.clock).ledger.holds.live("rides") == [hold]
    kit.clock.sleep_ms(TTL_MS - 1)
    assert kit.ledger.holds.live("rides") == [hold]
    kit.clock.sleep_ms(1)
    assert kit.ledger.holds.live("rides") == []


@pytest.mark.stack
def test_a_hold_outlives_the_session_that_took_it(zookeeper: ZooKeeperServer) -> None:
    """A reader that loses its session may still be reading; its hold stands until it runs out."""
    hosts = f"{zookeeper.hosts}/{uuid.uuid4().hex}"
    with zookeeper_store(hosts) as store:
        kit = Kit(store)
        kit.set_up()
        hold = take(kit)
    with zookeeper_store(hosts) as store:
        assert Kit(store).ledger.holds.live("rides") == [hold]


@pytest.mark.parametrize("word", ["ok", "lost", "gone"])
def test_a_hold_is_live_although_its_first_try_took_longer_than_it_lasts(store: Store, word: str) -> None:
    """The expiry is sampled in every try, and what landed too late is written again."""
    faulty = Faulty(store)
    kit = Kit(faulty)
    kit.set_up()

    def delay(_: int) -> None:
        faulty.before_commit = lambda _: None
        kit.clock.sleep_ms(TTL_MS + 1)

    faulty.before_commit, faulty.script = delay, iter([word])
    hold = take(kit)
    assert hold.expires_at_ms == kit.clock.now_ms() + TTL_MS
    assert kit.ledger.holds.live("rides") == [hold]
    assert kit.ledger.holds.all("rides") == [hold], "one hold, however many tries"


def test_a_hold_for_no_time_or_on_no_table_is_refused_by_name(kit: Kit) -> None:
    """Nothing is written."""
    with pytest.raises(InvalidInput, match="hold-ttl: a hold of broker-1 on rides for 0 ms"):
        kit.ledger.holds.take("rides", "broker-1", ttl_ms=0)
    with pytest.raises(InvalidInput, match="unknown-table: there is no table 'no_such'"):
        kit.ledger.holds.take("no_such", "broker-1", ttl_ms=1)


def test_a_renewal_counts_from_now(kit: Kit) -> None:
    """Also when the answer to it is lost; version and start stay."""
    hold = take(kit)
    kit.clock.sleep_ms(TTL_MS - 1)
    renewed = kit.ledger.holds.renew(hold, ttl_ms=TTL_MS)
    assert renewed == replace(hold, expires_at_ms=kit.clock.now_ms() + TTL_MS)
    assert kit.ledger.holds.live("rides") == [renewed]


@pytest.mark.parametrize("word", ["lost", "gone"])
def test_a_renewal_whose_answer_is_lost_is_made_again(store: Store, word: str) -> None:
    """It happened or it did not; afterwards it has."""
    faulty = Faulty(store)
    kit = Kit(faulty)
    kit.set_up()
    hold = take(kit)
    kit.clock.sleep_ms(10)
    faulty.script = iter([word])
    renewed = kit.ledger.holds.renew(hold, ttl_ms=TTL_MS)
    assert renewed is not None
    assert kit.ledger.holds.live("rides") == [renewed]


def test_what_ran_out_or_is_gone_cannot_be_renewed(kit: Kit) -> None:
    """Files may have been deleted in between, so it must not look as if the hold had stood all the time."""
    hold = take(kit)
    kit.clock.sleep_ms(TTL_MS)
    assert kit.ledger.holds.renew(hold, ttl_ms=TTL_MS) is None
    other = take(kit)
    kit.ledger.holds.release(other)
    assert kit.ledger.holds.renew(other, ttl_ms=TTL_MS) is None


def test_the_lowest_hold_is_the_one_that_sees_furthest_back(kit: Kit) -> None:
    """Neither released nor expired ones count; without any there is none."""
    kit.put(segment("a", 0, 1))
    first = take(kit, "first")
    kit.put(segment("b", 0, 1))
    second = take(kit, "second")
    assert kit.ledger.holds.lowest("rides") == first
    kit.ledger.holds.release(first)
    kit.ledger.holds.release(first)
    assert kit.ledger.holds.lowest("rides") == second
    kit.clock.sleep_ms(TTL_MS)
    assert kit.ledger.holds.lowest("rides") is None


def test_only_what_ran_out_is_cleared_away(kit: Kit) -> None:
    """And it is counted."""
    take(kit, "old")
    kit.clock.sleep_ms(TTL_MS)
    young = take(kit, "young")
    assert kit.ledger.holds.remove_expired("rides") == 1
    assert kit.ledger.holds.all("rides") == [young]
    assert kit.ledger.holds.remove_expired("rides") == 0


def test_clearing_away_loses_to_a_renewal_that_came_in_between(store: Store) -> None:
    """The reader's clock is behind the janitor's; its renewal lands between the look and the delete."""
    watched = Watched(store)
    reader, janitor = Kit(store, clock=FrozenClock(0)), Kit(watched, clock=FrozenClock(TTL_MS + 1))
    reader.set_up()
    hold = take(reader)

    def renew(_: int) -> None:
        watched.before_commit = lambda _: None
        reader.clock.sleep_ms(TTL_MS // 2)
        assert reader.ledger.holds.renew(hold, ttl_ms=TTL_MS) is not None

    watched.before_commit = renew
    assert janitor.ledger.holds.remove_expired("rides") == 0
    assert [h.hold_id for h in janitor.ledger.holds.live("rides")] == [hold.hold_id]


# -- the keeper ----------------------------------------------------------------------------------------------------


class Reports:
    def __init__(self) -> None:
        self.lost = 0

    def __call__(self) -> None:
        self.lost += 1


KEEPER_TTL_MS = 60
"""Real time between two renewals is a third of it; what the hold's expiry says goes by the frozen clock."""


def test_a_keeper_renews_while_its_reader_is_busy_and_releases_at_the_end(kit: Kit) -> None:
    """From its own thread; the reader does nothing for it."""
    holds, reports = kit.ledger.holds, Reports()
    hold = holds.take("rides", "worker-1", ttl_ms=KEEPER_TTL_MS)
    with HoldKeeper(holds, hold, ttl_ms=KEEPER_TTL_MS, on_lost=reports) as keeper:
        for _ in range(3):
            kit.clock.ms += KEEPER_TTL_MS // 2
            wanted_ms = kit.clock.ms + KEEPER_TTL_MS
            eventually(lambda: [h for h in holds.live("rides") if h.expires_at_ms == wanted_ms], within_s=10)  # noqa: B023
    assert not keeper.lost
    assert reports.lost == 0
    assert holds.all("rides") == []


def test_a_keeper_reports_a_hold_that_is_gone_once(kit: Kit) -> None:
    """Someone cleared it away: what it protected may be gone too."""
    holds, reports = kit.ledger.holds, Reports()
    hold = holds.take("rides", "worker-1", ttl_ms=KEEPER_TTL_MS)
    with HoldKeeper(holds, hold, ttl_ms=KEEPER_TTL_MS, on_lost=reports) as keeper:
        holds.release(hold)
        eventually(lambda: keeper.lost, within_s=10)
    assert reports.lost == 1


def test_a_keeper_rides_out_a_store_that_is_away_for_less_than_the_hold_lasts(store: Store) -> None:
    """It runs on until it expires; the next try succeeds."""
    faulty = Faulty(store)
    kit, reports = Kit(faulty), Reports()
    kit.set_up()
    hold = kit.ledger.holds.take("rides", "worker-1", ttl_ms=KEEPER_TTL_MS)
    faulty.script = iter(["away", "away"])
    with HoldKeeper(kit.ledger.holds, hold, ttl_ms=KEEPER_TTL_MS, on_lost=reports):
        kit.clock.ms += 1
        eventually(
            lambda: [h for h in kit.ledger.holds.live("rides") if h.expires_at_ms > hold.expires_at_ms], within_s=10
        )
    assert reports.lost == 0


@dataclass
class Leaving(Watched):
    """A store that can go away altogether."""

    away: bool = False
    refused: int = 0

    def read(self, path: str) -> Node | None:
        if self.away:
            self.refused += 1
            raise Unavailable("the store is away")
        return super().read(path)


def test_a_keeper_that_cannot_reach_the_store_until_its_hold_ran_out_reports_it(store: Store) -> None:
    """It need not ask to know: by now anyone may have cleared it away."""
    leaving = Leaving(store)
    kit, reports = Kit(leaving), Reports()
    kit.set_up()
    hold = kit.ledger.holds.take("rides", "worker-1", ttl_ms=KEEPER_TTL_MS)
    leaving.away = True
    with HoldKeeper(kit.ledger.holds, hold, ttl_ms=KEEPER_TTL_MS, on_lost=reports) as keeper:
        kit.clock.ms += KEEPER_TTL_MS - 1
        refused = leaving.refused
        eventually(lambda: leaving.refused > refused + 1, within_s=10, what="another try to renew")
        assert not keeper.lost
        kit.clock.ms += 1
        eventually(lambda: keeper.lost, within_s=10)
    assert reports.lost == 1
