"""The fingerprint of a window, against golden vectors and rule by rule."""

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from floodmark.core.buckets import BucketGrid, Shard, State
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import EMPTY, EMPTY_HASH, Fingerprint, fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.segments import Segment, Slice, segments_in
from floodmark.core.transitions import Build, Mode
from floodmark.ledger import codec

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "fingerprint_vectors.json").read_text())["vectors"]


@dataclass(frozen=True)
class Named:
    name: str
    crc: int


def named(*pairs: tuple[str, int]) -> list[Named]:
    return [Named(name, crc) for name, crc in pairs]


def orders(segments: Sequence[Named]) -> list[Sequence[Named]]:
    """Every order of a few, some of many."""
    if len(segments) <= 4:
        return [list(order) for order in itertools.permutations(segments)]
    shuffler = random.Random(1)
    return [shuffler.sample(segments, len(segments)) for _ in range(20)]


@pytest.mark.scenario("F1")
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["description"])
def test_the_golden_vectors_hold_in_any_input_order(vector: dict[str, Any]) -> None:
    """INV-15: the values that Guava computed."""
    expected = Fingerprint(vector["segment_count"], vector["fingerprint_signed"])
    segments = named(*((s["name"], s["crc"]) for s in vector["segments"]))
    assert {fingerprint(order) for order in orders(segments)} == {expected}


@pytest.mark.scenario("F1")
def test_names_are_sorted_as_java_sorts_them() -> None:
    """UTF-16 code units: U+1F600 (a surrogate pair, D83D DE00) comes before U+FFFD, though its code point is higher."""
    astral, late = ("\U0001f600", 1), ("\ufffd", 2)
    encoded = b"".join(
        name.encode() + b"\x00" + crc.to_bytes(8, "little", signed=True) + b"\n" for name, crc in (astral, late)
    )
    whole = Fingerprint(2, _signed(encoded))
    assert fingerprint(named(late, astral)) == whole


def _signed(data: bytes) -> int:
    import farmhash

    unsigned = farmhash.fingerprint64(data)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


@pytest.mark.scenario("F2")
def test_no_overlapping_segment_is_empty_and_empty_is_not_zero() -> None:
    """The hash of zero bytes; (0, 0) is refused, so empty has one representation (INV-15)."""
    assert fingerprint([]) == EMPTY == Fingerprint(0, -7286425919675154353)
    assert EMPTY.is_empty
    assert EMPTY_HASH != 0
    with pytest.raises(InvalidInput, match="empty is always"):
        Fingerprint(0, 0)


@pytest.mark.scenario("F2")
def test_empty_survives_a_round_trip() -> None:
    """VALID-empty is written and read as what it is, distinct from VACANT."""
    grid = BucketGrid(10)
    entry = Build(20, Mode.APPEND, "a1", EMPTY, {"wide": 0}, "h", 5).change.entry
    shard = codec.decode_shard(codec.encode_shard(Shard({20: entry}), grid), grid, what="shard")
    read = shard.get(20)
    assert read is not None
    assert (read.state, read.fingerprint) == (State.VALID, EMPTY)
    assert shard.get(30) is None


@pytest.mark.scenario("F3")
def test_the_same_content_under_another_name_differs() -> None:
    """A rename is a change: the name says which file is read."""
    assert fingerprint(named(("a", 1))) != fingerprint(named(("b", 1)))


@pytest.mark.scenario("F3")
def test_contents_swapped_between_two_names_differ() -> None:
    """The same names, the same CRCs, in other hands."""
    assert fingerprint(named(("a", 1), ("b", 2))) != fingerprint(named(("a", 2), ("b", 1)))


def test_the_boundary_between_name_and_crc_is_part_of_the_hash() -> None:
    """Bytes cannot move from a name into its CRC or into the next segment unnoticed."""
    assert fingerprint(named(("a", 0x62))) != fingerprint(named(("a\x00b", 0)))
    assert fingerprint(named(("ab", 1))) != fingerprint(named(("a", 1), ("b", 1)))


@pytest.mark.scenario("F4")
def test_a_segment_whose_last_instant_is_the_windows_first_overlaps() -> None:
    """A segment's end is inclusive, a window's is not."""
    window = Interval(100, 200)
    assert set(segments_in(window, [_slice("touching", 50, 100)])) == {"touching"}
    assert set(segments_in(window, [_slice("before", 50, 99)])) == set()


@pytest.mark.scenario("F4")
def test_a_segment_that_starts_where_the_window_ends_does_not_overlap() -> None:
    """It belongs to the next window."""
    window = Interval(100, 200)
    assert set(segments_in(window, [_slice("next", 200, 250)])) == set()
    assert set(segments_in(window, [_slice("last", 199, 250)])) == {"last"}
    assert set(segments_in(window, [_slice("around", 0, 1000)])) == {"around"}


def _slice(name: str, start_ms: int, last_ms: int) -> Slice:
    return Slice.of([Segment(name, 1, start_ms, last_ms, name, 1, 1)])


@pytest.mark.parametrize("hash_", [2**63, -(2**63) - 1])
def test_a_hash_outside_64_bits_is_refused(hash_: int) -> None:
    """Nothing that ZooKeeper or a JVM could not hold."""
    with pytest.raises(InvalidInput, match=str(hash_)):
        Fingerprint(1, hash_)
