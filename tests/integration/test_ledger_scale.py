"""The ledger with 100,000 of everything: what a commit touches, what a window reads, how large nodes become."""

import random
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from floodmark.core.buckets import DataFile
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.registry import Contents, Put, plan, rewritten_header
from floodmark.core.tables import TableDefinition, TableHeader
from floodmark.core.transitions import Build, Changed, Decision, Mode, Rejected
from floodmark.ledger import codec, paths
from floodmark.ledger.store import NODE_BYTES_MAX, Check, Create, Node, Set, Store
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, segment, zookeeper_store
from tests.support.memory_store import REQUEST_BYTES_MAX, MemoryStore, ReadPaths, Watched, request_bytes

BUCKETS = 100_000
SEGMENTS = 100_000
GROUP = 1_000
DAY = 24


@pytest.fixture
def real_store(zookeeper: ZooKeeperServer) -> Iterator[Store]:
    """ZooKeeper only: the sizes that count are its own."""
    with zookeeper_store(f"{zookeeper.hosts}/{uuid.uuid4().hex}") as made:
        yield made


def every_node(store: Store, path: str = "/floodmark") -> Iterator[tuple[str, Node]]:
    node = store.read(path)
    assert node is not None
    yield path, node
    for name in store.children(path):
        yield from every_node(store, f"{path}/{name}")


def build_group(kit: Kit, first: int, count: int) -> list[Build]:
    """What workers would make of neighbouring buckets, from one read of their source."""
    windows = [Interval(h * HOUR_MS, (h + 1) * HOUR_MS) for h in range(first, first + count)]
    return [
        Build(
            start_ms=read.window.start_ms,
            mode=Mode.APPEND,
            attempt_id=f"{first}-{n}",
            fingerprint=read.source.fingerprint,
            slice_versions=read.source.slice_versions,
            definition_hash="h1",
            built_at_ms=n,
            files=(DataFile(f"{first}/{n:05d}.parquet", 1_000, 50_000),),
        )
        for n, read in enumerate(kit.ledger.registry.read_windows("rides", windows))
    ]


@pytest.mark.stack
@pytest.mark.scenario("L16")
def test_a_commit_into_a_view_of_100_000_buckets_touches_one_shard(real_store: Store) -> None:
    """Built by group commits; then one append and one refresh. No node comes near the limit."""
    watched = Watched(real_store)
    kit = Kit(watched)
    incarnation = kit.set_up().incarnation
    kit.put(*(segment(f"d{d:05d}", d * DAY, (d + 1) * DAY) for d in range(BUCKETS // DAY + 1)))
    for first in range(0, BUCKETS, GROUP):
        kit.ledger.views.commit(VIEW.name, incarnation, build_group(kit, first, GROUP))
    assert kit.watermark_hour == BUCKETS
    sizes = {path: len(node.data) for path, node in every_node(real_store)}
    assert len([p for p in sizes if p.startswith(paths.shards(VIEW.name))]) == BUCKETS // 256 + 2  # and their parent
    assert max(sizes.values()) < NODE_BYTES_MAX, max(sizes, key=sizes.__getitem__)
    assert _shards_written(watched, lambda: kit.append(BUCKETS, "one more")) == [paths.shard(VIEW.name, 390)]
    middle = BUCKETS // 2
    kit.mark(middle)
    assert _shards_written(watched, lambda: kit.refresh(middle, "again")) == [paths.shard(VIEW.name, middle // 256)]
    (ops,) = watched.commits[-1:]
    assert sum(isinstance(op, Check) for op in ops) == 3, "the fence, the bucket's slice and the wide one"


def _shards_written(watched: Watched, act: Callable[[], Decision]) -> list[str]:
    before = len(watched.commits)
    assert isinstance(act(), Changed)
    (ops,) = watched.commits[before:]
    return [op.path for op in ops if isinstance(op, Set | Create) and op.path.startswith(paths.shards(VIEW.name))]


@pytest.mark.stack
@pytest.mark.scenario("I6")
def test_one_windows_fingerprint_reads_only_its_slices(real_store: Store) -> None:
    """100,000 segments in 1,000 slices: the table's header, the window's slice and the wide one are read."""
    kit = Kit(real_store)
    kit.set_up()
    by_slice = SEGMENTS // 1_000
    segments = [
        segment(f"s{d:04d}-{n:03d}", d * DAY + n * DAY / by_slice, d * DAY + (n + 1) * DAY / by_slice)
        for d in range(1_000)
        for n in range(by_slice)
    ]
    kit.put(*segments)
    assert kit.ledger.registry.header("rides").segment_count == SEGMENTS
    reader = ReadPaths(real_store)
    window = Interval(700 * DAY * HOUR_MS, (700 * DAY + 1) * HOUR_MS)
    read = Kit(reader, seed=2).ledger.registry.read_window("rides", window)
    assert reader.paths == [
        paths.table("rides"),
        paths.slice_("rides", str(window.start_ms)),
        paths.slice_("rides", "wide"),
    ]
    assert reader.commits == []
    assert read.source.fingerprint == fingerprint(s for s in segments if s.overlaps(window))
    assert read.source.fingerprint.count > 1
    assert max(len(node.data) for _, node in every_node(real_store)) < NODE_BYTES_MAX


@pytest.mark.stack
@pytest.mark.scenario("I9")
@pytest.mark.parametrize(
    ("first_hours", "hours"), [(range(24), 1), (range(0, 24 * 30, 24), 24 * 60)], ids=["day", "wide"]
)
def test_100_000_files_in_one_slice_are_registered_read_and_committed(
    real_store: Store, first_hours: range, hours: int
) -> None:
    """In one day, or each over two months and so all of them wide. Figures: docs/adr/0014."""
    watched = Watched(real_store)
    kit = Kit(watched)
    kit.set_up()
    segments = [
        segment(f"part-{n:06d}-{n * 7919 % 100_003:08x}.parquet", (h := first_hours[n % len(first_hours)]), h + hours)
        for n in range(SEGMENTS)
    ]
    started_s = time.perf_counter()
    kit.put(*segments)
    registered_s = time.perf_counter() - started_s
    writes = list(watched.commits)
    assert kit.ledger.registry.header("rides").segment_count == SEGMENTS
    assert max(map(request_bytes, writes)) < REQUEST_BYTES_MAX // 4, "a write costs what it adds, not what is there"
    window = Interval(first_hours[-1] * HOUR_MS, (first_hours[-1] + 1) * HOUR_MS)
    reader = Kit(real_store, seed=2)
    started_s = time.perf_counter()
    read = reader.ledger.registry.read_window("rides", window)
    cold_s = time.perf_counter() - started_s
    assert read.source.fingerprint == fingerprint(s for s in segments if s.overlaps(window))
    assert len(read.source.slice_versions) == 2
    started_s = time.perf_counter()
    assert reader.ledger.registry.read_window("rides", window).source == read.source
    warm_s = time.perf_counter() - started_s
    outdated = kit.build(first_hours[-1])
    started_s = time.perf_counter()
    kit.put(segment("late", first_hours[-1], first_hours[-1] + hours))
    one_more_s = time.perf_counter() - started_s
    assert isinstance(kit.commit_one(outdated), Rejected), "the commit sees the file that came last"
    started_s = time.perf_counter()
    assert isinstance(kit.append(first_hours[-1], "whole"), Changed)
    built_s = time.perf_counter() - started_s
    assert kit.source_differs() == []
    assert max(len(node.data) for _, node in every_node(real_store)) < NODE_BYTES_MAX // 4
    print(  # noqa: T201 - pytest -rP shows it
        f"registering {registered_s:.1f} s, one more {one_more_s * 1000:.0f} ms; "
        f"the window of {len(read.segments)} files {cold_s * 1000:.0f} ms, again {warm_s * 1000:.0f} ms; "
        f"reading it and committing {built_s * 1000:.0f} ms"
    )


def test_the_header_of_a_table_stays_small_however_many_slices_its_changes_touch() -> None:
    """Every append reads it, and one too large to write would end all registration. Hourly slices, filled at random."""
    definition = TableDefinition(TABLE.name, TABLE.location, TABLE.time_column, slice_span_ms=HOUR_MS)
    header, randomness = TableHeader(definition), random.Random(6)
    for batch in range(70):
        starts = [randomness.randrange(20 * 365 * DAY) for _ in range(500)]
        puts = [Put(segment(f"{batch}-{n}", start, start + 8)) for n, start in enumerate(starts)]
        header = rewritten_header(
            header, plan(definition.grid, Contents(), puts, version=header.version + 1), Contents()
        )
    assert len(codec.encode_table(header)) < NODE_BYTES_MAX // 4
    assert header.touched_since(header.version - 1), "a cache one change behind still reads only what moved"
    assert header.touched_since(header.version - 60) is None


@pytest.mark.parametrize("behind", [1, 7, 8, 9, 20])
def test_a_cache_behind_large_changes_catches_up(behind: int) -> None:
    """Whether the header still names the slices of those changes or not."""
    store = MemoryStore()
    kit, peer = Kit(store), Kit(store, seed=2)
    kit.set_up()
    kit.ledger.registry.snapshot("rides")
    for batch in range(behind):
        peer.put(*(segment(f"{batch}-{n}", n * DAY, (n + 1) * DAY) for n in range(500)))
    assert len(kit.ledger.registry.snapshot("rides").by_name) == 500 * behind
