"""What no event reported is found and marked all the same, by the real processes: SCENARIOS C10, C11 and C12."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from floodmark.bus.kafka import KafkaConnection, ensure_topics
from floodmark.contracts.topics import ALL_TOPICS
from floodmark.core.errors import Unavailable
from floodmark.ledger import paths
from floodmark.ledger.store import Set
from floodmark.local.kafka import KafkaServer
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.eventually import ANSWERED_WITHIN_S, eventually
from tests.support.lab import Lab
from tests.support.ledger_kit import HOUR_MS, segment
from tests.support.pipeline import Pipeline, pipeline_on, write_parquet
from tests.support.service_process import ServiceUnderTest

pytestmark = pytest.mark.stack

SETTINGS = {
    "FLOODMARK_CONSISTENCY__SWEEP_EVERY_MS": "200",
    "FLOODMARK_CONSISTENCY__SWEEP_GRACE_MS": "1500",
}


def repairs(running: ServiceUnderTest, view: str) -> float:
    """The sweep's own count for this view."""
    name = f'floodmark_sweep_repairs_total{{view="{view}"}} '
    found = [line.removeprefix(name) for line in running.ask("/metrics")[1].splitlines() if line.startswith(name)]
    return float(found[0]) if found else 0


@pytest.mark.scenario("C10")
@pytest.mark.parametrize("hour", [2, 3], ids=["with rows", "VALID-empty"])
def test_a_change_whose_event_is_lost_for_ever_is_marked_counted_and_warned_of(
    lab: Lab, consistency: ServiceUnderTest, hour: int
) -> None:
    """C10: also for a bucket that is VALID because there was nothing: it remembers the slices it found empty."""
    view = f"c10_{hour}"
    lab.built_view(view, range(6))
    lab.lose(view, segment("late", hour, hour + 1))
    entries = lab.await_stale(view, {hour})
    assert entries[hour].cause is not None
    assert entries[hour].cause.kind == "sweep"
    eventually(lambda: repairs(consistency, view) == 1, what="one repair counted")
    warning = consistency.await_event("sweep_repaired", view=view)
    assert (warning["level"], warning["buckets"]) == ("warning", 1)


@pytest.mark.scenario("C10")
def test_a_change_whose_event_arrives_is_no_repair(
    tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> None:
    """C10 turned around: the sweep looks five times a second and leaves everything to the events."""
    # To the sweep what is late is lost, so on a busy machine it must be willing to wait.
    patient = {**SETTINGS, "FLOODMARK_CONSISTENCY__SWEEP_GRACE_MS": "10000"}
    with pipeline_on(tmp_path, zookeeper, kafka, **patient) as pipeline:
        lab, running = Lab(pipeline), pipeline.start("consistency")
        running.await_event("partitions_assigned")
        lab.built_view("c10_heard", range(6))
        lab.lose("c10_heard", segment("s4", 4, 5, crc=2))  # one that shows that the sweep has been here meanwhile
        for n in range(12):
            lab.change("c10_heard", segment("s2", 2, 3, crc=100 + n))
            eventually(lambda: 2 in lab.stale("c10_heard"), what="the change marked")
            lab.build("c10_heard", 2)
        eventually(lambda: repairs(running, "c10_heard") == 1, what="the lost one repaired, and no other")
        kinds = {h: e.cause.kind for h, e in pipeline.entries("c10_heard").items() if e.cause}
        assert (kinds[4], kinds.get(2)) == ("sweep", None)


@pytest.mark.scenario("C10")
@pytest.mark.scenario("C8")
def test_older_data_whose_event_is_lost_becomes_covered(lab: Lab, consistency: ServiceUnderTest) -> None:
    """C10: the lost event may be the one that would have extended coverage."""
    lab.built_view("c10_older", range(10, 14))
    lab.lose("c10_older", segment("older", 8, 9))
    lab.await_stale("c10_older", {8, 9})
    assert lab.pipeline.ledger.views.header("c10_older").coverage_start_ms == 8 * HOUR_MS
    eventually(lambda: repairs(consistency, "c10_older") == 2, what="two buckets counted")


@pytest.mark.scenario("C11")
def test_one_views_corrupt_shard_does_not_keep_the_others_from_being_swept(
    lab: Lab, consistency: ServiceUnderTest
) -> None:
    """C11: damage is reported by name, and the damaged view is swept again once it has been mended."""
    lab.pipeline.table("c11")
    lab.lose("c11", segment("s0", 0, 1), segment("s1", 1, 2))
    for view in ("c11_damaged", "c11_well"):
        lab.built_view(view, range(2), table="c11")
    store = lab.pipeline.ledger.store
    whole = store.read(paths.shard("c11_damaged", 0))
    assert whole is not None
    store.commit([Set(paths.shard("c11_damaged", 0), whole.data[: len(whole.data) // 2], -1)])
    lab.lose("c11", segment("s1", 1, 2, crc=2))
    lab.await_stale("c11_well", {1})
    damage = consistency.await_event("view_not_sweepable", view="c11_damaged")
    assert paths.shard("c11_damaged", 0) in damage["error"]
    store.commit([Set(paths.shard("c11_damaged", 0), whole.data, -1)])
    lab.await_stale("c11_damaged", {1})


@pytest.mark.scenario("C12")
def test_every_view_converges_after_every_topic_was_deleted_and_made_again(
    tmp_path: Path, zookeeper: ZooKeeperServer, kafka: KafkaServer
) -> None:
    """C12: changes before, in between and after. What Kafka lost the sweep finds, and no process needs a restart."""
    with pipeline_on(tmp_path, zookeeper, kafka, **SETTINGS) as pipeline:
        lab = Lab(pipeline)
        locations = {name: pipeline.table(name) for name in ("one", "two")}
        for name, location in locations.items():
            pipeline.view(f"{name}_hourly", name)
            for hour in range(4):
                write_parquet(location / f"s{hour}.parquet", hour, hour + 1)
        running = pipeline.start_all()
        for name in locations:
            pipeline.build_everything(f"{name}_hourly", up_to_hour=4)
        old = {name: crcs(pipeline, name) for name in locations}
        write_parquet(locations["one"] / "s1.parquet", 1, 2, value=2)
        delete_topics(pipeline)
        write_parquet(locations["two"] / "s2.parquet", 2, 3, value=2)
        (locations["one"] / "s3.parquet").unlink()
        lab.lose("one", "s3.parquet")
        make_topics(pipeline)
        write_parquet(locations["one"] / "s4.parquet", 4, 5)
        write_parquet(locations["two"] / "s4.parquet", 4, 5)
        for name, path, left in (("one", "s1.parquet", {0, 1, 2, 4}), ("two", "s2.parquet", {0, 1, 2, 3, 4})):
            await_registered(pipeline, name, {f"s{hour}.parquet" for hour in left}, replaced=(path, old[name][path]))
            pipeline.build_everything(f"{name}_hourly", up_to_hour=5, within_s=100)
            eventually(lambda view=f"{name}_hourly": converged(lab, view), within_s=60, what=f"{name} converged")  # type: ignore[misc]
        assert all(process.process.poll() is None for process in running.values())


def crcs(pipeline: Pipeline, table: str) -> dict[str, int]:
    return {name: found.crc for name, found in pipeline.ledger.registry.snapshot(table).by_name.items()}


def await_registered(pipeline: Pipeline, table: str, names: set[str], *, replaced: tuple[str, int]) -> None:
    """Wait until these files are registered, one of them with another content than it had."""
    path, old = replaced

    def registered() -> bool:
        found = crcs(pipeline, table)
        return found.keys() == names and found[path] != old

    eventually(registered, within_s=100, what=f"{table} registered as it is")


def converged(lab: Lab, view: str) -> bool:
    """Whether everything is VALID and right, working off what is not."""
    lab.pipeline.build_everything(view, up_to_hour=5)
    return lab.wrong(view) == []


def connection_of(pipeline: Pipeline) -> KafkaConnection:
    return KafkaConnection(pipeline.kafka.bootstrap, "test", namespace=pipeline.namespace)


def delete_topics(pipeline: Pipeline) -> None:
    admin = AdminClient({"bootstrap.servers": pipeline.kafka.bootstrap})
    names = [connection_of(pipeline).qualified(topic.name) for topic in ALL_TOPICS]
    for future in admin.delete_topics(names, operation_timeout=30).values():
        future.result()

    def gone() -> bool:
        return not set(names) & set(admin.list_topics(timeout=ANSWERED_WITHIN_S).topics)

    eventually(gone, what="the topics gone")


def make_topics(pipeline: Pipeline) -> None:
    """A name that is being deleted is refused for a moment."""

    def made() -> bool:
        try:
            ensure_topics(connection_of(pipeline), ALL_TOPICS, replication=1, timeout_s=10)
        except Unavailable:
            return False
        return True

    eventually(made, what="the topics made again")
