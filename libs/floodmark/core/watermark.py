"""The watermark: how far a view reaches without a gap.

It is the end of the contiguous run of buckets that have ever been VALID. It never moves backwards, so it is computed
forwards from where it stands: everything below it already has an entry. STALE buckets below do not lower it; queries
take those from the base table.

Two writers near the frontier could each leave it to the other to move it, if the buckets they write lie in different
shards. So a write that moves the watermark checks every shard it looked into, and a write that may turn out to be
next in line checks the header (`depends_on_header`). See docs/adr/0003.
"""

from collections.abc import Callable

from floodmark.core.buckets import BucketGrid, Entry, Shard

EntryAt = Callable[[int], Entry | None]
StretchEnd = Callable[[int], int]
"""Where a stretch of once-valid buckets that is known as a whole ends, for its first bucket; else the bucket itself."""


def advanced(
    watermark_ms: int, grid: BucketGrid, entry_at: EntryAt, stretch_end: StretchEnd = lambda start_ms: start_ms
) -> int:
    """The watermark after the once-valid buckets that begin at it without a gap."""
    while True:
        if (end_ms := stretch_end(watermark_ms)) > watermark_ms:
            watermark_ms = end_ms
        elif (entry := entry_at(watermark_ms)) is not None and entry.ever_valid:
            watermark_ms += grid.width_ms
        else:
            return watermark_ms


def depends_on_header(start_ms: int, *, watermark_ms: int, grid: BucketGrid, shard: Shard) -> bool:
    """Whether a write of this bucket must check the watermark it was decided against, though it does not move it.

    The watermark can come to stand at this bucket without a write to this bucket's shard only if it enters the shard
    from the left and every bucket before this one is already there.
    """
    number = grid.shard_of(start_ms)
    if start_ms < watermark_ms or number == grid.shard_of(watermark_ms):
        return False  # already below it, or the shard's own version guards the frontier
    before = range(grid.shard_start(number), start_ms, grid.width_ms)
    return all((entry := shard.get(s)) is not None and entry.ever_valid for s in before)
