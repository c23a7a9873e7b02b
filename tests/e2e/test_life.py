"""A table's life on the system in containers: as the tour tells it, and with real flights."""

import pytest
from rich.console import Console

from floodmark.cli.tour import Tour
from tests.e2e.stack import Containers
from tests.support.flights import AIRLINE, WITHOUT_AIRLINE, Flights

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


@pytest.mark.scenario("E1")
def test_a_table_lives_its_life_and_every_step_equals_a_fresh_computation(system: Containers) -> None:
    """Load, a late segment, a replaced one, retention, a backfill into the deleted day: exactly the right buckets."""
    done = Tour(system.ledger, system.lake, Console(), seen_as=str(system.lake), rows_per_segment=100).run()
    assert len(done) == 5
    assert all(step.held for step in done), [step.title for step in done if not step.held]


@pytest.mark.scenario("E2")
@pytest.mark.skipif(not AIRLINE.is_dir(), reason=WITHOUT_AIRLINE)
def test_flights_stay_right_through_every_kind_of_change(system: Containers) -> None:
    """As E1: load, append, a late segment, a replaced one, a deleted day, a backfill into it."""
    Flights(system, system.lake).live()


def test_no_container_of_a_service_is_more_than_it_has_to_be(system: Containers) -> None:
    """Another user than root, a read-only file system, no capability, and no token in what it logs."""
    for replica in system.replicas.values():
        if replica.service in ("zookeeper", "kafka"):
            continue
        status = replica.container.exec_run(["cat", "/proc/self/status"]).output.decode()
        facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert facts["Uid"].split() == ["10001"] * 4
        assert {int(facts[kind], 16) for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert facts["NoNewPrivs"] == "1"
        assert replica.container.exec_run(["touch", "/opt/floodmark/x"]).exit_code != 0
        assert system.token.encode() not in replica.container.logs()
