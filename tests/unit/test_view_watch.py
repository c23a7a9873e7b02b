"""How a view that does not follow its input is reported, and which bucket is to blame."""

from unittest.mock import create_autospec

import pytest
from structlog.testing import capture_logs

from floodmark.bus.pump import Pump
from floodmark.ledger import paths
from floodmark.ledger.leadership import Leadership
from floodmark.ledger.store import Committed, Set
from floodmark_scheduler.app import Leading
from tests.support.ledger_kit import HOUR_MS, VIEW, segment
from tests.support.scheduler_office import Office


@pytest.fixture
def office() -> Office:
    return Office()


def test_a_frozen_bucket_below_the_watermark_is_reported_too(office: Office) -> None:
    """It pins no watermark, and yet the view cannot follow its input there (INV-9). Trying again does not hide it."""
    office.built(0, 1)
    office.kit.put(segment("s0", 0, 1, crc=9))
    office.mark(0)
    office.cycle()
    office.fail(0, frozen=True)
    office.cycle()
    assert office.pinned() == {"frozen"}
    office.clock.sleep_ms(1_000)
    assert office.cycle() == [(0, "OVERWRITE")]
    office.cycle()
    assert office.pinned() == {"frozen"}
    office.kit.refresh(0)
    office.cycle()
    office.cycle()
    assert office.pinned() == set()


def test_a_view_that_moves_however_slowly_is_not_stalled(office: Office) -> None:
    """The time counts from the last move of the watermark."""
    office.kit.set_up()
    office.kit.put(segment("a", 0, 10))
    office.cycle()
    for hour in range(9):
        office.clock.sleep_ms(40_000)
        office.kit.append(hour)
        office.cycle()
        assert office.pinned() == set()
    office.clock.sleep_ms(60_000)
    office.cycle()
    assert office.pinned() == {"stalled"}
    office.kit.append(9)
    office.cycle()
    assert office.pinned() == set()


def test_a_stale_bucket_that_nobody_builds_is_reported_though_the_watermark_is_at_its_end(office: Office) -> None:
    """However often it is offered, and whichever bucket it is (E4)."""
    office.built(0, 1)
    office.kit.put(segment("s0", 0, 1, crc=9))
    office.mark(0)
    assert office.cycle() == [(0, "OVERWRITE")]
    office.clock.sleep_ms(60_000)
    with capture_logs() as said:
        assert office.cycle() == [(0, "OVERWRITE")]
    assert office.pinned() == {"stalled"}
    (told,) = [line for line in said if line["event"] == "view_stalled"]
    assert (told["bucket_ms"], told["waited_ms"], told["progress"], told["worker"]) == (0, 60_000, "offered", "")
    office.kit.refresh(0)
    with capture_logs() as said:
        office.cycle()
    assert office.pinned() == set()
    assert [line["was"] for line in said if line["event"] == "view_moved_on"] == ["stalled"]


def test_a_backlog_that_is_worked_off_is_not_stalled(office: Office) -> None:
    """The time counts for the bucket that is owed longest; when it is built, for the next."""
    office.built(*range(4))
    for hour in range(4):
        office.kit.put(segment(f"s{hour}", hour, hour + 1, crc=9))
    office.mark(*range(4))
    office.cycle()
    for hour in range(4):
        assert office.measured("stale_buckets") == 4 - hour
        office.clock.sleep_ms(40_000)
        office.kit.refresh(hour)
        office.cycle()
        assert office.pinned() == set()


def test_a_bucket_that_is_marked_again_after_it_was_built_waits_anew(office: Office) -> None:
    """A live bucket that changes every minute is not a stalled one."""
    office.built(0)
    for turn in range(3):
        office.kit.put(segment("s0", 0, 1, crc=10 + turn))
        office.mark(0)
        office.cycle()
        office.clock.sleep_ms(40_000)
        office.cycle()
        assert office.pinned() == set()
        office.kit.refresh(0, attempt=f"of turn {turn}")


def test_a_quarantined_bucket_is_reported_until_somebody_releases_it(office: Office) -> None:
    """Nothing happens to it by itself, so somebody has to hear of it. It is not called stalled as well."""
    office.built(0, 1)
    office.kit.put(segment("s0", 0, 1, crc=9))
    office.mark(0)
    office.cycle()
    office.fail(0)
    office.clock.sleep_ms(1_000)
    office.cycle()
    assert office.pinned() == set(), "it failed once and is tried again"
    office.fail(0)
    with capture_logs() as said:
        office.cycle()
    (told,) = [line for line in said if line["event"] == "view_quarantined"]
    assert (told["bucket_ms"], told["tries"], told["error"]) == (0, 2, "boom")
    office.clock.sleep_ms(61_000)
    office.cycle()
    assert office.pinned() == {"quarantined"}
    assert office.kit.ledger.dispatch.release(office.kit.header, 0)
    assert office.cycle() == [(0, "OVERWRITE")]
    assert office.pinned() == set()


def test_a_frozen_bucket_does_not_hide_that_new_data_is_not_built(office: Office) -> None:
    """One that misses a file may stay that way for months; the live end has an alarm of its own."""
    office.built(0, 1)
    office.kit.put(segment("s0", 0, 1, crc=9), segment("s2", 2, 3))
    office.mark(0)
    office.cycle()
    office.fail(0, frozen=True)
    office.cycle()
    assert office.pinned() == {"frozen"}
    office.clock.sleep_ms(61_000)
    office.cycle()
    assert office.pinned() == {"frozen", "stalled"}
    office.kit.append(2)
    office.cycle()
    assert office.pinned() == {"frozen"}


def test_the_bucket_at_the_watermark_is_blamed_before_an_older_one(office: Office) -> None:
    """More waits behind it. Frozen is all it is: who puts the file back need not look for another reason."""
    office.built(0, 1)
    office.kit.put(segment("s0", 0, 1, crc=9), segment("s2", 2, 3))
    office.mark(0)
    office.cycle()
    office.fail(0, frozen=True)
    office.fail(2, frozen=True)
    with capture_logs() as said:
        office.cycle()
        office.clock.sleep_ms(61_000)
        office.cycle()
    assert [(line["event"], line["bucket_ms"]) for line in said if "waited_ms" in line] == [
        ("view_frozen", 2 * HOUR_MS)
    ]
    assert office.pinned() == {"frozen"}


def test_the_metrics_page_tells_how_far_a_view_is_behind(office: Office) -> None:
    """Data that could be built and is not, how many buckets are STALE, and since when."""
    office.built(0, 1)
    office.kit.put(segment("s0", 0, 1, crc=9), segment("late", 2, 5))
    office.mark(0)
    office.clock.sleep_ms(7_000)
    office.cycle()
    assert office.measured("behind_seconds") == 3 * 3600
    assert office.measured("stale_buckets") == 1
    assert office.measured("stale_seconds") == 7
    office.kit.refresh(0)
    office.kit.append(2)
    office.cycle()
    assert office.measured("behind_seconds") == 2 * 3600
    assert (office.measured("stale_buckets"), office.measured("stale_seconds")) == (0, 0)
    office.kit.ledger.views.drop(VIEW.name)
    office.cycle()
    for gone in ("behind_seconds", "stale_buckets", "stale_seconds"):
        assert office.measured(gone) is None, "an alert on something that is no more would never end"


def test_a_scheduler_that_no_longer_leads_says_nothing_of_views(office: Office) -> None:
    """It does not look at them any more: an alert that it raised would not end before its process does."""
    leader = f"{paths.LEADERS}/scheduler"
    leadership = Leadership(office.store, "scheduler", office.instance)
    pump = create_autospec(Pump, instance=True)
    leading = Leading(office.scheduler, pump, leadership, office.clock, cycle_every_ms=1_000)
    office.kit.set_up()
    office.kit.put(segment("a", 0, 1))
    leading.step()
    office.clock.sleep_ms(61_000)
    leading.step()
    assert office.pinned() == {"stalled"}
    assert isinstance(office.store.commit([Set(leader, b"another", version=0)]), Committed)
    office.clock.sleep_ms(1_000)
    leading.step()
    assert office.measured("pinned", condition="stalled") is None
    assert office.measured("behind_seconds") is None
