"""The ledger with 100,000 of everything: what a commit touches, what a window reads, how large nodes become."""

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from floodmark.core.buckets import DataFile
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.registry import Contents, Put, plan, rewritten_header
from floodmark.core.tables import TableDefinition, TableHeader
from floodmark.core.transitions import Build, Changed, Decision, Mode
from floodmark.ledger import codec, paths
from floodmark.ledger.store import NODE_BYTES_MAX, Check, Create, Node, Set, Store
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, segment, zookeeper_store
from tests.support.memory_store import MemoryStore, Watched

BUCKETS = 100_000
SEGMENTS = 100_000
GROUP = 1_000
DAY = 24


@dataclass
class ReadPaths(Watched):
    """Remembers which nodes were read."""

    paths: list[str] = field(default_factory=list)

    def read(self, path: str) -> Node | None:
        self.paths.append(path)
        return super().read(path)

    def read_many(self, wanted: Sequence[str]) -> list[Node | None]:
        self.paths += wanted
        return super().read_many(wanted)


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


def test_the_header_of_a_table_stays_small_however_many_slices_its_changes_touch() -> None:
    """Every append reads it, and one too large to write would end all registration. Hourly slices, filled at random."""
    definition = TableDefinition(TABLE.name, TABLE.location, TABLE.time_column, slice_span_ms=HOUR_MS)
    header, randomness = TableHeader(definition), random.Random(6)
    for batch in range(70):
        starts = [randomness.randrange(20 * 365 * DAY) for _ in range(500)]
        puts = [Put(segment(f"{batch}-{n}", start, start + 8)) for n, start in enumerate(starts)]
        header = rewritten_header(header, plan(definition.grid, Contents(), puts), Contents())
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
