"""What suites measure against: servers of their own, started for the suite and gone after it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from floodmark.ledger.session import Session
from floodmark.ledger.zookeeper import ZooKeeperStore
from floodmark.local.kafka import KafkaServer
from floodmark.local.ports import pick_free_port, pick_free_ports
from floodmark.local.zookeeper import ZooKeeperServer
from floodmark.service import logs
from tests.support.system import System, system_on


def keep_quiet() -> None:
    """Lines of a log that are drawn for a terminal would be measured too, and hide the figures among them."""
    logs.configure(form="json", level="warning", service="bench", replica="bench")


@contextmanager
def zookeeper_session() -> Iterator[tuple[Session, ZooKeeperStore]]:
    """A session on a ZooKeeper, the ledger's root nodes in place."""
    keep_quiet()
    with tempfile.TemporaryDirectory(prefix="floodmark-bench-") as directory:
        server = ZooKeeperServer(Path(directory), pick_free_port())
        server.start()
        try:
            session = Session(hosts=server.hosts, timeout_ms=30_000, on_lost=lambda: None)
            session.open(timeout_ms=30_000)
            store = ZooKeeperStore(session)
            store.ensure_root()
            yield session, store
            session.close()
        finally:
            server.stop()


@contextmanager
def whole_system() -> Iterator[tuple[System, Path]]:
    """ZooKeeper, Kafka and a system on them, none of its services started; and a directory for the suite."""
    keep_quiet()
    with tempfile.TemporaryDirectory(prefix="floodmark-bench-") as directory:
        root = Path(directory)
        zookeeper = ZooKeeperServer(root / "zookeeper", pick_free_port())
        kafka = KafkaServer(root / "kafka", *pick_free_ports(2))
        zookeeper.start()
        kafka.start()
        try:
            with system_on(root / "system", zookeeper, kafka) as system:
                yield system, root
        finally:
            kafka.stop()
            zookeeper.stop()
