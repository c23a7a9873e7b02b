"""How nodes are written: one byte of format version, then zstd over msgpack.

Readers ignore fields they do not know, so fields may be added, to a row at its end. Anything else is a new format
version; old versions always decode, and a newer one than this code knows is refused by name, because guessing could
lose a change.

    format 1    the entry of a bucket is a map of short field names
    format 2    it is a row, which takes half as long to write, and a shard is not compressed beyond its blocks
    format 3    a slice of the registry may be split into parts, and a table may have been dropped
    format 4    a view's query may mean what versions before would not build

A shard is written in blocks of 16 buckets, each a node of its own inside the shard's, so that a commit encodes the
blocks it changed and passes the others on. Consecutive buckets of a block with equal entries, such as an empty stretch,
are stored once with a run length.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import zstandard

from floodmark.core.buckets import BucketGrid, Cause, DataFile, Entry, Shard, State
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.intervals import Interval
from floodmark.core.registry import Event, ReportedChange
from floodmark.core.runs import NO_RUNS, Run, Runs
from floodmark.core.segments import Part, Segment, Slice
from floodmark.core.tables import (
    MEANING,
    CoverageMode,
    TableDefinition,
    TableHeader,
    ViewDefinition,
    ViewHeader,
    ViewStatus,
)  # fmt: skip

FORMAT = 4
BUCKETS_PER_BLOCK = 16
_PLAIN_BYTES_MAX = 64 * 1024 * 1024
_STATES = {"V": State.VALID, "S": State.STALE}
_VALID = State.VALID
_FORMAT_BYTE = b"\x02"
T = TypeVar("T")


class _PerThread(threading.local):
    """Making these costs more than using them on most nodes, and each serves only one thread at a time."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_tools = _PerThread()
_packed = msgspec.msgpack.Encoder(enc_hook=dict).encode  # the hook is for mappings of other kinds
_unpacked = msgspec.msgpack.Decoder().decode


def pack(value: object, *, format_: int = 2) -> bytes:
    return bytes([format_]) + _tools.compressor.compress(_packed(value))


def unpack(data: bytes, *, what: str, compressed: bool = True) -> Any:
    if not data:
        raise InvalidInput("format", f"{what} is empty")
    if not 1 <= data[0] <= FORMAT:
        raise InvalidInput("format", f"{what} has format {data[0]}, this version of floodmark knows {FORMAT} and older")
    try:
        plain = data[1:]
        if compressed:
            plain = _tools.decompressor.decompress(plain, max_output_size=_PLAIN_BYTES_MAX)
        return _unpacked(plain)
    except (zstandard.ZstdError, msgspec.DecodeError, ValueError, TypeError, MemoryError, RecursionError) as error:
        # Garbled bytes may also claim a map for a key, or more content than there is memory.
        raise InvalidInput("format", f"{what} cannot be decoded: {error}") from error


def decoding(what: str, build: Callable[[], T]) -> T:
    """Name the node when one of its fields is missing or of the wrong type."""
    try:
        return build()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InvalidInput("format", f"{what} lacks or garbles a field: {type(error).__name__} {error}") from error


# -- registry ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SliceNode:
    """What the node of a slice, or of one of its parts, says."""

    at: int
    """The registry version of its last change: a reader sees whether it is newer than its header."""
    segments: tuple[Segment, ...]
    parts: Mapping[int, int] | None
    """Of a slice that is split: the version that wrote each of its parts, by number. They have the segments."""


def encode_slice(listed: Slice, changed_at_version: int) -> bytes:
    """The slice's own node: its segments or, once it is split, its parts."""
    if not listed.is_split:
        return encode_part(Part(listed.segments, changed_at_version))
    # A reader from before there were parts must refuse it: it would take the slice for an empty one.
    parts = [[number, part.at] for number, part in sorted(listed.parts.items())]
    return pack({"at": changed_at_version, "parts": parts}, format_=3)


def encode_part(part: Part) -> bytes:
    listed = part.segments.values()
    rows = [
        [s.name, s.crc, s.start_ms, s.last_ms, s.path, s.rows, s.bytes, s.stamp, s.timeless_rows, s.inspected]
        for s in listed
    ]
    return pack({"at": part.at, "segments": rows})


def decode_slice_node(data: bytes, *, what: str) -> SliceNode:
    raw = unpack(data, what=what)

    def build() -> SliceNode:
        parts = {int(number): int(at) for number, at in raw["parts"]} if "parts" in raw else None
        segments = () if parts is not None else tuple(Segment(*row[:10]) for row in raw["segments"])
        return SliceNode(int(raw["at"]), segments, parts)

    return decoding(what, build)


def encode_table(header: TableHeader) -> bytes:
    d = header.definition
    # A reader that does not know that tables are dropped must refuse it: it would look for slices of another table.
    format_ = 3 if header.dropped or d.generation else 2
    return pack(
        {
            "name": d.name,
            "location": d.location,
            "time_column": d.time_column,
            "slice_span_ms": d.slice_span_ms,
            "columns": [list(column) for column in d.columns],
            "properties": dict(d.properties),
            "version": header.version,
            "min_start_ms": header.min_start_ms,
            "max_last_ms": header.max_last_ms,
            "segment_count": header.segment_count,
            "recent": [[version, list(keys)] for version, keys in header.recent],
            "traces": list(header.traces),
            "generation": d.generation,
            "dropped": header.dropped,
        },
        format_=format_,
    )


def decode_table(data: bytes, *, what: str) -> TableHeader:
    raw = unpack(data, what=what)
    return decoding(
        what,
        lambda: TableHeader(
            definition=TableDefinition(
                name=raw["name"],
                location=raw["location"],
                time_column=raw["time_column"],
                slice_span_ms=raw["slice_span_ms"],
                columns=tuple((name, kind) for name, kind in raw["columns"]),
                properties=raw["properties"],
                generation=raw.get("generation", 0),
            ),
            version=raw["version"],
            min_start_ms=raw["min_start_ms"],
            max_last_ms=raw["max_last_ms"],
            segment_count=raw["segment_count"],
            recent=tuple((version, tuple(keys)) for version, keys in raw["recent"]),
            traces=tuple(raw.get("traces", ())),
            dropped=raw.get("dropped", False),
        ),
    )


def is_dropped(data: bytes, *, what: str) -> bool:
    """Whether a table's header is only what is left of one. A damaged one is a table: whoever uses it says so."""
    try:
        return decode_table(data, what=what).dropped
    except InvalidInput:
        return False


def encode_event(event: Event) -> bytes:
    changes = [[c.action, c.name, c.crc, _pairs(c.ranges), c.trace_id] for c in event.changes]
    return pack(
        {
            "id": event.event_id,
            "table": event.table,
            "version": event.version,
            "at_ms": event.registered_at_ms,
            "trace": event.trace_id,
            "changes": changes,
        }
    )


def _pairs(ranges: tuple[Interval, ...] | None) -> list[list[int]] | None:
    return None if ranges is None else [[i.start_ms, i.end_ms] for i in ranges]


def decode_event(data: bytes, *, what: str) -> Event:
    raw = unpack(data, what=what)

    def change(row: list[Any]) -> ReportedChange:
        action, name, crc, ranges = row[:4]
        intervals = None if ranges is None else tuple(Interval(a, b) for a, b in ranges)
        return ReportedChange(action, name, crc, intervals, *row[4:5])

    return decoding(
        what,
        lambda: Event(
            raw["id"],
            raw["table"],
            raw["version"],
            raw["at_ms"],
            raw["trace"],
            tuple(change(row) for row in raw["changes"]),
        ),
    )


# -- views ---------------------------------------------------------------------------------------------------------


def encode_view(header: ViewHeader) -> bytes:
    d = header.definition
    # A reader from before there were meanings must refuse it: it would build what the query used to mean.
    format_ = 4 if d.meaning else 2
    return pack(
        {
            "name": d.name,
            "table": d.table,
            "select": d.select,
            "hash": d.hash,
            "bucket_ms": d.bucket_ms,
            "location": d.location,
            "coverage": str(d.coverage),
            "properties": dict(d.properties),
            "incarnation": header.incarnation,
            "created_at_ms": header.created_at_ms,
            "coverage_start_ms": header.coverage_start_ms,
            "watermark_ms": header.watermark_ms,
            "status": str(header.status),
            "meaning": d.meaning,
        },
        format_=format_,
    )


def decode_view(data: bytes, *, what: str) -> ViewHeader:
    raw = unpack(data, what=what)
    meaning = decoding(what, lambda: int(raw.get("meaning", 0)))
    if meaning > MEANING:
        raise InvalidInput(
            "format", f"{what} has a query of meaning {meaning}, this version of floodmark knows {MEANING} and older"
        )
    return decoding(
        what,
        lambda: ViewHeader(
            definition=ViewDefinition(
                name=raw["name"],
                table=raw["table"],
                select=raw["select"],
                hash=raw["hash"],
                bucket_ms=raw["bucket_ms"],
                location=raw["location"],
                coverage=CoverageMode(raw["coverage"]),
                properties=raw["properties"],
                meaning=meaning,
            ),
            incarnation=raw["incarnation"],
            created_at_ms=raw["created_at_ms"],
            coverage_start_ms=raw["coverage_start_ms"],
            watermark_ms=raw["watermark_ms"],
            status=ViewStatus(raw["status"]),
        ),
    )


def encode_shard(shard: Shard, grid: BucketGrid) -> bytes:
    """`{"blocks": [block, ...]}`, each block `{"runs": [[first, count, entry], ...]}`, compressed by itself."""
    span_ms = BUCKETS_PER_BLOCK * grid.width_ms
    blocks = shard.encoded
    for number in {start_ms // span_ms for start_ms in (shard.unencoded if blocks else shard.entries)}:
        blocks[number] = _encode_block(shard, range(number * span_ms, (number + 1) * span_ms, grid.width_ms))
    shard.unencoded.clear()
    return _FORMAT_BYTE + _packed({"blocks": [blocks[number] for number in sorted(blocks)]})


def _encode_block(shard: Shard, starts: range) -> bytes:
    entry_at, width_ms = shard.entries.get, starts.step
    runs: list[tuple[int, int, Any]] = []
    next_ms, last = 0, None
    for start_ms in starts:
        entry = entry_at(start_ms)
        if entry is None:
            continue
        row = encode_entry(entry)
        if start_ms == next_ms and row == last:
            first_ms, count, _ = runs[-1]
            runs[-1] = first_ms, count + 1, row
        else:
            runs.append((start_ms, 1, row))
        next_ms, last = start_ms + width_ms, row
    return pack({"runs": runs})


def decode_shard(data: bytes, grid: BucketGrid, *, what: str) -> Shard:
    """The shard, which remembers its blocks as they were written: a change of one leaves the others as they are."""
    span_ms = BUCKETS_PER_BLOCK * grid.width_ms
    entries: dict[int, Entry] = {}
    encoded: dict[int, bytes] = {}

    def decode(block: bytes) -> None:
        shared: Mapping[str, int] = {}
        first = None
        for first, count, fields in _runs_of(block, what):
            entry = decode_entry(fields, what=f"{what} bucket {first}", shared=shared)
            shared = entry.slice_versions
            entries.update(dict.fromkeys(range(first, first + count * grid.width_ms, grid.width_ms), entry))
        if first is not None and block is not data:
            encoded[first // span_ms] = block

    def decode_all() -> Shard:
        for block in shard_blocks(data, what=what):
            decode(block)
        return Shard(entries, encoded)

    return decoding(what, decode_all)


def shard_blocks(data: bytes, *, what: str) -> list[bytes]:
    """The blocks of a shard, as they are: one that did not change is the same bytes."""
    raw = unpack(data, what=what, compressed=data[:1] == b"\x01")
    if not isinstance(raw, dict):
        raise InvalidInput("format", f"{what} is no shard but a {type(raw).__name__}")
    # The first shards were one block without a shard around it.
    return [data] if "runs" in raw else decoding(what, lambda: list(raw["blocks"]))


def decode_stale(block: bytes, grid: BucketGrid, *, what: str) -> tuple[dict[int, Entry], list[int]]:
    """The STALE entries of a block, and every bucket that has an entry. VALID ones, which are most, are not built."""
    stale: dict[int, Entry] = {}
    present: list[int] = []

    def look() -> None:
        for first, count, fields in _runs_of(block, what):
            starts = range(first, first + count * grid.width_ms, grid.width_ms)
            present.extend(starts)
            if _state_code(fields) != "V":
                stale.update(dict.fromkeys(starts, decode_entry(fields, what=f"{what} bucket {first}")))

    decoding(what, look)
    return stale, present


def _runs_of(block: bytes, what: str) -> Iterator[tuple[int, int, Any]]:
    for first, count, fields, *_ in unpack(block, what=what)["runs"]:
        yield first, count, fields


def _state_code(fields: Any) -> object:
    return fields.get("s") if isinstance(fields, dict) else fields[0]


def runs(shard: Shard, grid: BucketGrid) -> Iterable[tuple[int, int, Entry]]:
    """(first bucket, how many, entry) for each stretch of neighbours with one and the same entry."""
    return _stretches(shard, grid.width_ms)


def _stretches(values: Iterable[tuple[int, T]], width_ms: int) -> Iterator[tuple[int, int, T]]:
    first_ms, count, last = 0, 0, None
    for start_ms, value in values:
        if last is not None and value == last and start_ms == first_ms + count * width_ms:
            count += 1
            continue
        if last is not None:
            yield first_ms, count, last
        first_ms, count, last = start_ms, 1, value
    if last is not None:
        yield first_ms, count, last


def encode_runs(runs: Runs) -> bytes:
    """`{"entries": [entry, ...], "runs": [[gap to the one before, shards, which entry], ...]}`; no runs, no bytes."""
    if not runs:
        return b""
    at: dict[bytes, int] = {}
    rows: list[tuple[int, int, int]] = []
    end = 0
    for run in runs:
        which = at.setdefault(_packed(encode_entry(run.entry)), len(at))
        rows.append((run.first - end, run.end - run.first, which))
        end = run.end
    return pack({"entries": list(at), "runs": rows})


def decode_runs(data: bytes, *, what: str) -> Runs:
    if not data:
        return NO_RUNS
    raw = unpack(data, what=what)

    def build() -> Runs:
        entries = [decode_entry(_unpacked(entry), what=what) for entry in raw["entries"]]
        found: list[Run] = []
        end = 0
        for gap, count, which in (row[:3] for row in raw["runs"]):
            if count < 1 or (found and gap < 0):
                raise ValueError("its runs overlap or are empty")
            first, end = end + gap, end + gap + count
            found.append(Run(first, end, entries[which]))
        return Runs(tuple(found))

    return decoding(what, build)


def encode_entry(entry: Entry) -> tuple[Any, ...]:
    built, cause = entry.fingerprint, entry.cause
    return (
        "V" if entry.state is _VALID else "S",
        None if built is None else (built.count, built.hash),
        entry.slice_versions,
        [(f.name, f.rows, f.bytes) for f in entry.files],
        entry.attempt_id,
        entry.definition_hash,
        entry.refreshed_at_ms,
        cause and (cause.kind, cause.event_id, cause.marked_at_ms, cause.place, cause.segments, cause.trace_id),
    )


_NAMES_IN_FORMAT_1: Mapping[str, Any] = {"s": "", "f": None, "v": {}, "p": (), "a": "", "d": "", "t": 0, "c": None}
"""The fields of a row, in its order, as format 1 called them, and what it meant by leaving one out."""


def decode_entry(fields: Any, *, what: str, shared: Mapping[str, int] | None = None) -> Entry:
    """`shared` are the slice versions of another entry: equal ones, as neighbours have, are kept once."""
    if isinstance(fields, dict):
        fields = [fields.get(name, left_out) for name, left_out in _NAMES_IN_FORMAT_1.items()]
    state = _STATES.get(fields[0])
    if state is None:
        raise InvalidInput("entry-state", f"{what} has state {fields[0]!r}, it must be one of {', '.join(_STATES)}")
    return decoding(what, lambda: _entry(state, fields, shared))


def _entry(state: State, row: Sequence[Any], shared: Mapping[str, int] | None) -> Entry:
    built, slice_versions, files, attempt_id, definition_hash, refreshed_at_ms, cause = row[1:8]
    if state is State.VALID and built is None:
        raise ValueError("a VALID entry needs a fingerprint")
    return Entry(
        state=state,
        ever_valid=built is not None,
        fingerprint=Fingerprint(*built[:2]) if built is not None else None,
        slice_versions=shared if shared is not None and shared == slice_versions else slice_versions,
        files=tuple(DataFile(*file[:3]) for file in files),
        attempt_id=attempt_id,
        definition_hash=definition_hash,
        refreshed_at_ms=refreshed_at_ms,
        cause=_cause(cause) if cause is not None else None,
    )


def _cause(row: list[Any]) -> Cause:
    kind, event_id, marked_at_ms, place, segments = row[:5]
    return Cause(kind, event_id, marked_at_ms, place, tuple(segments), row[5] if len(row) > 5 else "")
