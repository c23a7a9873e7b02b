"""How a service stops, and what a lost ZooKeeper does to it: no offset is committed that has not been earned."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from floodmark.bus.kafka import KafkaConnection, ensure_topics
from floodmark.catalog.definitions import TableRequest, create_table
from floodmark.contracts.topics import ANNOUNCEMENTS
from floodmark.core.ports import SystemClock
from floodmark.ledger.ledger import ledger_on
from floodmark.local.events import Event, Kind
from floodmark.local.kafka import KafkaServer
from floodmark.local.ports import pick_free_port
from floodmark.local.services import Service, ServiceProcess
from floodmark.local.supervisor import StopRequest, Supervisor
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually, never
from tests.support.kafka_tools import committed
from tests.support.ledger_kit import zookeeper_store
from tests.support.pipeline import write_parquet
from tests.support.service_process import FAST, INGESTER, ServiceUnderTest, announce, new_table, service

pytestmark = pytest.mark.stack
TOPIC = "announcements.v1"
GRACE_S, CLOSING_S = 3.0, 3.0
BUSY_S = 5.0  # what a busy machine may add to any time


class SlowService:
    """The service built for these tests, started as often as a test likes, with the effects of all its runs."""

    def __init__(self, zookeeper: ZooKeeperServer, kafka: KafkaServer, directory: Path) -> None:
        self.table = new_table()
        self._servers = {"zookeeper": zookeeper.hosts, "kafka": kafka.bootstrap}
        self._kafka = kafka
        self._directory = directory
        self._effects = directory / "effects"
        self._effects.touch()
        self._partition = -1

    @contextmanager
    def running(self, log: str = "log", **environ: str) -> Iterator[ServiceUnderTest]:
        command = ("tests.integration.slow_service", self.table, str(self._effects))
        with service(command, self._directory / log, **self._servers, **environ) as running:
            running.await_event("partitions_assigned")
            yield running

    def announce(self, *works_ms: str) -> None:
        announce(self._kafka, self.table, *works_ms)

    def effects(self) -> list[str]:
        return self._effects.read_text().splitlines()

    def settle(self, running: ServiceUnderTest) -> int:
        """Have one record done and committed. Returns the position after it, with nothing older outstanding."""
        self.announce("1")
        line = running.await_event("work_ended", path="1")
        self._partition = line["partition"]
        eventually(lambda: self.position() == line["offset"] + 1, what="the first record committed")
        return self.position()

    def position(self) -> int:
        """Of the partition that this table's announcements are in; other tests fill the others."""
        return committed(self._kafka, f"floodmark.{self.table}", TOPIC).get(self._partition, 0)


@pytest.fixture
def slow(zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path) -> SlowService:
    return SlowService(zookeeper, kafka, tmp_path)


@pytest.fixture
def slow_with_own_zookeeper(private_zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path) -> SlowService:
    return SlowService(private_zookeeper, kafka, tmp_path)


def stopped_within_s(running: ServiceUnderTest) -> float:
    began_s = time.monotonic()
    running.terminate()
    assert running.exit_code() == 0, running.log_path.read_text()
    return time.monotonic() - began_s


def test_work_that_fits_the_grace_period_is_finished_and_committed(slow: SlowService) -> None:
    """SIGTERM waits for what is running, takes nothing new and says on its port that it is stopping."""
    with slow.running() as running:
        slow.announce("1500")
        eventually(lambda: "began 1500" in slow.effects(), what="the work begun")
        running.terminate()
        running.await_event("service_stopping", why="SIGTERM")
        assert running.ask("/readyz")[0] == 503
        assert "stopping: SIGTERM" in running.ask("/readyz")[1]
        assert running.exit_code() == 0
    assert slow.effects() == ["began 1500", "ended 1500"]
    assert not running.events("work_abandoned")
    with slow.running("again") as again:
        slow.announce("1")
        eventually(lambda: "ended 1" in slow.effects(), what="the next record")
        stopped_within_s(again)
    assert slow.effects().count("began 1500") == 1


def test_work_longer_than_the_grace_period_is_abandoned_uncommitted_and_done_again(slow: SlowService) -> None:
    """Finished before it: committed. Unfinished, and finished behind it: read again by the next process (INV-8)."""
    with slow.running() as running:
        before = slow.settle(running)
        slow.announce("12000", "2")
        eventually(lambda: "ended 2" in slow.effects() and "began 12000" in slow.effects(), what="work in flight")
        assert stopped_within_s(running) < GRACE_S + CLOSING_S + BUSY_S
    assert running.events("work_abandoned", count=1)
    assert slow.position() == before
    assert "ended 12000" not in slow.effects()
    with slow.running("again"):
        eventually(lambda: "ended 12000" in slow.effects(), what="the abandoned work done")
        eventually(lambda: slow.position() == before + 2, what="both committed")
    assert slow.effects().count("began 1") == 1


def test_an_ingester_stopped_in_a_flood_commits_what_it_handled_and_no_more(
    zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Stopped in the middle of 10,000 records and started again: every one is handled, none is skipped."""
    table, paths = new_table(), ["a.parquet"] * 10_000
    write_parquet(tmp_path / "lake" / "a.parquet", 1, 2)
    with zookeeper_store(zookeeper.hosts) as store:
        ledger = ledger_on(store, clock=SystemClock(), randomness=random.Random())
        create_table(ledger, TableRequest(table, str(tmp_path / "lake"), "event_time", properties={"scan": "false"}))
    ensure_topics(KafkaConnection(kafka.bootstrap, "test"), [ANNOUNCEMENTS], replication=1, timeout_s=30)
    announce(kafka, table, *paths)
    servers = {"zookeeper": zookeeper.hosts, "kafka": kafka.bootstrap}
    with service(INGESTER, tmp_path / "first", **servers) as first:
        first.await_event("announcement_handled", table=table)
        assert stopped_within_s(first) < GRACE_S + CLOSING_S + BUSY_S
    handled = offsets(first, table)
    assert len(handled) < len(paths), "the flood was over before the stop; make it longer"
    # Offsets of one partition: all from the first record to just below the position were handled.
    partition = first.events("announcement_handled", table=table)[0]["partition"]
    position = committed(kafka, "floodmark.ingester", TOPIC)[partition]
    assert set(range(min(handled), position)) <= handled
    assert position > min(handled)
    with service(INGESTER, tmp_path / "second", **servers) as second:
        eventually(
            lambda: len(handled | offsets(second, table)) == len(paths),
            within_s=180,
            every_s=0.5,
            what="the rest handled",
        )
        assert min(offsets(second, table)) == position
        stopped_within_s(second)


def offsets(running: ServiceUnderTest, table: str) -> set[int]:
    return {line["offset"] for line in running.events("announcement_handled", table=table)}


def test_a_stop_is_heard_while_zookeeper_is_awaited(tmp_path: Path) -> None:
    """A service that has not even started ends at once, with code 0."""
    with service(INGESTER, tmp_path / "log", zookeeper="127.0.0.1:1", kafka="127.0.0.1:1") as running:
        running.await_event("http_port_opened")
        assert stopped_within_s(running) < BUSY_S, "and not only after the ten seconds it would wait"


def test_a_stop_ends_the_process_although_kafka_hangs(
    zookeeper: ZooKeeperServer, private_kafka: KafkaServer, tmp_path: Path
) -> None:
    """A broker that holds its connections and answers nothing cannot hold a service past its grace period."""
    slow = SlowService(zookeeper, private_kafka, tmp_path)
    with slow.running() as running:
        slow.announce("500")
        eventually(lambda: "began 500" in slow.effects(), what="the work begun")
        kafka_process = private_kafka.identity()
        assert kafka_process is not None
        os.kill(kafka_process.pid, signal.SIGSTOP)
        try:
            eventually(lambda: "ended 500" in slow.effects(), what="the work done, its commit unanswered")
            assert stopped_within_s(running) < GRACE_S + CLOSING_S + BUSY_S
        finally:
            os.kill(kafka_process.pid, signal.SIGCONT)


def test_while_zookeeper_is_away_nothing_is_committed_and_afterwards_everything_is_consumed(
    slow_with_own_zookeeper: SlowService, private_zookeeper: ZooKeeperServer
) -> None:
    """kill -9 of ZooKeeper under load. The service says so, is not ready, commits nothing, and goes on by itself.

    The server is away for longer than the session. A restarted ZooKeeper gives each session it finds in its log the
    full time again, so the service keeps its session and its liveness node.
    """
    slow, session_s = slow_with_own_zookeeper, 6
    with slow.running(FLOODMARK_ZOOKEEPER__SESSION_TIMEOUT_MS=str(1_000 * session_s)) as running:
        before = slow.settle(running)
        slow.announce("1500")
        eventually(lambda: "began 1500" in slow.effects(), what="work in flight")
        private_zookeeper.kill()
        running.await_event("zookeeper_connection_suspended")
        assert running.ask("/readyz") == (503, '{"status": "failing", "reasons": {"zookeeper": "not connected"}}')
        slow.announce("2", "3")
        eventually(lambda: "ended 1500" in slow.effects(), what="the work in flight ended")
        never(
            lambda: slow.position() != before or "began 2" in slow.effects(),
            for_s=session_s + 1,
            what="a commit or new work",
        )
        private_zookeeper.start()
        eventually(lambda: {"ended 2", "ended 3"} <= set(slow.effects()), what="the records that came meanwhile")
        eventually(lambda: slow.position() == before + 3, what="all committed")
        assert running.ask("/readyz")[0] == 200
        assert len(running.events("zookeeper_connected")) >= 2
        assert not running.events("zookeeper_session_lost")
        stopped_within_s(running)
        assert not running.events("stop_cut_short"), "nothing was left to wait for"
    assert slow.effects().count("began 1500") == 1


def test_a_lost_session_ends_the_service_with_75_and_commits_nothing(
    slow: SlowService, zookeeper: ZooKeeperServer
) -> None:
    """A process frozen for longer than its session is taken for dead; when it wakes it knows, and leaves."""
    # Only ZooKeeper is to miss it: Kafka would take its partitions, and nothing would be left to commit.
    patient = {"FLOODMARK_KAFKA__SESSION_TIMEOUT_MS": "60000", "FLOODMARK_RUNTIME__GRACE_MS": "30000"}
    with slow.running(**patient) as running:
        before = slow.settle(running)
        slow.announce("10000")  # ends when the process has been awake for some seconds and knows
        eventually(lambda: "began 10000" in slow.effects(), what="work in flight")
        running.process.send_signal(signal.SIGSTOP)
        never(lambda: slow.position() != before, for_s=4, what="a commit")
        running.process.send_signal(signal.SIGCONT)
        assert running.exit_code() == 75
    assert running.events("zookeeper_session_lost")
    assert running.events("service_stopped", why="zookeeper session lost", exit_code=75)
    assert "ended 10000" in slow.effects(), "it was done, and still is not committed"
    assert slow.position() == before


def test_a_supervisor_starts_a_service_again_that_lost_its_session(
    zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen past its session it ends with 75; the new process gets a new session and is ready."""
    for name, value in FAST.items():
        monkeypatch.setenv(name, value)
    ingester = ServiceProcess(
        tmp_path,
        Service("ingester", "floodmark_ingester"),
        pick_free_port(),
        zookeeper_hosts=zookeeper.hosts,
        bootstrap=kafka.bootstrap,
    )
    events: list[Event] = []
    stop, up = StopRequest(), threading.Event()
    supervisor = Supervisor([ingester], report=events.append, stop=stop)
    thread = threading.Thread(target=lambda: supervisor.run(on_up=up.set), daemon=True)
    thread.start()
    try:
        assert up.wait(60)
        frozen = ingester.identity()
        assert frozen is not None
        frozen.send(signal.SIGSTOP)
        never(lambda: any(e.kind is Kind.EXITED for e in events), for_s=4, what="an exit of the frozen process")
        frozen.send(signal.SIGCONT)
        eventually(lambda: [e.kind for e in events].count(Kind.READY) == 2, what="the service ready again")
        assert [e.detail.split(",")[0] for e in events if e.kind is Kind.EXITED] == ["with code 75"]
    finally:
        stop.ask()
        thread.join(30)
    assert not thread.is_alive()
