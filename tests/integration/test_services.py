"""Services as processes on real servers: what they do with records, how they start, fail and are seen to live."""

import json
import random
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher
from floodmark.bus.ports import Outgoing
from floodmark.catalog.definitions import TableRequest, create_table
from floodmark.contracts.envelope import decode
from floodmark.contracts.messages import RecordRefused
from floodmark.core.ports import SystemClock
from floodmark.ledger.ledger import ledger_on
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually
from tests.support.kafka_tools import committed, read_all
from tests.support.ledger_kit import zookeeper_store
from tests.support.pipeline import write_parquet
from tests.support.servers import plain_client
from tests.support.service_process import INGESTER, ServiceUnderTest, announce, new_table, service

pytestmark = pytest.mark.stack
GROUP, TOPIC = "floodmark.ingester", "announcements.v1"
NOBODY = "127.0.0.1:1"
SESSION_S, BUSY_S = 2, 8

Producer = Callable[[KafkaServer, str, bytes, str], None]


@pytest.fixture
def ingester(zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path) -> Iterator[ServiceUnderTest]:
    """An ingester with partitions. It ends by SIGTERM, so that the next one need not wait for its place."""
    with service(INGESTER, tmp_path / "log", zookeeper=zookeeper.hosts, kafka=kafka.bootstrap) as running:
        running.await_event("partitions_assigned")
        yield running
        running.terminate()
        assert running.exit_code() == 0


def by_kcat(kafka: KafkaServer, key: str, value: bytes, traceparent: str) -> None:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not on PATH; the same rule is tested with confluent-kafka")
    command = [kcat, "-P", "-b", kafka.bootstrap, "-t", TOPIC, "-k", key, "-H", f"traceparent={traceparent}", "-D", "|"]
    subprocess.run(command, input=value, check=True, timeout=30)


def by_client(kafka: KafkaServer, key: str, value: bytes, traceparent: str) -> None:
    publisher = KafkaPublisher(KafkaConnection(kafka.bootstrap, "test"))
    publisher.publish([Outgoing(TOPIC, key.encode(), value, (("traceparent", traceparent.encode()),))])
    publisher.close()


def announcement(table: str) -> bytes:
    return json.dumps({"kind": "segment-announced.v1", "table": table, "action": "add", "path": "a.parquet"}).encode()


def define(zookeeper: ZooKeeperServer, directory: Path, *tables: str) -> None:
    """Tables with the file that is going to be announced, which the scanner leaves alone."""
    write_parquet(directory / "a.parquet", 1, 2)
    with zookeeper_store(zookeeper.hosts) as store:
        ledger = ledger_on(store, clock=SystemClock(), randomness=random.Random())
        for table in tables:
            create_table(ledger, TableRequest(table, str(directory), "event_time", properties={"scan": "false"}))


def position_passed(kafka: KafkaServer, partition: int, offset: int) -> bool:
    return committed(kafka, GROUP, TOPIC).get(partition, 0) > offset


def dead_letter_of(kafka: KafkaServer, value: bytes) -> RecordRefused | None:
    for raw, headers in read_all(kafka, "deadletter.v1"):
        letter = decode("deadletter.v1", raw, list(headers.items()), fallback_id="here").message
        if isinstance(letter, RecordRefused) and letter.value == value:
            return letter
    return None


@pytest.mark.parametrize("produce", [by_kcat, by_client])
def test_a_valid_announcement_is_handled_and_the_group_moves_past_it(
    ingester: ServiceUnderTest, zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path, produce: Producer
) -> None:
    """The log says what arrived, from where and under which trace; the offset is committed afterwards."""
    table, trace_id = new_table(), uuid.uuid4().hex
    define(zookeeper, tmp_path, table)
    produce(kafka, table, announcement(table), f"00-{trace_id}-00f067aa0ba902b7-01")
    line = ingester.await_event("announcement_handled", table=table)
    assert (line["topic"], line["trace_id"], line["service"]) == (TOPIC, trace_id, "ingester")
    eventually(lambda: position_passed(kafka, line["partition"], line["offset"]), what="the position past the record")


@pytest.mark.parametrize("produce", [by_kcat, by_client])
def test_an_invalid_announcement_becomes_a_dead_letter_and_holds_nobody_up(
    ingester: ServiceUnderTest, zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path, produce: Producer
) -> None:
    """The dead letter has the rule, the reason, the bytes and the place; the record after it is handled."""
    table, trace_id = new_table(), uuid.uuid4().hex
    define(zookeeper, tmp_path, table)
    broken = b'{"kind": "segment-announced.v1", "table": "%s", "action": "explode"}' % table.encode()
    produce(kafka, table, broken, f"00-{trace_id}-00f067aa0ba902b7-01")
    produce(kafka, table, announcement(table), f"00-{uuid.uuid4().hex}-00f067aa0ba902b7-01")
    after = ingester.await_event("announcement_handled", table=table)
    letter = eventually(lambda: dead_letter_of(kafka, broken), what="the dead letter")
    assert letter.rule == "schema"
    assert "action: Input should be 'add', 'replace' or 'delete', got 'explode'" in letter.reason
    assert (letter.topic, letter.partition, letter.offset) == (TOPIC, after["partition"], after["offset"] - 1)
    assert (letter.key, letter.service) == (table.encode(), "ingester")
    refused = ingester.await_event("record_refused", trace_id=trace_id)
    assert (refused["partition"], refused["offset"]) == (letter.partition, letter.offset)
    eventually(lambda: position_passed(kafka, after["partition"], after["offset"]), what="the position past both")


def test_when_one_of_two_ingesters_is_killed_the_other_consumes_everything(
    zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Two members share the partitions. After a kill -9 the survivor has all of them and misses no record."""
    tables = [new_table() for _ in range(12)]  # keys that spread over the partitions
    define(zookeeper, tmp_path, *tables)
    servers = {"zookeeper": zookeeper.hosts, "kafka": kafka.bootstrap}
    with service(INGESTER, tmp_path / "a", **servers) as first, service(INGESTER, tmp_path / "b", **servers) as second:
        eventually(lambda: held(first) and held(second) and len(held(first) | held(second)) == 6, what="six shared")
        assert not held(first) & held(second)
        first.process.kill()
        for table in tables:
            announce(kafka, table, "a.parquet")
        for table in tables:
            second.await_event("announcement_handled", table=table)
        assert len(held(second)) == 6
        second.terminate()
        assert second.exit_code() == 0


def held(running: ServiceUnderTest) -> set[str]:
    """The partitions a service has, by its own log."""
    partitions: set[str] = set()
    for event in running.events():
        if event["event"] == "partitions_assigned":
            partitions |= set(event["partitions"])
        elif event["event"] in ("partitions_revoked", "partitions_lost"):
            partitions -= set(event["partitions"])
    return partitions


def test_a_bug_in_a_handler_ends_the_service_and_leaves_the_record(
    zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Exit code 70, one line of JSON with the traceback and no local variables, the offset not committed."""
    table = new_table()
    command = ("tests.integration.slow_service", table, str(tmp_path / "effects"))
    with service(command, tmp_path / "log", zookeeper=zookeeper.hosts, kafka=kafka.bootstrap) as running:
        running.await_event("partitions_assigned")
        announce(kafka, table, "0")
        done = running.await_event("work_ended")
        announce(kafka, table, "0", action="delete")
        assert running.exit_code() == 70
    crash = running.events("service_crashed")[0]
    assert crash["exception"][0]["exc_type"] == "RuntimeError"
    assert f"the bug in {table}" in crash["exception"][0]["exc_value"]
    assert crash["exception"][0]["frames"][-1]["name"] == "__call__"
    assert "hunter2" not in running.log_path.read_text()
    # The record before it was done and is committed; the position stays at the one that met the bug.
    assert committed(kafka, f"floodmark.{table}", TOPIC)[done["partition"]] == done["offset"] + 1


def test_without_zookeeper_a_service_says_so_and_ends(tmp_path: Path) -> None:
    """Exit code 69, and a sentence with the address, the time it waited and the last reason."""
    quick = {"FLOODMARK_ZOOKEEPER__CONNECT_TIMEOUT_MS": "1000"}
    with service(INGESTER, tmp_path / "log", zookeeper=NOBODY, kafka=NOBODY, **quick) as running:
        assert running.exit_code() == 69
    error = running.events("service_unavailable")[0]["error"]
    assert error == f"no ZooKeeper answered at {NOBODY} within 1000 ms: [Errno 111] Connection refused"


def test_without_kafka_a_service_says_so_and_ends(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """Exit code 69; until then it is not ready, because it has not started."""
    quick = {"FLOODMARK_KAFKA__DELIVERY_TIMEOUT_MS": "5000"}
    with service(INGESTER, tmp_path / "log", zookeeper=zookeeper.hosts, kafka=NOBODY, **quick) as running:
        running.await_event("zookeeper_connected")
        assert running.ask("/readyz") == (503, '{"status": "failing", "reasons": {"start": "still starting"}}')
        assert running.exit_code() == 69
    error = running.events("service_unavailable")[0]["error"]
    assert error.startswith(f"no Kafka answered at {NOBODY} within 5 s: ")
    assert "Connection refused" in error


def test_a_taken_http_port_is_told_and_ends_the_start(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """Exit code 69, naming the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        environ = {"FLOODMARK_HTTP__PORT": port}
        with service(INGESTER, tmp_path / "log", zookeeper=zookeeper.hosts, kafka=NOBODY, **environ) as running:
            assert running.exit_code() == 69
    error = running.events("service_unavailable")[0]["error"]
    assert error == f"http port 127.0.0.1:{port} cannot be opened: Address already in use"


@pytest.mark.parametrize("where", ["environment", "file"])
def test_a_misspelt_setting_ends_the_start_and_is_named_with_the_right_one(tmp_path: Path, where: str) -> None:
    """Exit code 78: a misspelt setting is a setting not made."""
    path = tmp_path / "floodmark.toml"
    path.write_text('[kafka]\nbootstrp = "kafka:9092"\n')
    environ = {"FLOODMARK_CONFIG": str(path)} if where == "file" else {"FLOODMARK_KAFKA__BOOTSTRP": "kafka:9092"}
    expected = {
        "file": f"settings: {path}: [kafka] bootstrp is not a setting; did you mean bootstrap?",
        "environment": "settings: FLOODMARK_KAFKA__BOOTSTRP is not a setting; did you mean FLOODMARK_KAFKA__BOOTSTRAP?",
    }
    with service(INGESTER, tmp_path / "log", zookeeper=NOBODY, kafka=NOBODY, **environ) as running:
        assert running.exit_code() == 78
    assert running.log_path.read_text() == f"floodmark ingester: {expected[where]}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_liveness_node_is_there_exactly_while_the_process_lives(
    zookeeper: ZooKeeperServer, kafka: KafkaServer, tmp_path: Path, number: int
) -> None:
    """Gone with the process after SIGTERM, and after kill -9 when the session of two seconds has run out."""
    command = ("tests.integration.slow_service", name := new_table(), str(tmp_path / "effects"))
    with plain_client(zookeeper.hosts) as client:
        with service(command, tmp_path / "log", zookeeper=zookeeper.hosts, kafka=kafka.bootstrap) as running:
            line = running.await_event("service_started")
            path = f"/floodmark/services/{name}/{line['replica']}"
            facts: dict[str, Any] = json.loads(client.get(path)[0])
            assert facts["pid"] == running.process.pid
            assert facts["http_port"] == running.await_event("http_port_opened")["port"]
            running.process.send_signal(number)
            running.exit_code()
        if number == signal.SIGTERM:
            assert client.exists(path) is None
        eventually(lambda: client.exists(path) is None, within_s=SESSION_S + BUSY_S, what="the node gone")
