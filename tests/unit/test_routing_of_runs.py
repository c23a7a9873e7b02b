"""Which buckets of a long run a query takes for empty, and which it reads from the base table."""

from dataclasses import replace

import pytest

from floodmark.core.buckets import Cause, Shard
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval
from floodmark.core.runs import NO_RUNS, Run, Runs, empty_entry, stale
from floodmark.core.segments import Segment
from floodmark.core.tables import TableDefinition, ViewDefinition, ViewHeader
from floodmark.ledger import codec
from floodmark.query.bounds import EVER
from floodmark.query.plan import Why
from floodmark.query.registered import TableSnapshot
from floodmark.query.snapshots import ViewSnapshot
from tests.support.query_kit import snapshot_of

MINUTE_MS = 60_000
SHARD_MS = 256 * MINUTE_MS
LAST = 110_000
"""The run is the shards from 1 to here: more than fifty years."""
TABLE = TableDefinition("trips", "/lake/trips", "t")
HEADER = ViewHeader(ViewDefinition("v", "trips", "SELECT 1", "h1", MINUTE_MS, "/lake/v"), "i1", 0)
RUN = Run(1, LAST, empty_entry("h1", 5))
WHOLE = Interval(SHARD_MS, LAST * SHARD_MS)
MIDDLE_MS = 50_000 * SHARD_MS + 7 * MINUTE_MS + 3
EXTENT = Interval(0, WHOLE.end_ms + SHARD_MS)
CAUSE = Cause("event", "e1", 1)


def table(*times_ms: int | None) -> TableSnapshot:
    rows = [Segment(f"s{n}", 1, t, t, f"s{n}.parquet", 1, 1) for n, t in enumerate(times_ms)]
    return snapshot_of(TABLE, rows)


def view(run: Run = RUN, earlier: TableSnapshot | None = None) -> ViewSnapshot:
    return ViewSnapshot(HEADER, None, {}, runs=Runs((run,)), earlier=earlier)


@pytest.mark.scenario("K13")
def test_a_run_without_a_source_is_read_as_one_stretch() -> None:
    chosen = view().routes(table(0)).chosen(EVER)
    assert chosen.runs.intervals == (WHOLE,)
    assert (chosen.buckets, chosen.files) == ((LAST - 1) * 256, ())


@pytest.mark.scenario("K13")
def test_what_came_into_a_run_is_read_from_base_before_any_mark() -> None:
    """INV-12: exactly the buckets that a segment overlaps now."""
    routes = view().routes(table(0, MIDDLE_MS))
    bucket = HEADER.definition.grid.window(MIDDLE_MS // MINUTE_MS * MINUTE_MS)
    assert routes.chosen(EVER).runs.intervals == (
        Interval(WHOLE.start_ms, bucket.start_ms),
        Interval(bucket.end_ms, WHOLE.end_ms),
    )
    (told,) = routes.told([bucket], extent=EXTENT)
    assert (told.interval, told.why, told.buckets) == (bucket, Why.CHANGED_SINCE, 1)


@pytest.mark.scenario("K13")
def test_a_segment_without_times_may_have_rows_anywhere_in_a_run() -> None:
    assert not view().routes(table(0, None)).chosen(EVER).buckets


@pytest.mark.scenario("K13")
def test_a_stale_run_is_read_from_base_and_told_as_one_range() -> None:
    routes = view(stale(RUN, CAUSE)).routes(table(0))
    assert not routes.chosen(EVER).buckets
    (told,) = routes.told([WHOLE], extent=EXTENT)
    assert (told.interval, told.why, told.buckets, told.cause) == (WHOLE, Why.STALE, (LAST - 1) * 256, CAUSE)


@pytest.mark.scenario("K13")
def test_a_run_of_another_definition_is_not_trusted() -> None:
    other = replace(RUN, entry=replace(RUN.entry, definition_hash="h0"))
    assert not view(other).routes(table(0)).chosen(EVER).buckets


@pytest.mark.scenario("K13")
def test_an_earlier_registry_may_be_answered_from_unless_a_person_asked() -> None:
    """`bounded`: the change may be missing. Who asked for a rebuild does not trust what is there."""
    now, before = table(0, MIDDLE_MS), table(0)
    assert view(stale(RUN, CAUSE), before).routes(now).chosen(EVER).runs.intervals == (WHOLE,)
    assert not view(stale(RUN, Cause("refresh", "p", 1)), before).routes(now).chosen(EVER).buckets


@pytest.mark.scenario("K13")
def test_a_query_that_cuts_a_bucket_of_a_run_reads_whole_buckets_only() -> None:
    inner = Interval(MIDDLE_MS, MIDDLE_MS + 10 * MINUTE_MS)
    routes = view().routes(table(0))
    first_ms = MIDDLE_MS // MINUTE_MS * MINUTE_MS + MINUTE_MS
    assert routes.chosen(inner).runs.intervals == (Interval(first_ms, first_ms + 9 * MINUTE_MS),)
    told = routes.told([Interval(inner.start_ms, first_ms)], extent=EXTENT)
    assert [(t.why, t.buckets) for t in told] == [(Why.NOT_ALIGNED, 1)]


@pytest.mark.scenario("K13")
def test_runs_are_read_as_they_were_written_and_garbage_is_refused() -> None:
    runs = Runs((Run(-9, -4, RUN.entry), Run(1, 5, stale(RUN, CAUSE).entry), Run(7, 10**9, RUN.entry)))
    data = codec.encode_runs(runs)
    assert codec.decode_runs(data, what="runs") == runs
    assert (codec.encode_runs(NO_RUNS), codec.decode_runs(b"", what="runs")) == (b"", NO_RUNS)
    for garbage in (b"\x09", b"\x02x", codec.pack([1]), codec.pack({"runs": [[0, 0, 0]], "entries": []})):
        with pytest.raises(InvalidInput, match="runs"):
            codec.decode_runs(garbage, what="runs")


@pytest.mark.scenario("K13")
def test_a_shard_with_a_node_is_not_taken_from_a_run_as_well() -> None:
    left = Runs((RUN,)).put([Run(5, 6, stale(RUN, CAUSE).entry)])
    assert [(run.first, run.end) for run in left] == [(1, 5), (5, 6), (6, LAST)]
    assert list(left.put([Run(5, 6, RUN.entry)])) == [RUN]
    assert Shard(dict(RUN.shard(3, HEADER.definition.grid).entries)).get(3 * SHARD_MS) == RUN.entry
