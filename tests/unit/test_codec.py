"""How nodes are written and read back, and what is refused."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from floodmark.core.buckets import BucketGrid, Cause, DataFile, Entry, Shard, State, synthesized
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import EMPTY, Fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.registry import Event, ReportedChange
from floodmark.core.segments import Segment, Slice
from floodmark.core.tables import CoverageMode, TableDefinition, TableHeader, ViewDefinition, ViewHeader, ViewStatus
from floodmark.ledger import codec

GRID = BucketGrid(10)
CAUSE = Cause("event", "e1", 5, "segments.v1/0/7", ("a", "b"), "trace-1")
BUILT = Entry(
    State.VALID, True, Fingerprint(2, -(2**63)), {"0": 3, "wide": 0}, (DataFile("f", 1, 2),), "a1", "h", 9, CAUSE,
)  # fmt: skip
PLAIN: list[Any] = ["V", [2, 7], {"wide": 0}, [["f", 1, 2]], "a1", "h", 9, None]
NAMED: dict[str, Any] = {"s": "V", "f": [2, 7], "v": {"wide": 0}, "a": "a1", "d": "h", "t": 9}
"""The same bucket, without its file, as format 1 has it."""


def bytes_of(value: object, version: int = codec.FORMAT) -> bytes:
    """A node as another version of the code might have written it."""
    return bytes([version]) + zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(value))


def plain_of(value: object) -> bytes:
    """A node that is not compressed, as a shard of format 2."""
    return bytes([codec.FORMAT]) + msgspec.msgpack.encode(value)


def shard_with(fields: Any, *later: object) -> bytes:
    """A shard of one bucket: of format 1 when its fields have names."""
    block = {"runs": [[20, 1, fields, *later]], "later": True}
    if isinstance(fields, dict):
        return bytes_of(block, version=1)
    return plain_of({"blocks": [bytes_of(block)], "later": True})


def plain_but(place: int, value: object) -> list[Any]:
    return [*PLAIN[:place], value, *PLAIN[place + 1 :]]


LATER_CAUSE = ["event", "e", 5, "", [], "trace", "later"]


@pytest.mark.scenario("F5")
@pytest.mark.parametrize(
    "extended",
    [
        ["V", [2, 7, "later"], {"wide": 0}, [["f", 1, 2, "later"]], "a1", "h", 9, LATER_CAUSE, {"x": 1}, "later"],
        {**NAMED, "f": [2, 7, "later"], "p": [["f", 1, 2, "later"]], "c": LATER_CAUSE, "new": {"x": 1}},
    ],
    ids=["row", "named"],
)
def test_an_entry_with_unknown_fields_is_decoded(extended: Any) -> None:
    """A later version may add fields, to entries, to lists inside them and beside them."""
    shard = codec.decode_shard(shard_with(extended, "later"), GRID, what="shard 0")
    assert shard.get(20) == Entry(
        State.VALID, True, Fingerprint(2, 7), {"wide": 0}, (DataFile("f", 1, 2),), "a1", "h", 9,
        Cause("event", "e", 5, trace_id="trace"),
    )  # fmt: skip


@pytest.mark.scenario("F5")
@pytest.mark.parametrize("state", [None, "X", "VALID", "", 1])
def test_an_entry_without_a_known_state_is_refused(state: object) -> None:
    """Guessing VALID could serve wrong rows, guessing STALE could hide a damaged ledger. The bucket is named."""
    named = {k: v for k, v in NAMED.items() if k != "s"} | ({} if state is None else {"s": state})
    for fields in (plain_but(0, state), named):
        with pytest.raises(InvalidInput, match="shard 0 bucket 20 has state"):
            codec.decode_shard(shard_with(fields), GRID, what="shard 0")


@pytest.mark.parametrize(
    "fields",
    [
        [],
        PLAIN[:7],
        plain_but(0, []),
        plain_but(1, None),
        plain_but(1, [1]),
        plain_but(1, 3),
        plain_but(1, [0, 0]),
        plain_but(3, [["f"]]),
        plain_but(7, []),
        {"s": "V"},
        {**NAMED, "f": [1]},
        {**NAMED, "f": 3},
        {**NAMED, "p": [["f"]]},
        {**NAMED, "c": []},
        {**NAMED, "f": [0, 0]},
        3,
        None,
    ],
)
def test_a_garbled_entry_is_refused_by_name(fields: Any) -> None:
    """Never an exception of whatever library tripped over it."""
    with pytest.raises(InvalidInput):
        codec.decode_shard(shard_with(fields), GRID, what="shard 0")


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01", b"\x01garbage", b"\x02", b"\x02garbage", b"\x00" + bytes_of(1)[1:], bytes_of({"blocks": []}, 3)],
)
def test_bytes_that_are_no_node_are_refused_by_name(data: bytes) -> None:
    """Empty, cut short, not compressed, an unknown and a newer format."""
    with pytest.raises(InvalidInput, match="format: /a/node"):
        codec.decode_shard(data, GRID, what="/a/node")


def test_the_first_shards_are_read_for_ever() -> None:
    """Bytes as format 1 wrote them: this test may get company, but never change."""
    data = bytes.fromhex(
        "0128b52ffd2075650300240681a472756e739293140188a173a156a1669202d38000a17682a13003a47769646500a161a26131a164a168"
        "a17409a1709193a1660102a16395a56576656e74a2653105af7365676d656e74732e76312f302f3792a161a162931e0182a173a153a090"
        "02004a53271a4013"
    )
    untraced = replace(BUILT, cause=replace(CAUSE, trace_id=""))
    assert codec.decode_shard(data, GRID, what="shard") == Shard(
        {20: untraced, 30: synthesized(Cause("event", "e1", 5))}
    )


def test_shards_in_blocks_are_read_for_ever() -> None:
    """As format 1 wrote them once a shard was cut into blocks of 16 buckets."""
    data = bytes.fromhex(
        "0128b52ffd20fde9070081a6626c6f636b7392c47f0128b52ffd207ead0300b40681a472756e739293140188a173a156a1669202d380"
        "00a17682a13003a47769646500a161a26131a164a168a17409a1709193a1660102a16396a56576656e74a2653105af7365676d656e74"
        "732e76312f302f3792a161a162a774726163652d31931e0182a173a153a090a002005255271a4013c4710128b52ffd206739030081a4"
        "72756e739193ccc80188a173a156a1669202d38000000000000000a17682a13003a47769646500a161a26131a164a168a17409a17091"
        "93a1660102a16396a56576656e74a2653105af7365676d656e74732e76312f302f3792a161a162a774726163652d31"
    )
    expected = Shard({20: BUILT, 30: synthesized(Cause("event", "e1", 5)), 200: BUILT})
    assert codec.decode_shard(data, GRID, what="shard") == expected


def test_shards_with_rows_are_read_for_ever() -> None:
    """As format 2 writes them, where an entry is a row."""
    data = bytes.fromhex(
        "0281a6626c6f636b7392c4730228b52ffd20704d0300f40581a472756e739293140198a1569202d3800082a13003a477696465009193"
        "a1660102a26131a1680996a56576656e74a2653105af7365676d656e74732e76312f302f3792a161a162a774726163652d31931e0198"
        "a153c08090a0a000a090a00200ca55261a4018c4610228b52ffd2057b9020081a472756e739193ccc80198a1569202d3800000000000"
        "000082a13003a477696465009193a1660102a26131a1680996a56576656e74a2653105af7365676d656e74732e76312f302f3792a161"
        "a162a774726163652d31"
    )
    expected = Shard({20: BUILT, 30: synthesized(Cause("event", "e1", 5)), 200: BUILT})
    assert codec.decode_shard(data, GRID, what="shard") == expected


@pytest.mark.parametrize("value", [{}, {"blocks": 3}, {"blocks": ["text"]}, {"blocks": [b""]}, {"blocks": [b"\x03x"]}])
def test_a_shard_with_garbled_blocks_is_refused_by_name(value: object) -> None:
    """None, no list, no bytes, cut short, of a newer format."""
    for data in (plain_of(value), bytes_of(value, version=1)):
        with pytest.raises(InvalidInput, match="format: shard 0"):
            codec.decode_shard(data, GRID, what="shard 0")


def test_slice_versions_of_any_mapping_are_written() -> None:
    """A build names them as it got them."""
    seen = Shard({20: replace(BUILT, slice_versions=MappingProxyType({"0": 3}))})
    assert codec.decode_shard(codec.encode_shard(seen, GRID), GRID, what="shard") == seen


def test_the_stale_entries_of_a_shards_blocks_are_those_that_decoding_all_of_it_gives() -> None:
    """Runs, gaps, both states, and several blocks."""
    stale = replace(BUILT, state=State.STALE)
    shard = Shard({n * 10: [BUILT, stale, synthesized(CAUSE)][n // 7 % 3] for n in range(100) if n % 11})
    blocks = codec.shard_blocks(codec.encode_shard(shard, GRID), what="shard")
    parts = [codec.decode_stale(block, GRID, what="shard") for block in blocks]
    assert len(parts) == 7
    found = {start: entry for part, _ in parts for start, entry in part.items()}
    assert found == {start: entry for start, entry in shard.entries.items() if entry.state is State.STALE}
    assert [start for _, present in parts for start in present] == list(shard.entries)


@pytest.mark.parametrize("value", [{}, {"runs": 3}, {"runs": [[0, 1, {"s": "X"}]]}, {"runs": [[0, 1, 5]]}, [1]])
def test_a_block_whose_states_cannot_be_told_is_refused_by_name(value: object) -> None:
    """Nothing in it, no list, a state nobody knows, no entry, no block."""
    with pytest.raises(InvalidInput, match="shard 0"):
        codec.decode_stale(bytes_of(value), GRID, what="shard 0")


def test_neighbours_with_equal_entries_are_stored_once() -> None:
    """A year of empty hours is a few hundred runs of 16, not 8,760 entries."""
    empty = Entry(State.VALID, True, EMPTY, {"wide": 0}, (), "a1", "h", 9)
    block = Shard({n * 10: empty for n in range(16)})
    assert len(codec.encode_shard(block, GRID)) < len(codec.encode_shard(Shard({0: empty}), GRID)) + 8
    many = Shard({n * 10: empty for n in range(256)})
    assert len(codec.encode_shard(many, GRID)) < 16 * len(codec.encode_shard(block, GRID))
    assert codec.decode_shard(codec.encode_shard(many, GRID), GRID, what="shard") == many


def test_a_run_ends_where_a_bucket_is_vacant() -> None:
    """Equal entries that are not neighbours stay apart."""
    gap = Shard({0: BUILT, 10: BUILT, 30: BUILT})
    assert [(first, count) for first, count, _ in codec.runs(gap, GRID)] == [(0, 2), (30, 1)]
    assert codec.decode_shard(codec.encode_shard(gap, GRID), GRID, what="shard") == gap


int64 = st.integers(-(2**63), 2**63 - 1)
fingerprints = st.builds(Fingerprint, st.integers(1, 2**40), int64) | st.just(EMPTY)
causes = st.builds(
    Cause,
    st.sampled_from(["event", "import"]),
    st.text(),
    st.integers(0, 2**50),
    st.text(),
    st.lists(st.text()).map(tuple),
)
built_entries = st.builds(
    Entry,
    state=st.sampled_from(State),
    ever_valid=st.just(True),
    fingerprint=fingerprints,
    slice_versions=st.dictionaries(st.text(), st.integers(0, 2**31 - 1), max_size=3),
    files=st.lists(st.builds(DataFile, st.text(), st.integers(0, 2**60), st.integers(0, 2**60)), max_size=2).map(tuple),
    attempt_id=st.text(),
    definition_hash=st.text(),
    refreshed_at_ms=st.integers(0, 2**50),
    cause=st.none() | causes,
)
entries = built_entries | causes.map(synthesized)
shards = st.dictionaries(st.integers(-20, 20).map(lambda n: n * 10), entries, max_size=8).map(Shard)


@given(shards)
def test_every_shard_survives_a_round_trip(shard: Shard) -> None:
    """Whatever the ledger can hold."""
    assert codec.decode_shard(codec.encode_shard(shard, GRID), GRID, what="shard") == shard


changes = st.dictionaries(st.integers(-40, 40).map(lambda n: n * 10), entries, max_size=4)


@given(shards, st.lists(changes, max_size=3))
def test_a_shard_is_written_as_what_it_holds_however_it_came_to_hold_it(shard: Shard, puts: list[Any]) -> None:
    """Blocks that were encoded before a change are passed on only if the change left them alone."""
    for changed in puts:
        written = codec.encode_shard(shard, GRID)
        assert codec.encode_shard(codec.decode_shard(written, GRID, what="shard").put(changed), GRID) == (
            codec.encode_shard(Shard({**shard.entries, **changed}), GRID)
        )
        shard = shard.put(changed)
    assert codec.encode_shard(shard, GRID) == codec.encode_shard(Shard(shard.entries), GRID)


@pytest.mark.parametrize("read", [False, True], ids=["written-before", "read-before"])
def test_a_change_encodes_its_own_block_only(read: bool) -> None:
    """The other blocks of the shard are the very bytes they were."""
    before = Shard({n * 10: BUILT for n in range(256)})
    written = codec.encode_shard(before, GRID)
    if read:
        before = codec.decode_shard(written, GRID, what="shard")
    after = before.put({200: BUILT.stale(CAUSE)})
    codec.encode_shard(after, GRID)
    assert [number for number, block in after.encoded.items() if block is not before.encoded[number]] == [1]


@given(
    st.lists(
        st.builds(
            Segment, st.text(min_size=1, max_size=20).filter(lambda n: "\x00" not in n), int64, st.integers(0, 50),
            st.integers(50, 99), st.text(), st.integers(0, 9), st.integers(0, 9), st.text(),
            st.one_of(st.none(), st.integers(0, 9)),
        ),
        max_size=5,
    ),
    st.integers(0, 2**40),
)  # fmt: skip
def test_every_slice_survives_a_round_trip(segments: list[Segment], at: int) -> None:
    """CRCs over all of int64, names of any script."""
    listed = Slice.of(segments)
    node = codec.decode_slice_node(codec.encode_slice(listed, at), what="slice")
    assert (Slice.of(node.segments), node.at, node.parts) == (listed, at, None)


def test_a_slice_written_before_rows_without_a_time_were_counted_says_that_it_does_not_know() -> None:
    """Old rows are shorter. Taking them for none would lose rows of a query."""
    row = ["s", 1, 0, 9, "s.parquet", 10, 100, "stamp"]
    listed = codec.decode_slice_node(codec.pack({"at": 1, "segments": [row]}), what="slice").segments
    assert listed[0].timeless_rows is None


def test_headers_and_events_survive_a_round_trip() -> None:
    """Every field, none at its default."""
    table = TableHeader(
        TableDefinition("rides", "/lake", "at", 7, (("at", "timestamp"),), {"k": "v"}),
        3,
        -5,
        10,
        2,
        ((3, ("0", "wide")),),
        ("t1",),
    )
    assert codec.decode_table(codec.encode_table(table), what="table") == table
    view = ViewHeader(
        ViewDefinition("v", "rides", "SELECT 1", "h", 10, "/v", CoverageMode.FIXED, {"k": "v"}), "i", 4, -10, 20,
        ViewStatus.PAUSED,
    )  # fmt: skip
    assert codec.decode_view(codec.encode_view(view), what="view") == view
    changes = (
        ReportedChange("replaced", "a", -1, (Interval(0, 5), Interval(7, 9)), "t"),
        ReportedChange("deleted", "b", None, None),
    )
    event = Event("e", "rides", 3, 8, "trace", changes)
    assert codec.decode_event(codec.encode_event(event), what="event") == event


def test_a_header_without_a_field_is_refused_by_name() -> None:
    """The node and what is missing in it."""
    with pytest.raises(InvalidInput, match="/floodmark/tables/rides lacks or garbles a field: KeyError 'location'"):
        codec.decode_table(bytes_of({"name": "rides"}), what="/floodmark/tables/rides")
