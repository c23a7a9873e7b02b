"""The whole system on servers that ask who is there: ZooKeeper with ACLs behind TLS, Kafka with SASL_SSL.

A client without credentials is refused, one with wrong ones is told which setting is wrong, and no log has a secret.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE
from typer.testing import CliRunner

import floodmark
from floodmark.bus.kafka import KafkaConnection, KafkaPublisher, ensure_topics
from floodmark.bus.ports import Outgoing
from floodmark.cli.main import app
from floodmark.contracts.topics import ALL_TOPICS, TASKS
from floodmark.core.errors import Unavailable
from floodmark.ledger.access import Access
from floodmark.ledger.paths import ROOT
from floodmark.ledger.session import Session
from tests.support.broker import url_of
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS, zookeeper_store
from tests.support.pipeline import write_parquet
from tests.support.secured import USER, Secured, SecuredZooKeeper, secured_servers
from tests.support.servers import plain_client
from tests.support.service_process import INGESTER, service
from tests.support.system import SMALL_SPARK, START_WITHIN_S, System

TOKEN = "a-token-for-this-test-and-no-other"
WRONG = "not-the-password"
pytestmark = pytest.mark.timeout(600)  # six services start at once, two of them with Spark
HOURLY = "SELECT date_trunc('HOUR', event_time) AS hour, count(*) AS n FROM rides GROUP BY 1"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_servers(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture(scope="module")
def system(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """All six services, at their most talkative, with every secret in a file."""
    directory = tmp_path_factory.mktemp("system")
    tokens = directory / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    settings = secured.settings() | {"FLOODMARK_LOG__LEVEL": "debug"}
    made = System(
        directory,
        secured.zookeeper,
        secured.kafka,
        settings,
        access=secured.access,
        kafka_options=secured.kafka_options(),
    )
    try:
        spark = {**SMALL_SPARK, "FLOODMARK_BROKER__ADMIN_TOKENS_FILE": str(tokens)}
        started = [made.start(name, **spark) for name in ("broker", "worker")]
        started += [made.start(name) for name in ("ingester", "consistency", "scheduler", "janitor")]
        for running in started:
            running.await_event("service_started", within_s=START_WITHIN_S)
        made.broker = started[0]
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def owned(secured: Secured) -> str:
    """Where a ledger lies that has an owner."""
    hosts = f"{secured.zookeeper.hosts}/owned"
    with zookeeper_store(hosts, access=secured.access):
        return hosts


def nodes(client: Any, path: str = ROOT) -> list[str]:
    return [path, *(found for name in client.get_children(path) for found in nodes(client, f"{path}/{name}"))]


# -- what is let in ----------------------------------------------------------------------------------------------------


def test_the_system_works_from_file_to_answer(system: System) -> None:
    """Each service, each node and each topic is met on the way: the chain stands still if one of them is refused."""
    location = system.table("rides")
    system.view("hourly", "rides", select=HOURLY)
    for hour in range(4):
        write_parquet(location / f"{hour}.parquet", hour, hour + 1)
    system.await_built("hourly", up_to_ms=4 * HOUR_MS)
    write_parquet(location / "late.parquet", 1, 2, rows=5)
    eventually(lambda: "late.parquet" in system.segments("rides"), what="the late file registered")
    system.await_built("hourly", up_to_ms=4 * HOUR_MS)
    broker = floodmark.connect(url_of(system.broker), token=TOKEN)
    answer = broker.sql(f"{HOURLY} ORDER BY 1")
    assert [row[1] for row in answer.rows()] == [10, 15, 10, 10]
    assert answer.receipt is not None
    assert answer.receipt["view"] == "hourly"


def test_nobody_else_reads_or_writes_a_node(system: System) -> None:
    """Of every node there is, made by a multi or not, ephemeral or not; also on the port without TLS."""
    with zookeeper_store(system.hosts, access=system.access) as store:
        paths = nodes(store._client)
    assert {f"{ROOT}/leaders/scan", f"{ROOT}/tables/rides", f"{ROOT}/views/hourly/shards/0"} <= set(paths)
    assert len([p for p in paths if p.startswith(f"{ROOT}/services/")]) >= 12, "six services and their replicas"
    with plain_client(system.zookeeper.plain_hosts) as client:
        # Whole paths: kazoo looks at the node that a short one starts from.
        for path in (f"/{system.namespace}{path}" for path in paths):
            attempts = [
                lambda p=path: client.get(p),
                lambda p=path: client.get_children(p),
                lambda p=path: client.set(p, b"mine"),
                lambda p=path: client.create(f"{p}/mine", b""),
                lambda p=path: client.set_acls(p, OPEN_ACL_UNSAFE),
                lambda p=path: client.delete(p),
            ]
            for attempt in attempts:
                with pytest.raises(NoAuthError):
                    attempt()


def test_the_command_line_gets_in_by_the_same_settings(
    system: System, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says nothing of the secrets in what it prints."""
    for name, value in secured.settings().items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["ledger", "show", "rides", "--json", "--zookeeper", system.hosts])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["name"] == "rides"
    assert not any(secret in result.output for secret in secured.secrets)
    monkeypatch.delenv("FLOODMARK_ZOOKEEPER__PASSWORD_FILE")
    monkeypatch.setenv("FLOODMARK_ZOOKEEPER__PASSWORD", WRONG)
    result = CliRunner().invoke(app, ["ledger", "show", "rides", "--zookeeper", system.hosts])
    assert result.exit_code == 69
    assert "zookeeper.password" in result.stderr
    assert WRONG not in result.output


def test_a_kafka_user_who_may_not_make_topics_uses_those_that_are_there(secured: Secured) -> None:
    """Where an administrator makes the topics, the services need to read and write them, and no more."""
    options = secured.kafka_options("reader", secured.reader_password)
    narrow = KafkaConnection(secured.kafka.bootstrap, "narrow", options)
    ours = KafkaConnection(secured.kafka.bootstrap, "ours", secured.kafka_options())
    with pytest.raises(Unavailable, match=r"topic announcements.v1 could not be created"):
        ensure_topics(narrow, ALL_TOPICS, replication=1, timeout_s=30)
    ensure_topics(ours, ALL_TOPICS, replication=1, timeout_s=30)
    admin, pattern = AdminClient(ours.client_config()), ResourcePatternType.LITERAL
    may = [
        AclBinding(ResourceType.TOPIC, "*", pattern, "User:reader", "*", operation, AclPermissionType.ALLOW)
        for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    for answer in admin.create_acls(may).values():
        answer.result(timeout=30)

    def allowed() -> bool:
        try:
            ensure_topics(narrow, ALL_TOPICS, replication=1, timeout_s=30)
        except Unavailable:
            return False  # an ACL is answered before it is known everywhere
        return True

    eventually(allowed, what="the topics taken as they are")
    publisher = KafkaPublisher(narrow)
    publisher.publish([Outgoing(TASKS.name, b"k", b"v")])
    publisher.close()


# -- what is refused, and in which words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"ZOOKEEPER__PASSWORD": WRONG},
            f"does not let '{USER}' read {ROOT}: zookeeper.username or zookeeper.password",
        ),
        ({"ZOOKEEPER__USERNAME": None}, "set zookeeper.username and zookeeper.password"),
        ({"ZOOKEEPER__TLS_CA": "other_ca"}, "certificate verify failed: unable to get local issuer certificate"),
        ({"ZOOKEEPER__TLS": None}, "it may want TLS there (zookeeper.tls)"),
        ({"KAFKA__PASSWORD": WRONG}, "see kafka.username, kafka.password and kafka.sasl_mechanism"),
        ({"KAFKA__TLS_CA": "other_ca"}, "see kafka.tls and kafka.tls_ca"),
        ({"KAFKA__TLS": None}, "it may want TLS or a login (kafka.tls, kafka.username)"),
    ],
)
def test_a_service_with_a_wrong_setting_says_which_and_ends(
    owned: str, secured: Secured, tmp_path: Path, changed: dict[str, str | None], sentence: str
) -> None:
    """With 69, so that its supervisor tries again: a password may be on its way to both sides."""
    ((name, value),) = changed.items()
    section = name.partition("__")[0]
    environ = secured.settings()
    if value is None:  # nothing of it, nor of what depends on it
        gone = ("USERNAME", "PASSWORD_FILE") if name.endswith("USERNAME") else ("TLS", "TLS_CA")
        for key in gone:
            del environ[f"FLOODMARK_{section}__{key}"]
    elif name.endswith("PASSWORD"):
        del environ[f"FLOODMARK_{name}_FILE"]
        environ[f"FLOODMARK_{name}"] = value
    else:
        environ[f"FLOODMARK_{name}"] = str(getattr(secured.keys, value))
    waits = {"FLOODMARK_KAFKA__DELIVERY_TIMEOUT_MS": "6000", "FLOODMARK_ZOOKEEPER__CONNECT_TIMEOUT_MS": "4000"}
    log_path = tmp_path / "ingester.log"
    servers = {"zookeeper": owned, "kafka": secured.kafka.bootstrap}
    with service(INGESTER, log_path, **servers, **environ, **waits) as refused:
        assert refused.exit_code() == 69, log_path.read_text()
        error = refused.events("service_unavailable")[0]["error"]
    assert sentence in error
    assert not any(secret in log_path.read_text() for secret in (*secured.secrets, WRONG))


def test_a_wrong_kafka_password_is_not_waited_out(secured: Secured) -> None:
    """librdkafka would try it again and again until the time is up."""
    connection = KafkaConnection(secured.kafka.bootstrap, "wrong", secured.kafka_options(password=WRONG))
    started_s = time.monotonic()
    with pytest.raises(Unavailable, match="refused the login"):
        ensure_topics(connection, ALL_TOPICS, replication=1, timeout_s=300)
    assert time.monotonic() - started_s < 60


def test_a_certificate_for_another_host_is_refused_unless_hosts_are_not_checked(secured: Secured) -> None:
    """The server's certificate says 127.0.0.1, and whoever calls it localhost cannot know that it is the same."""
    hosts = secured.zookeeper.hosts.replace("127.0.0.1", "localhost")
    base = {"username": USER, "password": secured.zookeeper_password, "tls": True, "ca": secured.keys.ca}
    with pytest.raises(Unavailable, match="certificate is not valid for 'localhost'"):
        open_session(hosts, **base)
    open_session(hosts, **base, check_hostname=False)


def test_a_server_that_wants_a_certificate_and_a_name_gets_both(secured: Secured, tmp_path: Path) -> None:
    """One that turns everybody else away, before there is any node with an owner; the sentence says what it wants."""
    server = SecuredZooKeeper(
        tmp_path, secured.keys, client_auth="need", more="enforce.auth.enabled=true\nenforce.auth.schemes=digest\n"
    )
    server.start()
    certificate = {"cert": secured.keys.client_cert, "key": secured.keys.client_key}
    try:
        with pytest.raises(Unavailable, match=r"zookeeper.tls_cert, zookeeper.tls_key"):
            open_session(server.hosts, tls=True, ca=secured.keys.ca)
        with pytest.raises(Unavailable, match=r"set zookeeper.username and zookeeper.password"):
            open_session(server.hosts, tls=True, ca=secured.keys.ca, **certificate)
        open_session(server.hosts, username=USER, password="any", tls=True, ca=secured.keys.ca, **certificate)
    finally:
        server.stop()


def open_session(hosts: str, **access: Any) -> None:
    session = Session(hosts=hosts, timeout_ms=10_000, access=Access(**access), on_lost=lambda: None)
    session.open(timeout_ms=5_000)
    session.close()


# -- what is told ------------------------------------------------------------------------------------------------------


def test_no_log_and_no_page_has_a_secret(system: System, secured: Secured) -> None:
    """Of the services, at debug level, and of both servers; after all that went right and wrong above."""
    logs = [*system.directory.glob("*.log"), secured.zookeeper.log_path, secured.kafka.log_path]
    assert len(logs) == 8
    secrets = (*secured.secrets, TOKEN, WRONG)
    for log in logs:
        text = log.read_text()
        assert text
        assert not [s for s in secrets if s in text], log
    for page in ("/metrics", "/readyz", "/healthz", "/openapi.json"):
        status, text = system.broker.ask(page)
        assert not [s for s in secrets if s in text], (page, status)
