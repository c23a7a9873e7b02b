"""The ledger at its limits: full slices, full shards, 1,000 files a bucket, names of 1,000 bytes, groups of 1,024,
stretches between shards that are full.

Text is drawn so that it hardly compresses, and sizes so that much of it is just below or above what one write or one
node takes. Whatever happens: no request is larger than the store takes, nothing that fits is refused, and what is
refused is refused by name and leaves everything else as it should be.
"""

import base64
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from floodmark.core.buckets import DataFile, State
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.registry import Put
from floodmark.core.segments import Segment
from floodmark.core.transitions import Build, Changed, Mode, Reason, Rejected
from floodmark.ledger.store import LIMITS, Store
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.ledger_kit import HOUR_MS, VIEW, Kit, cause, segment, zookeeper_store
from tests.support.memory_store import REQUEST_BYTES_MAX, MemoryStore, Watched, request_bytes

GROUP_MAX = 1_024
NAME_BYTES_MAX = 1_000
FILES_MAX = 1_000
DAY = 24
FILE_OVERHEAD_BYTES = 16
"""Of an entry's file beside its name, when nothing compresses."""

seeds = st.integers(0, 2**32)
spans = st.sampled_from([1, 1, 3, DAY, 6 * DAY, 60 * DAY])
"""In hours: within a slice, over a boundary, over seven slices, wide."""


def text(dice: random.Random, size: int) -> str:
    return base64.urlsafe_b64encode(dice.randbytes(size)).decode()[:size]


@st.composite
def batches(draw: st.DrawFn) -> list[list[Segment]]:
    """Batches of segments: new ones, and ones that replace or move what is there already, in and out of `wide`."""
    dice = random.Random(draw(seeds))
    name_bytes = draw(st.sampled_from([20, 200, NAME_BYTES_MAX]))
    names = [f"{n:05d}-{text(dice, name_bytes - 6)}" for n in range(draw(st.sampled_from([50, 700, 1_500])))]
    made = []
    for _ in range(draw(st.integers(1, 3))):
        span, first = draw(spans), draw(st.integers(0, DAY))
        chosen = dice.sample(names, draw(st.integers(1, min(600, len(names)))))
        made.append([_segment(dice, name, first, span) for name in chosen])
    return made


def full(span: int) -> list[list[Segment]]:
    """More of the longest names than one node takes, all in one slice: a day's, or `wide`."""
    dice = random.Random(span)
    names = [f"{n:05d}-{text(dice, NAME_BYTES_MAX - 6)}" for n in range(1_800)]
    return [[segment(name, 0, span) for name in names[n : n + 600]] for n in range(0, len(names), 600)]


def _segment(dice: random.Random, name: str, first: int, span: int) -> Segment:
    drawn = replace(segment(name, first, first + span, crc=dice.randrange(1, 4)), path=f"p/{name}")
    return drawn if dice.random() > 0.02 else replace(drawn, start_ms=None, last_ms=None)


def registrations_at_the_limits(store: Store, listed: Sequence[Sequence[Segment]]) -> None:
    watched = Watched(store)
    kit, peer = Kit(watched), Kit(store, seed=2)
    kit.set_up()
    model: dict[str, Segment] = {}
    for batch in listed:
        kit.ledger.registry.apply("rides", [Put(s) for s in batch])
        model |= {s.name: s for s in batch}
        assert dict(peer.ledger.registry.snapshot("rides").by_name) == model, "a peer that follows sees the same"
    assert max(map(request_bytes, watched.commits)) < REQUEST_BYTES_MAX
    fresh = Kit(store, seed=3).ledger.registry
    assert dict(fresh.snapshot("rides").by_name) == model
    assert fresh.header("rides").segment_count == len(model)
    for hour in (0, DAY - 1, DAY, 7 * DAY):
        window = Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS)
        expected = {name: s for name, s in model.items() if s.overlaps(window)}
        for registry in (fresh, kit.ledger.registry):
            assert registry.read_window("rides", window).source.fingerprint == fingerprint(expected.values())
    events = [(c.name, c.crc) for event in fresh.outbox("rides") for c in event.changes]
    assert dict(events) == {name: s.crc for name, s in model.items()}, "the last event of each tells what it is"
    kit.remove(*model)
    assert dict(Kit(store, seed=4).ledger.registry.snapshot("rides").by_name) == {}


@st.composite
def groups(draw: st.DrawFn) -> dict[int, tuple[int, int]]:
    """Buckets, by hour, with how many files under names of how many bytes: up to 1,024, close together or apart."""
    dice = random.Random(draw(seeds))
    count = draw(st.sampled_from([1, 64, 300, GROUP_MAX]))
    step = draw(st.sampled_from([1, 7, 64]))
    large = draw(st.sampled_from([0, 1, 5]))
    plain = (draw(st.sampled_from([1, 8])), draw(st.sampled_from([20, 60])))
    made = {hour * step: plain for hour in range(count)}
    for hour in dice.sample(sorted(made), min(large, count)):
        made[hour] = (FILES_MAX, draw(st.sampled_from([40, 300, NAME_BYTES_MAX])))
    return made


def groups_at_the_limits(store: Store, group: dict[int, tuple[int, int]]) -> None:
    watched = Watched(store)
    kit = Kit(watched)
    incarnation = kit.set_up().incarnation
    kit.put(segment("all", 0, max(group) + 1))
    dice = random.Random(len(group))
    builds = list(_builds(kit, dice, group))
    decisions = kit.commit(*builds, incarnation=incarnation)
    refused = {hour for hour, d in decisions.items() if isinstance(d, Rejected)}
    for hour in refused:
        decision = decisions[hour]
        assert isinstance(decision, Rejected)
        assert decision.reason is Reason.TOO_LARGE
        assert "/shards/" in decision.detail
    _only_what_does_not_fit_is_refused(group, refused)
    entries = kit.ledger.views.state(VIEW.name).entries
    built = {b.start_ms // HOUR_MS: b.files for b in builds if b.start_ms // HOUR_MS not in refused}
    assert {start // HOUR_MS: e.files for start, e in entries.items() if e.state is State.VALID} == built
    marked = kit.ledger.views.mark_stale(VIEW.name, None, cause(segments=(text(dice, NAME_BYTES_MAX),)))
    assert len(marked.invalidated) == len(built), "whatever was committed can be marked"
    if built:
        hour = min(built)
        again = replace(kit.build(hour, Mode.OVERWRITE, "again"), files=built[hour])
        assert isinstance(kit.commit(again, incarnation=incarnation)[hour], Changed), "and be made VALID again"
    assert max(map(request_bytes, watched.commits)) < REQUEST_BYTES_MAX


def _builds(kit: Kit, dice: random.Random, group: dict[int, tuple[int, int]]) -> Iterator[Build]:
    windows = [Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS) for hour in group]
    for read, (files, size) in zip(kit.ledger.registry.read_windows("rides", windows), group.values(), strict=True):
        yield Build(
            start_ms=read.window.start_ms,
            mode=Mode.APPEND,
            attempt_id=f"a{read.window.start_ms}",
            fingerprint=read.source.fingerprint,
            slice_versions=read.source.slice_versions,
            definition_hash="h1",
            built_at_ms=1,
            files=tuple(DataFile(text(dice, size), 1, 1) for _ in range(files)),
        )


def _only_what_does_not_fit_is_refused(group: dict[int, tuple[int, int]], refused: set[int]) -> None:
    """Text takes at least three quarters of its length: by that, a shard with a refused bucket is too full with it."""
    by_shard: dict[int, int] = {}
    for hour, (files, size) in group.items():
        by_shard[hour // 256] = by_shard.get(hour // 256, 0) + files * (size + FILE_OVERHEAD_BYTES) + 200
    for hour in refused:
        assert by_shard[hour // 256] > LIMITS.shard_bytes, f"hour {hour} is refused, though its shard had room"


ISLAND_SHARDS = 4
"""From one island to the next: its own shard, and three without a source."""


@st.composite
def islands(draw: st.DrawFn) -> list[int]:
    """How many KB of files are in the shard of each island."""
    sizes = draw(st.lists(st.sampled_from([1, 30, 200, 450]), min_size=1, max_size=4))
    return (sizes * 40)[: draw(st.sampled_from([2, 5, 40]))]


def settlements_at_the_limits(store: Store, sizes_kb: Sequence[int]) -> None:
    """A new view over islands, then a refresh of all of it: what has no source becomes VALID-empty, without a task."""
    watched = Watched(store)
    kit = Kit(watched)
    incarnation = kit.set_up().incarnation
    firsts = [n * ISLAND_SHARDS * 256 for n in range(len(sizes_kb))]
    kit.put(*(segment(f"s{first}", first, first + 1) for first in firsts))
    dice = random.Random(len(sizes_kb))
    for first, size_kb in zip(firsts, sizes_kb, strict=True):
        (build,) = _builds(kit, dice, {first: (size_kb, NAME_BYTES_MAX)})
        assert isinstance(kit.commit(build, incarnation=incarnation)[first], Changed)
    _settle(kit)
    built = set(firsts)
    assert kit.states() == dict.fromkeys(range(firsts[-1] + 1), "VALID")
    assert kit.watermark_hour == firsts[-1] + 1
    kit.ledger.views.mark_stale(VIEW.name, None, cause(segments=(text(dice, NAME_BYTES_MAX),)))
    _settle(kit)
    assert {hour for hour, state in kit.states().items() if state == "STALE"} == built, "only these have to be built"
    assert kit.source_differs() == []
    assert max(map(request_bytes, watched.commits)) < REQUEST_BYTES_MAX


def _settle(kit: Kit) -> None:
    """As the scheduler does, until nothing is left: each time with the shards beside runs."""
    while True:
        runs = kit.ledger.views.state(VIEW.name).runs
        beside = {n for run in runs for n in (run.first - 1, run.end)}
        end_ms = kit.ledger.registry.header("rides").max_last_ms
        assert end_ms is not None
        settled = kit.ledger.views.settle(VIEW.name, kit.header.incarnation, end_ms=end_ms + 1, beside=beside)
        assert settled.given_up == ()
        if not settled.empty and not settled.opened:
            return


def tens_of(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.scenario("I9", "K12")
@given(batches())
@example(full(1))
@example(full(60 * DAY))
@tens_of(15)
def test_registrations_of_any_size_are_all_there(listed: list[list[Segment]]) -> None:
    registrations_at_the_limits(MemoryStore(), listed)


@pytest.mark.scenario("K12")
@given(groups())
@tens_of(15)
def test_groups_of_any_size_are_committed_but_for_what_cannot_fit(group: dict[int, tuple[int, int]]) -> None:
    groups_at_the_limits(MemoryStore(), group)


@pytest.mark.scenario("K12", "K13")
@given(islands())
@example([450] * 2)
@example([30] * 40)
@tens_of(6)
def test_stretches_between_shards_of_any_size_are_settled(sizes_kb: list[int]) -> None:
    settlements_at_the_limits(MemoryStore(), sizes_kb)


@pytest.mark.stack
@pytest.mark.scenario("I9", "K12")
def test_sizes_at_the_limits_on_zookeeper(zookeeper: ZooKeeperServer) -> None:
    """The same on the real thing, a few times: it is its own limit that counts."""

    @given(batches(), groups(), islands())
    @tens_of(3)
    def on_zookeeper(listed: list[list[Segment]], group: dict[int, tuple[int, int]], sizes_kb: list[int]) -> None:
        for act, drawn in (
            (registrations_at_the_limits, listed),
            (groups_at_the_limits, group),
            (settlements_at_the_limits, sizes_kb),
        ):
            with zookeeper_store(f"{zookeeper.hosts}/{uuid.uuid4().hex}") as store:
                act(store, drawn)  # type: ignore[operator]

    on_zookeeper()


def test_a_name_that_is_longer_than_allowed_is_refused_before_any_write() -> None:
    with pytest.raises(InvalidInput, match="segment-name"):
        segment("x" * 1_025, 0, 1)
