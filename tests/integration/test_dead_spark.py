"""Spark's JVM is killed with -9 while it works: the process ends with its code, and nothing is blamed for it (K11)."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.client import QueryFailed
from floodmark.core.dispatch import Progress
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.integration.odd_worker import java_of
from tests.integration.test_worker import Floor
from tests.support.broker import BrokerUnderTest, Rides, start_broker
from tests.support.eventually import eventually
from tests.support.system import SMALL_SPARK, START_WITHIN_S, System, system_on

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1_200), pytest.mark.scenario("K11")]

ENGINE_LOST = 71
SLOW = "SELECT sum(length(sha2(repeat(coalesce(city, 'x'), 400000), 512))) AS n FROM {t}"


@pytest.fixture(scope="module")
def lonely(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> Iterator[System]:
    """Every service but workers: each test starts its own."""
    with system_on(tmp_path_factory.mktemp("lonely"), zookeeper, kafka) as made:
        made.start_all()
        yield made


@pytest.mark.parametrize("step", ["reading", "files written"])
def test_a_worker_whose_spark_is_killed_ends_and_its_tasks_are_done_by_the_next(lonely: System, step: str) -> None:
    """No bucket has failed, none is quarantined, and no try was counted: it was not the tasks' fault."""
    doomed = lonely.start_odd_worker("SIGKILL", step, "spark", FLOODMARK_WORKER__BATCH_BUCKETS_MAX="4")
    lonely.await_in_group(doomed)
    floor = Floor(lonely, paused=True)
    floor.put("all", 0, 12, rows=120)
    floor.resume()
    doomed.await_event("signal_sent_to_self", within_s=120)
    assert doomed.exit_code(within_s=60) == ENGINE_LOST, doomed.log_path.read_text()[-5_000:]
    records = lonely.ledger.dispatch.records(floor.view).values()
    assert not [r for r in records if r.progress in (Progress.FAILED, Progress.QUARANTINED)]
    (successor,) = lonely.start_workers(1)
    floor.await_built(12)
    floor.await_right(12)
    assert {t.dispatch_try for t in lonely.tasks() if t.view == floor.view} == {1}
    assert {r.outcome for r in lonely.results(floor.view)} <= {"committed", "covered"}
    successor.terminate()
    assert successor.exit_code() == 0


@pytest.fixture
def rides(lonely: System, tmp_path: Path) -> Rides:
    broker = start_broker(lonely, FLOODMARK_BROKER__VIEWS_LOCATION=str(tmp_path / "views"))
    made = Rides(broker)
    for n in range(100):
        made.write(f"f{n}", 0, 1, rows=50)
    made.await_registered()
    return made


def _asked(broker: BrokerUnderTest, text: str, told: list[QueryFailed]) -> None:
    try:
        broker.sql(text)
    except QueryFailed as error:
        told.append(error)


def test_a_broker_whose_spark_is_killed_says_unavailable_and_ends(rides: Rides) -> None:
    broker = rides.broker
    told: list[QueryFailed] = []
    asking = threading.Thread(target=_asked, args=(broker, SLOW.format(t=rides.name), told))
    asking.start()
    process = broker.process.process
    java = java_of(process.pid)
    before_s = java.cpu_times().user
    eventually(lambda: java.cpu_times().user > before_s + 2, within_s=60, what="the query at work in Spark")
    java.kill()
    asking.join(timeout=60)
    assert [(e.status, e.rule) for e in told] == [(503, "unavailable")], told
    assert broker.process.exit_code(within_s=60) == ENGINE_LOST, broker.process.log_path.read_text()[-5_000:]
    again = start_broker(rides.broker.system)
    assert again.rows(f"SELECT count(*) AS n FROM {rides.name}") == [(6_000,)]
    again.process.terminate()
    assert again.process.exit_code() == 0


@pytest.mark.parametrize("name", ["worker", "broker"])
def test_a_service_whose_spark_was_killed_is_not_ready_and_says_why(lonely: System, name: str) -> None:
    """Asked over HTTP while it stops. It lingers then, as the process would otherwise end before anyone can ask."""
    command, patient = ("tests.integration.lingering_service", name), {"FLOODMARK_RUNTIME__GRACE_MS": "60000"}
    running = lonely.start_command(f"lingering-{name}", command, **SMALL_SPARK, **patient)
    running.await_event("service_started", within_s=START_WITHIN_S)
    eventually(lambda: running.ask("/readyz")[0] == 200, what=f"a {name} that is ready")
    java_of(running.process.pid).kill()
    running.await_event("service_stopping")
    status, text = running.ask("/readyz")
    told = json.loads(text)["reasons"].get("spark", "")
    # It ended, or it does not answer: whichever is noticed first.
    assert (status, told.startswith("its JVM ")) == (503, True), text
    running.process.send_signal(signal.SIGUSR1)
    assert running.exit_code(within_s=60) == ENGINE_LOST, running.log_path.read_text()[-5_000:]
