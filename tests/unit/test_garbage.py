"""Which files may be deleted, and what the others wait for (INV-11)."""

from dataclasses import dataclass

import pytest

from floodmark.core.garbage import (
    AttemptFile,
    Sighting,
    Terms,
    Verdict,
    Why,
    attempt_file,
    judge,
    past_retention,
    seeing,
    sighted,
)
from tests.support.ledger_kit import HOUR_MS, segment

ATTEMPT = "6f1d2c3e-0000-4000-8000-00000000000a"
FILE = AttemptFile(f"3600000/{ATTEMPT}-0.parquet", 3_600_000, ATTEMPT, 10, 0)
TERMS = Terms(grace_ms=1_000, skew_ms=50)


@dataclass(frozen=True)
class Held:
    taken_at_ms: int
    registry_version: int = 0
    reader: str = "broker-1"


def look(now_ms: int, *holds: Held, before: Sighting | None = None, named: bool = False) -> Sighting | None:
    known = {} if before is None else {FILE.path: before}
    names = {FILE.path} if named else set()
    return sighted(known, [FILE], named=names, holds=holds, now_ms=now_ms, terms=TERMS).get(FILE.path)


def verdict(now_ms: int, sighting: Sighting | None, *holds: Held) -> Verdict:
    return judge(FILE, sighting, holds=holds, now_ms=now_ms, terms=TERMS)


@pytest.mark.parametrize("start", ["0", "3600000", "-3600000", "253402300799999"])
def test_a_file_of_an_attempt_is_known_by_its_path(start: str) -> None:
    found = attempt_file(f"{start}/{ATTEMPT}-12.parquet", size=5, modified_at_ms=7)
    assert found == AttemptFile(f"{start}/{ATTEMPT}-12.parquet", int(start), ATTEMPT, 5, 7)


@pytest.mark.parametrize(
    "path",
    [
        f"{ATTEMPT}-0.parquet",
        f"x/3600000/{ATTEMPT}-0.parquet",
        f"03600000/{ATTEMPT}-0.parquet",
        f"-0/{ATTEMPT}-0.parquet",
        f"3600000/{ATTEMPT}.parquet",
        f"3600000/{ATTEMPT}-00.parquet",
        f"3600000/{ATTEMPT}-0.parquet.tmp",
        f"3600000/{ATTEMPT}-0.PARQUET",
        f"3600000/{ATTEMPT.upper()}-0.parquet",
        f"3600000/{ATTEMPT}-0.parquet\n",
        "3600000/part-0.parquet",
        "3600000/notes.txt",
    ],
)
def test_anything_else_is_none_of_our_business(path: str) -> None:
    assert attempt_file(path, size=5, modified_at_ms=7) is None


def test_a_named_file_is_not_remembered_and_never_garbage() -> None:
    assert look(5_000, named=True, before=Sighting(0, 0)) is None
    assert verdict(10**12, None).why is Why.NAMED


def test_an_orphan_is_garbage_when_it_was_unnamed_for_the_whole_grace_period() -> None:
    seen = look(500)
    assert seen == Sighting(500, dead_ms=500)
    young = verdict(1_499, seen)
    assert (young.why, young.wait_ms, young.since_ms) == (Why.GRACE, 1, 500)
    assert verdict(1_500, seen).why is Why.GARBAGE


def test_a_file_younger_than_the_grace_period_is_kept_however_long_it_is_known() -> None:
    """Its clock may be another one: a file from the future is not old."""
    young = AttemptFile(FILE.path, FILE.start_ms, ATTEMPT, 10, modified_at_ms=2_000)
    assert judge(young, Sighting(0, 0), holds=(), now_ms=2_999, terms=TERMS).why is Why.GRACE
    assert judge(young, Sighting(0, 0), holds=(), now_ms=3_000, terms=TERMS).why is Why.GARBAGE


def test_while_a_hold_from_before_it_was_seen_stands_its_writer_may_still_commit_it() -> None:
    writer = Held(400)
    seen = look(500, writer)
    assert seen == Sighting(500, dead_ms=None)
    held = verdict(10_000, seen, writer)
    assert (held.why, held.holds) == (Why.HELD, (writer,))
    assert look(9_000, writer, before=seen) == seen
    assert look(9_500, before=seen) == Sighting(500, dead_ms=9_500)


def test_a_reader_who_may_have_found_it_in_an_entry_meanwhile_keeps_it() -> None:
    """It was first seen unnamed, then committed, read and replaced between two looks."""
    seen = look(500, Held(400))
    reader = Held(5_000)
    dead = look(9_500, reader, before=seen)
    assert verdict(10_000, dead, reader).why is Why.HELD
    assert verdict(10_000, dead).why is Why.GARBAGE


def test_a_hold_taken_later_than_the_clocks_can_be_apart_keeps_nothing() -> None:
    dead = look(500)
    assert verdict(10_000, dead, Held(550)).why is Why.HELD
    assert verdict(10_000, dead, Held(551)).why is Why.GARBAGE


def test_segments_past_their_retention_are_those_that_end_before_it_oldest_first() -> None:
    """One that ends at the very instant, and one without usable times, are kept."""
    timeless = segment("timeless", 0, 1, start_ms=None, last_ms=None)
    segments = [segment("c", 2, 3), segment("b", 0, 1), segment("a", 0.5, 2), segment("young", 2, 4), timeless]
    past = past_retention(segments, before_ms=4 * HOUR_MS - 1)
    assert [s.name for s in past] == ["b", "a", "c"]


def test_a_hold_sees_what_was_removed_after_its_version() -> None:
    before, at = Held(0, registry_version=6), Held(0, registry_version=7)
    assert seeing([before, at], 7) == (before,)
