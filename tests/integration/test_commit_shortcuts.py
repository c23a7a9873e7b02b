"""What a commit takes on trust to spare a read is checked in its write, on the store in memory and on ZooKeeper."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from floodmark.core.buckets import State
from floodmark.core.segments import WIDE, Segment
from floodmark.core.transitions import Changed, Mode, Reason, Rejected
from floodmark.ledger.store import Store
from tests.support.ledger_kit import Kit, segment
from tests.support.memory_store import Watched


@pytest.mark.parametrize(
    ("left_out", "late"), [("0", segment("late", 1.5, 2)), (WIDE, segment("late and long", 1, 24 * 20))]
)
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE])
def test_a_build_that_leaves_out_a_slice_never_commits_against_a_changed_source(
    store: Store, mode: Mode, left_out: str, late: Segment
) -> None:
    """The versions it does name would not notice the change, so the source is read again (INV-3)."""
    kit = _ready_for(Kit(store), mode)
    build = kit.build(1, mode, "mine")
    Kit(store, seed=2).put(late)
    kept = {key: version for key, version in build.slice_versions.items() if key != left_out}
    decision = kit.commit_one(replace(build, slice_versions=kept))
    assert isinstance(decision, Rejected)
    assert decision.reason is Reason.SUPERSEDED
    assert kit.source_differs() == []


def test_a_build_that_leaves_out_a_slice_is_committed_at_the_versions_found(store: Store) -> None:
    """When the source is what it says. The entry remembers every slice, for the sweep."""
    kit = _ready_for(Kit(store), Mode.OVERWRITE)
    build = kit.build(1, Mode.OVERWRITE, "mine")
    assert isinstance(kit.commit_one(replace(build, slice_versions={})), Changed)
    entry = kit.entry(1)
    assert entry is not None
    assert (entry.state, entry.slice_versions) == (State.VALID, build.slice_versions)


def test_one_build_that_leaves_out_a_slice_does_not_speak_for_the_others_of_its_group(store: Store) -> None:
    """Neighbours that list all of theirs do not make up for one that does not."""
    kit = Kit(store)
    kit.set_up()
    kit.put(segment("a", 0, 30))
    builds = [kit.build(hour) for hour in (0, 24)]
    Kit(store, seed=2).put(segment("late", 24, 25))
    short = replace(builds[1], slice_versions=builds[0].slice_versions)
    decisions = kit.commit(builds[0], short)
    assert isinstance(decisions[0], Changed)
    assert isinstance(decisions[24], Rejected)
    assert kit.source_differs() == []


def test_an_append_whose_slices_list_later_data_reads_nothing(store: Store) -> None:
    """The end of the data need not be asked for where the write itself checks what proves it."""
    watched = Watched(store)
    kit = _ready_for(Kit(watched), Mode.APPEND)
    incarnation, build = kit.header.incarnation, kit.build(1)
    reads = watched.reads
    assert isinstance(kit.commit_one(build, incarnation), Changed)
    assert watched.reads == reads
    assert kit.watermark_hour == 2


@pytest.mark.parametrize("further_on", [segment("same slice", 2, 3), segment("another slice", 30, 31)])
def test_an_append_beyond_data_that_another_took_away_is_refused(store: Store, further_on: Segment) -> None:
    """This process has seen data further on than there is now, and must not go by that (INV-5)."""
    kit = _ready_for(Kit(store), Mode.APPEND)
    kit.put(further_on)
    kit.build(2)
    kit.build(30)
    peer = Kit(store, seed=2)
    peer.remove("b", further_on.name)
    decision = kit.commit_one(peer.build(1))
    assert isinstance(decision, Rejected)
    assert decision.reason is Reason.BEYOND_SOURCE
    assert kit.watermark_hour == 1


def _ready_for(kit: Kit, mode: Mode) -> Kit:
    """Hour 0 is built; hour 1 has a source and is VACANT, or built and STALE."""
    kit.set_up()
    kit.put(segment("a", 0, 1), segment("b", 1, 2))
    kit.append(0)
    if mode is not Mode.APPEND:
        kit.append(1, "first")
        kit.mark(1)
    kit.states()  # so that this process knows the shard as it is
    return kit


def test_data_that_goes_between_the_look_and_the_write_does_not_leave_the_watermark_past_it(store: Store) -> None:
    """Only the table's header told that there is data after this empty bucket, so the write checks it (INV-5)."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up(coverage_hour=23)
    kit.put(segment("end", 30, 31))
    build = kit.build(23)
    _once_before_a_write(watched, lambda: Kit(store, seed=2).remove("end"))
    decision = kit.commit_one(build)
    assert isinstance(decision, Rejected)
    assert decision.reason is Reason.BEYOND_SOURCE
    assert kit.watermark_hour == 23


def test_data_that_comes_between_the_look_and_the_write_does_not_leave_the_watermark_behind(store: Store) -> None:
    """A bucket may be VALID past the end of the data, whose last segment went after it was built. The write that
    closes the gap before it moves the watermark as far as the data reaches at that instant (INV-2)."""
    watched = Watched(store)
    kit = Kit(watched)
    kit.set_up(coverage_hour=23)
    end = segment("end", 30, 31)
    kit.put(segment("a", 23, 24), end)
    kit.append(24)
    kit.remove("end")
    build = kit.build(23)
    _once_before_a_write(watched, lambda: Kit(store, seed=2).put(end))
    assert isinstance(kit.commit_one(build), Changed)
    assert kit.watermark_hour == 25


def _once_before_a_write(watched: Watched, act: Callable[[], None]) -> None:
    def before_commit(_: int) -> None:
        watched.before_commit = lambda _: None
        act()

    watched.before_commit = before_commit
