r"""Buckets, the fixed windows a view is cut into, their entries, and the shards that hold them.

    VACANT --append--> VALID --mark--> STALE --refresh, clear, revert--> VALID
       \--mark, inside coverage--> STALE, never valid yet

VACANT is the absence of an entry. Entries live in shards of a fixed number of consecutive buckets.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.intervals import Interval, IntervalSet

BUCKETS_PER_SHARD = 256
"""Measured: a good middle between the time to read a whole view and the time of one commit."""


class State(StrEnum):
    VALID = "VALID"
    STALE = "STALE"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a bucket, its name relative to the view's location."""

    name: str
    rows: int
    bytes: int


ASKED = "refresh"
"""The kind of a cause that is a person who asked."""
MEANING_CHANGED = "meaning"
"""The kind of a cause that is a bucket built when the view's query meant something else."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a bucket was last marked STALE: the event, where it lay, and the segments it named."""

    kind: str
    """`event`, `sweep`, `refresh`, `coverage`, `import` or `meaning`."""
    event_id: str
    marked_at_ms: int
    place: str = ""
    segments: tuple[str, ...] = ()
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Ranges whose buckets are to be marked, and why. No ranges means the whole view."""

    ranges: IntervalSet | None
    cause: Cause


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger knows of one bucket. A STALE entry keeps the files and fingerprint of its last build."""

    state: State
    ever_valid: bool
    fingerprint: Fingerprint | None = None
    slice_versions: Mapping[str, int] = field(default_factory=dict)
    files: tuple[DataFile, ...] = ()
    attempt_id: str = ""
    """The attempt that last made it VALID; it stays through STALE, so that a lost answer can be resolved."""
    definition_hash: str = ""
    refreshed_at_ms: int = 0
    cause: Cause | None = None

    def __post_init__(self) -> None:
        assert self.ever_valid or self.state is State.STALE, "an entry that is VALID has been VALID"
        assert self.ever_valid == (self.fingerprint is not None), "a built bucket has a fingerprint, another has none"

    def stale(self, cause: Cause) -> "Entry":
        # Spelled out: `replace` takes several times as long, and a mark does this for every bucket it touches.
        return Entry(
            State.STALE,
            self.ever_valid,
            self.fingerprint,
            self.slice_versions,
            self.files,
            self.attempt_id,
            self.definition_hash,
            self.refreshed_at_ms,
            cause,
        )

    def is_built_from(self, source: Fingerprint, definition_hash: str) -> bool:
        """Whether building it again would make the same files."""
        return self.fingerprint == source and self.definition_hash == definition_hash

    def reverted(self, slice_versions: Mapping[str, int]) -> "Entry":
        """VALID again as it was. The versions are those at which the source was found unchanged."""
        return replace(self, state=State.VALID, slice_versions=slice_versions)


def synthesized(cause: Cause) -> Entry:
    """STALE without ever having been built: the source changed where the view has not looked."""
    return Entry(State.STALE, ever_valid=False, cause=cause)


@dataclass(frozen=True, slots=True)
class BucketGrid:
    """Where the buckets of a view lie: multiples of their width since 1970, UTC."""

    width_ms: int

    def __post_init__(self) -> None:
        if self.width_ms < 1:
            raise InvalidInput("bucket-width", f"bucket width {self.width_ms} ms must be at least 1 ms")

    def start_of(self, time_ms: int) -> int:
        return time_ms // self.width_ms * self.width_ms

    def window(self, start_ms: int) -> Interval:
        if start_ms % self.width_ms:
            raise InvalidInput("bucket-start", f"bucket start {start_ms} is not a multiple of {self.width_ms} ms")
        return Interval(start_ms, start_ms + self.width_ms)

    def starts_in(self, interval: Interval) -> range:
        """The starts of the buckets that overlap the interval."""
        return range(self.start_of(interval.start_ms), interval.end_ms, self.width_ms)

    def widened(self, interval: Interval) -> Interval:
        """The whole buckets that overlap the interval."""
        return Interval(self.start_of(interval.start_ms), self.start_of(interval.end_ms - 1) + self.width_ms)

    def shard_of(self, start_ms: int) -> int:
        return start_ms // self.width_ms // BUCKETS_PER_SHARD

    def shard_start(self, shard: int) -> int:
        return shard * BUCKETS_PER_SHARD * self.width_ms

    def shard_window(self, shard: int) -> Interval:
        return Interval(self.shard_start(shard), self.shard_start(shard + 1))

    def by_shard(self, starts: Iterable[int]) -> dict[int, list[int]]:
        span_ms = BUCKETS_PER_SHARD * self.width_ms
        grouped: dict[int, list[int]] = {}
        for start_ms in starts:
            number = start_ms // span_ms
            if number in grouped:
                grouped[number].append(start_ms)
            else:
                grouped[number] = [start_ms]
        return grouped


@dataclass(frozen=True, slots=True)
class Shard:
    """The entries of up to 256 consecutive buckets, by bucket start. Absent means VACANT."""

    entries: Mapping[int, Entry] = field(default_factory=dict)
    encoded: dict[int, bytes] = field(default_factory=dict, compare=False, repr=False)
    """How its parts were written, remembered for whoever writes shards: most outlive a change elsewhere."""
    unencoded: set[int] = field(default_factory=set, compare=False, repr=False)
    """The buckets put since then. Without anything remembered, all are."""

    def get(self, start_ms: int) -> Entry | None:
        return self.entries.get(start_ms)

    def put(self, changed: Mapping[int, Entry]) -> "Shard":
        return Shard({**self.entries, **changed}, dict(self.encoded), self.unencoded | changed.keys())

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        return iter(sorted(self.entries.items()))


EMPTY_SHARD = Shard()
