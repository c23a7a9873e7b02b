"""What is larger than one write of the store: halved until it fits, and refused by name where it cannot be (INV-10)."""

import base64
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from floodmark.core.buckets import BUCKETS_PER_SHARD, DataFile, Mark, State
from floodmark.core.dispatch import Policy, Progress
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.registry import Put
from floodmark.core.segments import Segment
from floodmark.core.tables import RETENTION
from floodmark.core.transitions import Build, Changed, Mode, Reason, Rejected
from floodmark.ledger import codec, paths
from floodmark.ledger.dispatch import Failure, Offer
from floodmark.ledger.store import LIMITS, Check, Committed, Create, Set, Store, TooLarge
from tests.support.ledger_kit import HOUR_MS, TABLE, VIEW, Kit, cause, segment
from tests.support.memory_store import REQUEST_BYTES_MAX, MemoryStore, ReadPaths, Watched, request_bytes

DAY = 24
GROUP = 1_024


def text(randomness: random.Random, size: int) -> str:
    """Text that hardly compresses."""
    return base64.urlsafe_b64encode(randomness.randbytes(size)).decode()[:size]


def builds_of(kit: Kit, hours: range, *, files: int, name_bytes: int = 60) -> list[Build]:
    """What workers would make of these buckets: this many files each, under names that do not compress."""
    windows = [Interval(h * HOUR_MS, (h + 1) * HOUR_MS) for h in hours]
    randomness = random.Random(1)
    return [
        Build(
            start_ms=read.window.start_ms,
            mode=Mode.APPEND,
            attempt_id=f"a-{read.window.start_ms}",
            fingerprint=read.source.fingerprint,
            slice_versions=read.source.slice_versions,
            definition_hash="h1",
            built_at_ms=1,
            files=tuple(DataFile(text(randomness, name_bytes), 1, 1) for _ in range(files)),
        )
        for read in kit.ledger.registry.read_windows("rides", windows)
    ]


@pytest.mark.scenario("K12")
def test_a_group_commit_over_more_shards_than_one_write_holds_is_halved_until_it_fits(store: Store) -> None:
    """1,024 buckets in 128 shards, about 12 kB each: every bucket VALID, the watermark over all of the run."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    hours = range(0, GROUP * 32, 32)
    kit.put(segment("all", 0, hours[-1] + 1))
    builds = builds_of(kit, hours, files=40)
    before = len(watched.commits)
    decisions = kit.commit(*builds)
    assert [type(decisions[hour]) for hour in hours] == [Changed] * GROUP
    assert {kit.state(hour) for hour in (hours[0], hours[GROUP // 2], hours[-1])} == {State.VALID}
    writes = watched.commits[before:]
    assert 2 <= len(writes) <= 8, "as few writes as fit, not one for each shard"
    assert max(map(request_bytes, writes)) < REQUEST_BYTES_MAX
    assert kit.source_differs() == []


@pytest.mark.scenario("K12")
def test_one_bucket_that_is_too_large_by_itself_is_rejected_by_name_and_the_others_are_committed(store: Store) -> None:
    """So that it is counted as failed, backs off and is quarantined, instead of coming again for ever (INV-10)."""
    kit = Kit(store)
    kit.set_up()
    kit.put(segment("all", 0, 4))
    small, huge = builds_of(kit, range(2), files=1), builds_of(kit, range(2, 3), files=3_000, name_bytes=400)
    last = builds_of(kit, range(3, 4), files=1)
    decisions = kit.commit(*small, *huge, *last)
    refused = decisions[2]
    assert isinstance(refused, Rejected)
    assert refused.reason is Reason.TOO_LARGE
    assert paths.shard(VIEW.name, 0) in refused.detail
    assert f"at most {LIMITS.shard_bytes} are allowed" in refused.detail
    assert kit.states() == {0: "VALID", 1: "VALID", 3: "VALID"}
    assert kit.watermark_hour == 2


@pytest.mark.scenario("K12")
def test_a_full_shard_can_be_marked_and_its_buckets_be_made_valid_again(store: Store) -> None:
    """Commits leave room for the largest causes, and a cause does not count against a rebuild (INV-7)."""
    kit = Kit(store)
    kit.set_up()
    kit.put(segment("all", 0, BUCKETS_PER_SHARD))
    full = kit.commit(*builds_of(kit, range(BUCKETS_PER_SHARD), files=30))
    assert [type(d) for d in full.values()] == [Changed] * BUCKETS_PER_SHARD
    randomness = random.Random(2)
    marks = [
        Mark(
            IntervalSet.of([Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS)]),
            cause(text(randomness, 256), place=text(randomness, 290), segments=(text(randomness, 1_024),)),
        )
        for hour in range(BUCKETS_PER_SHARD)
    ]
    assert len(kit.ledger.views.mark(VIEW.name, marks).invalidated) == BUCKETS_PER_SHARD
    node = store.read(paths.shard(VIEW.name, 0))
    assert node is not None
    assert len(node.data) > LIMITS.shard_bytes, "this tests nothing unless the causes fill more than commits may"
    again = [
        replace(b, mode=Mode.OVERWRITE, attempt_id=f"again-{b.start_ms}") for b in builds_of(kit, range(3), files=31)
    ]
    assert [type(d) for d in kit.commit(*again).values()] == [Changed] * 3


def filled(last_name_bytes: int) -> tuple[Kit, list[Build], bool]:
    """A shard whose buckets have a file each, and whether the last bucket still fits."""
    kit = Kit(MemoryStore())
    kit.set_up()
    kit.put(segment("all", 0, BUCKETS_PER_SHARD))
    builds = builds_of(kit, range(BUCKETS_PER_SHARD), files=1, name_bytes=2_500)
    builds[-1] = replace(builds[-1], files=(DataFile(text(random.Random(3), last_name_bytes), 1, 1),))
    return kit, builds, all(isinstance(d, Changed) for d in kit.commit(*builds).values())


@pytest.mark.scenario("K12")
def test_a_bucket_of_a_shard_that_is_full_to_the_last_byte_is_built_again() -> None:
    """INV-10: with no more files than before, whatever its other numbers take; and with more it is rejected."""
    fits, too_large = 1, 500_000
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        fits, too_large = (middle, too_large) if filled(middle)[2] else (fits, middle)
    kit, builds, _ = filled(fits)
    kit.ledger.views.mark_stale(VIEW.name, None, cause())
    again = replace(builds[0], mode=Mode.OVERWRITE, attempt_id="an attempt under a longer name", built_at_ms=10**12)
    more = replace(again, files=(*again.files, DataFile("one more", 1, 1)))
    (rejected,) = kit.commit(more).values()
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.TOO_LARGE
    assert [type(d) for d in kit.commit(again).values()] == [Changed]


@pytest.mark.scenario("K12")
def test_a_mark_over_more_shards_than_one_write_holds_marks_them_all(store: Store) -> None:
    """100 full shards of more than 12 kB each, one mark."""
    kit = Kit(store)
    kit.set_up()
    hours = range(0, 100 * BUCKETS_PER_SHARD, BUCKETS_PER_SHARD)
    kit.put(segment("all", 0, hours[-1] + 1))
    kit.commit(*builds_of(kit, hours, files=250))
    marked = kit.ledger.views.mark_stale(VIEW.name, [Interval(0, (hours[-1] + 1) * HOUR_MS)], cause())
    assert marked.invalidated == tuple(hour * HOUR_MS for hour in hours)


@pytest.mark.scenario("K12")
def test_dispatch_records_with_the_longest_errors_fit_into_one_shard(store: Store) -> None:
    """256 buckets that fail with errors in letters of four bytes: each keeps the beginning of its error."""
    kit = Kit(store)
    header = kit.set_up()
    policy, randomness = Policy(tries_max=1), random.Random(1)
    hours = range(BUCKETS_PER_SHARD)
    task_ids = {h * HOUR_MS: text(randomness, 250) for h in hours}
    kit.ledger.dispatch.offer(header, [Offer(s, t, "live") for s, t in task_ids.items()], alive=(), policy=policy)
    errors = {s: "".join(chr(randomness.randrange(0x1F300, 0x1F600)) for _ in range(4_000)) for s in task_ids}
    failures = {s: Failure(t, errors[s]) for s, t in task_ids.items()}
    assert kit.ledger.dispatch.fail_all(header, failures, policy=policy) == set(task_ids)
    records = kit.ledger.dispatch.records(VIEW.name)
    assert {r.progress for r in records.values()} == {Progress.QUARANTINED}
    assert all(len(r.error) > 200 and errors[s].startswith(r.error) for s, r in records.items())


@pytest.mark.scenario("K12")
def test_registrations_with_the_longest_names_and_paths_are_halved_until_they_fit(store: Store) -> None:
    """Commands too large together become several registry versions, each with its event; none is lost or doubled."""
    kit = Kit(store)
    kit.set_up()
    randomness = random.Random(1)
    made = [
        replace(segment(text(randomness, 1_000), n % DAY, n % DAY + 1), path=text(randomness, 4_000))
        for n in range(400)
    ]
    outcomes = kit.ledger.registry.apply("rides", [Put(s) for s in made])
    versions = [outcome.result.version for outcome in outcomes]
    assert len(versions) >= 2
    assert versions == list(range(1, len(versions) + 1))
    events = kit.ledger.registry.outbox("rides")
    assert [event.version for event in events] == versions
    assert sorted(c.name for event in events for c in event.changes) == sorted(s.name for s in made)
    found = kit.ledger.registry.read_window("rides", Interval(0, DAY * HOUR_MS))
    assert found.segments == {s.name: s for s in made}
    kit.remove(*(s.name for s in made))
    assert kit.ledger.registry.header("rides").segment_count == 0


@pytest.mark.scenario("K12")
def test_a_retirement_that_is_too_large_goes_in_parts(store: Store) -> None:
    """Each condemns what fits; the next call goes on."""
    kit = Kit(store)
    kit.ledger.registry.create_table(replace(TABLE, properties={RETENTION: "1 day"}))
    randomness = random.Random(1)
    made = [
        replace(segment(text(randomness, 1_000), n % DAY, n % DAY + 1), path=text(randomness, 4_000))
        for n in range(400)
    ]
    kit.ledger.registry.apply("rides", [Put(s) for s in made])
    rounds = 0
    while kit.ledger.retention.retire("rides", before_ms=2 * DAY * HOUR_MS, batch_max=1_000):
        rounds += 1
    assert rounds >= 2
    assert kit.ledger.retention.condemned_paths("rides") == {s.path for s in made}


@pytest.mark.scenario("K12")
def test_a_single_command_that_cannot_fit_is_refused_with_the_node_and_its_size() -> None:
    """A path of a megabyte: nothing is registered, and the error says what would have been how large."""
    kit = Kit(MemoryStore())
    kit.set_up()
    huge = replace(segment("huge", 0, 1), path=text(random.Random(1), 1_500_000))
    with pytest.raises(TooLarge, match=r"would have \d+ bytes, at most \d+ are allowed") as refusal:
        kit.put(segment("before", 0, 1), huge)
    assert refusal.value.path.startswith(paths.table("rides"))
    assert refusal.value.size_bytes > LIMITS.node_bytes
    assert set(kit.ledger.registry.snapshot("rides").by_name) == {"before"}, (
        "what comes before it in the batch is there"
    )


# -- slices that fill ----------------------------------------------------------------------------------------------


def names_of(prefix: str, count: int, size: int = 40) -> list[str]:
    randomness = random.Random(prefix)
    return [f"{prefix}-{n:06d}-{text(randomness, size)}" for n in range(count)]


def written_before_there_were_parts(store: Store, key: str, listed: Sequence[Segment], *, version: int) -> None:
    """A slice as the version before wrote it: one node, however large."""
    rows = [[s.name, s.crc, s.start_ms, s.last_ms, s.path, s.rows, s.bytes, s.stamp, s.timeless_rows] for s in listed]
    data = b"\x02" + codec.pack({"at": version, "segments": rows})[1:]
    path = paths.slice_("rides", key)
    node = store.read(path)
    op = Create(path, data) if node is None else Set(path, data, node.version)
    assert isinstance(store.commit([op]), Committed)


def full_days(store: Store, days: int, *, also_in_all: Sequence[Segment] = (), a_day: int = 5_000) -> list[Segment]:
    """A table as it was when its slices were full: 5,000 segments a day in one node of about half a megabyte each."""
    listed: list[Segment] = list(also_in_all)
    for day in range(days):
        own = [segment(name, day * DAY, day * DAY + 1) for name in names_of(f"d{day}", a_day, 60)]
        written_before_there_were_parts(store, str(day * DAY * HOUR_MS), [*own, *also_in_all], version=1)
        listed += own
    node = store.read(paths.table("rides"))
    assert node is not None
    header = codec.decode_table(node.data, what="header")
    lasts = [s.last_ms for s in listed if s.last_ms is not None]
    full = replace(header, version=1, min_start_ms=0, max_last_ms=max(lasts), segment_count=len(listed))
    assert isinstance(store.commit([Set(paths.table("rides"), codec.encode_table(full), node.version)]), Committed)
    return listed


@pytest.mark.scenario("I9")
def test_slices_that_were_full_before_there_were_parts_take_further_segments(store: Store) -> None:
    """An upgrade: read as they are, cut by the first write that touches them, one at a time where need be."""
    kit = Kit(store)
    kit.set_up()
    across = segment("across", 0, 8 * DAY)
    listed = full_days(store, 8, also_in_all=[across])
    window = Interval(3 * DAY * HOUR_MS, 4 * DAY * HOUR_MS)
    old = kit.ledger.registry.read_window("rides", window)
    assert len(old.segments) == 5_001
    kit.append(0)
    again = replace(across, crc=2)
    kit.put(segment("late", 0, 1), again)  # all eight slices together are four times what a write may be
    kit.remove("across")
    assert kit.ledger.registry.snapshot("rides").by_name.keys() == {s.name for s in listed} - {"across"} | {"late"}
    fresh = Kit(store, seed=9).ledger.registry
    assert fresh.snapshot("rides").by_name.keys() == kit.ledger.registry.snapshot("rides").by_name.keys()
    assert len(fresh.read_window("rides", window).segments) == 5_000
    assert fresh.header("rides").segment_count == 40_001
    assert sum(len(event.changes) for event in fresh.outbox("rides")) == 3, "cutting is no change of a segment"
    assert kit.source_differs() == [0], "the bucket that was built before is seen to be another one now"


@pytest.mark.scenario("I9")
def test_what_was_listed_before_there_were_parts_is_retired_when_its_time_comes(store: Store) -> None:
    """The slices of a single segment are four times what a write may be: they are cut first, as by any other change."""
    kit = Kit(store)
    kit.ledger.registry.create_table(replace(TABLE, properties={RETENTION: "1d"}))
    in_all = [segment(name, 0, 8 * DAY) for name in names_of("s", 5_000, 60)]
    listed = full_days(store, 8, also_in_all=in_all, a_day=0)
    gone: set[str] = set()
    for _ in range(2):
        retired = kit.ledger.retention.retire("rides", before_ms=9 * DAY * HOUR_MS, batch_max=500)
        assert retired is not None
        gone |= {change.name for change in retired.changes}
    assert len(gone) > 100, "once the slices are cut, many go at once"
    assert kit.ledger.registry.snapshot("rides").by_name.keys() == {s.name for s in listed} - gone
    assert kit.ledger.retention.condemned_paths("rides") == {f"{name}.parquet" for name in gone}


@pytest.mark.scenario("I9")
def test_a_reader_that_remembers_a_slice_follows_its_parts(store: Store) -> None:
    """Its snapshot reads only the parts that were written since, and is the same as a fresh one."""
    kit, peer = Kit(store), Kit(store, seed=2)
    kit.set_up()
    made = [segment(name, 0, 1) for name in names_of("s", 3_000)]
    for n in range(0, 3_000, 500):
        peer.put(*made[n : n + 500])
        kit.ledger.registry.snapshot("rides")
    reads = ReadPaths(store)
    reader = Kit(reads, seed=3)
    reader.ledger.registry.snapshot("rides")
    reads.paths.clear()
    peer.put(replace(made[0], crc=5))
    snapshot = reader.ledger.registry.snapshot("rides")
    assert snapshot.by_name[made[0].name].crc == 5
    parts = [path for path in reads.paths if path.startswith(paths.slice_("rides", "0") + "/")]
    assert len(parts) == 1, "the part that changed, and no other"
    fresh = Kit(store, seed=4).ledger.registry.snapshot("rides")
    assert dict(snapshot.by_name) == dict(fresh.by_name)
    assert dict(snapshot.slices) == dict(fresh.slices)
    assert len(fresh.slices["0"].parts) > 5


@pytest.mark.scenario("I9")
def test_a_commit_into_a_split_slice_checks_one_node_and_records_one_version(store: Store) -> None:
    """However many parts: the slice's own node stands for all of them."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up()
    kit.put(*(segment(name, 0, 1) for name in names_of("s", 2_000)))
    build = kit.build(0)
    assert build.fingerprint.count == 2_000
    assert build.slice_versions.keys() == {"0", "wide"}
    assert isinstance(kit.commit_one(build), Changed)
    (ops,) = watched.commits[-1:]
    assert [op.path for op in ops if isinstance(op, Check) and "/slices/" in op.path] == [
        paths.slice_("rides", "0"),
        paths.slice_("rides", "wide"),
    ]
    late = kit.build(1)
    kit.put(segment("late", 1, 2))
    assert isinstance(kit.commit_one(late), Rejected)
