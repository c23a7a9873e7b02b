"""Real flights through the whole system: one segment a day, a daily and an hourly view, nulls, skew and all."""

import pytest

from tests.support.flights import AIRLINE, WITHOUT_AIRLINE, Flights
from tests.support.system import System

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(1_200),
    pytest.mark.skipif(not AIRLINE.is_dir(), reason=WITHOUT_AIRLINE),
]


@pytest.mark.scenario("E2")
def test_flights_stay_right_through_every_kind_of_change(system: System) -> None:
    """As E1: load, append, a late segment, a replaced one, a deleted day, a backfill into it."""
    Flights(system, system.lake).live()
