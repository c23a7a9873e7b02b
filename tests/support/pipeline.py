"""The event pipeline as processes on real servers, in a namespace of its own, with the test as producer and worker.

Times are hours since 1970: a file of hours 3 to 4 has rows from 03:00 to 03:59:59.999 of the first day.
"""

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher
from floodmark.bus.ports import Outgoing
from floodmark.catalog.definitions import TableRequest, ViewRequest, create_table, create_view
from floodmark.contracts.envelope import decode, encode, originate
from floodmark.contracts.messages import BuildBucket, RecordRefused, SegmentAnnounced
from floodmark.contracts.topics import ANNOUNCEMENTS, DEADLETTER, TASKS
from floodmark.core.buckets import DataFile, Entry
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.ports import SystemClock
from floodmark.core.tables import ViewHeader
from floodmark.core.transitions import Build, Decision, Mode
from floodmark.ledger.access import Access
from floodmark.ledger.ledger import Ledger, ledger_on
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import eventually
from tests.support.kafka_tools import read_all
from tests.support.ledger_kit import HOUR_MS, zookeeper_store
from tests.support.service_process import ServiceUnderTest, service

SCHEMA = pa.schema([("event_time", pa.timestamp("ms", tz="UTC")), ("value", pa.int64())])


def write_parquet(path: Path, first_hour: float, last_hour: float, *, rows: int = 10, value: int = 1) -> Path:
    """A whole file, appearing at once under its name."""
    start_ms, last_ms = int(first_hour * HOUR_MS), int(last_hour * HOUR_MS) - 1
    times = [start_ms + (last_ms - start_ms) * n // max(rows - 1, 1) for n in range(rows)]
    table = pa.table({"event_time": pa.array(times, pa.int64()).cast(SCHEMA.field(0).type), "value": [value] * rows})
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    pq.write_table(table.cast(SCHEMA), unfinished)
    unfinished.rename(path)
    return path


@dataclass
class Pipeline:
    """A namespace in Kafka, a path in ZooKeeper, a lake in a directory, and the processes that are started on them."""

    directory: Path
    zookeeper: ZooKeeperServer
    kafka: KafkaServer
    settings: dict[str, str] = field(default_factory=dict)
    access: Access | None = None
    """As whom the test itself uses ZooKeeper."""
    kafka_options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.namespace = uuid.uuid4().hex[:12]
        self.hosts = f"{self.zookeeper.hosts}/{self.namespace}"
        self.lake = self.directory / "lake"
        self.lake.mkdir(parents=True, exist_ok=True)
        self._resources = ExitStack()
        store = self._resources.enter_context(zookeeper_store(self.hosts, access=self.access))
        self.ledger: Ledger = ledger_on(store, clock=SystemClock(), randomness=random.Random())
        self._connection = KafkaConnection(self.kafka.bootstrap, "test", self.kafka_options, self.namespace)
        self.publisher = KafkaPublisher(self._connection)
        self._resources.callback(self.publisher.close)
        self._starts = 0

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self, name: str, **environ: str) -> ServiceUnderTest:
        """Start one more process of a service; it is gone when the pipeline is."""
        return self.start_command(name, (f"floodmark_{name}",), **environ)

    def start_command(self, name: str, command: Sequence[str], **environ: str) -> ServiceUnderTest:
        """Start what `python -m` runs with these words, on this pipeline."""
        self._starts += 1
        log_path = self.directory / f"{name}-{self._starts}.log"
        own = {**self.settings, **environ, "FLOODMARK_KAFKA__NAMESPACE": self.namespace}
        running = service(command, log_path, zookeeper=self.hosts, kafka=self.kafka.bootstrap, **own)
        return self._resources.enter_context(running)

    def start_all(self) -> dict[str, ServiceUnderTest]:
        started = {name: self.start(name) for name in ("ingester", "consistency", "scheduler")}
        for running in started.values():
            running.await_event("service_started")
        return started

    def close(self) -> None:
        self._resources.close()

    # -- definitions -----------------------------------------------------------------------------------------------

    def table(self, name: str = "rides", **properties: str) -> Path:
        """A table with a directory of its own; returns the directory."""
        location = self.lake / name
        location.mkdir(exist_ok=True)
        columns = tuple((f.name, str(f.type)) for f in SCHEMA)
        create_table(self.ledger, TableRequest(name, str(location), "event_time", columns, properties=properties))
        return location

    def view(self, name: str = "hourly", table: str = "rides", **changed: str) -> ViewHeader:
        request = ViewRequest(
            name=name,
            table=table,
            bucket=changed.pop("bucket", "1h"),
            select=changed.pop("select", f"SELECT count(*) AS n FROM {table}"),
            location=str(self.lake / "views" / name),
            **changed,  # type: ignore[arg-type]
        )
        return create_view(self.ledger, request)

    # -- the world outside -----------------------------------------------------------------------------------------

    def announce(self, table: str, *paths: str, action: str = "add") -> list[str]:
        """Announce files; returns the trace ids."""
        envelopes = [
            originate(
                SegmentAnnounced.model_validate({"table": table, "action": action, "path": path}),
                event_id=uuid.uuid4().hex,
                source="test",
                time_ms=None,
                trace_id=uuid.uuid4().hex,
            )
            for path in paths
        ]
        encoded = [encode(e) for e in envelopes]
        self.publisher.publish([Outgoing(ANNOUNCEMENTS.name, e.key, e.value, e.headers) for e in encoded])
        return [e.trace_id for e in envelopes]

    def tasks(self) -> list[BuildBucket]:
        """Every task sent so far."""
        topic = self._connection.qualified(TASKS.name)
        found = read_all(self.kafka, topic, partitions=TASKS.partitions, options=self.kafka_options)
        messages = [decode(TASKS.name, value, list(headers.items()), "here").message for value, headers in found]
        return [m for m in messages if isinstance(m, BuildBucket)]

    def dead_letters(self) -> list[RecordRefused]:
        found = read_all(self.kafka, self._connection.qualified(DEADLETTER.name), partitions=DEADLETTER.partitions)
        messages = [decode(DEADLETTER.name, value, list(headers.items()), "here").message for value, headers in found]
        return [m for m in messages if isinstance(m, RecordRefused)]

    # -- the worker, played by the test ----------------------------------------------------------------------------

    def work(self, tasks: Sequence[BuildBucket], *, attempt: str = "") -> dict[int, Decision]:
        """Commit these tasks as a worker would that built them from exactly their input. By hour."""
        results: dict[int, Decision] = {}
        for task in tasks:
            source = Fingerprint(task.fingerprint.count, task.fingerprint.hash)
            made = () if source.is_empty or task.mode == "DELETE" else (DataFile(f"{task.task_id}.parquet", 1, 1),)
            build = Build(
                start_ms=task.bucket_start_ms,
                mode=Mode(task.mode),
                attempt_id=attempt or uuid.uuid4().hex,
                fingerprint=source,
                slice_versions=dict(task.slice_versions),
                definition_hash=task.definition_hash,
                built_at_ms=SystemClock().now_ms(),
                files=made,
            )
            outcome = self.ledger.views.commit(task.view, task.incarnation, [build])
            results[task.bucket_start_ms // HOUR_MS] = outcome.result[task.bucket_start_ms]
        return results

    def build_everything(self, view: str = "hourly", *, up_to_hour: int, within_s: float = 60) -> None:
        """Work off tasks until the watermark is there and nothing is STALE."""
        done: set[str] = set()

        def finished() -> bool:
            fresh = [t for t in self.tasks() if t.task_id not in done and t.view == view]
            done.update(t.task_id for t in fresh)
            self.work(fresh)
            state = self.ledger.views.state(view)
            stale = [s for s, e in state.entries.items() if e.state == "STALE"]
            return (state.header.watermark_ms or -1) >= up_to_hour * HOUR_MS and not stale

        eventually(finished, within_s=within_s, every_s=0.2, what=f"{view} built up to hour {up_to_hour}")

    # -- looking ---------------------------------------------------------------------------------------------------

    def entries(self, view: str = "hourly") -> dict[int, Entry]:
        return {s // HOUR_MS: e for s, e in sorted(self.ledger.views.state(view).entries.items())}

    def states(self, view: str = "hourly") -> dict[int, str]:
        return {hour: str(entry.state) for hour, entry in self.entries(view).items()}

    def segments(self, table: str = "rides") -> set[str]:
        return set(self.ledger.registry.snapshot(table).by_name)

    def segments_of(self, table: str) -> dict[str, int]:
        """What is registered: the CRC of each segment, by name."""
        return {name: segment.crc for name, segment in self.ledger.registry.snapshot(table).by_name.items()}


@contextmanager
def pipeline_on(directory: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer, **settings: str) -> Iterator[Pipeline]:
    """A pipeline without processes; `settings` are environment variables for those it starts."""
    made = Pipeline(directory, zookeeper, kafka, dict(settings))
    try:
        yield made
    finally:
        made.close()
