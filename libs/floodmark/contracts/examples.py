"""The golden examples: a few messages of each kind, the ordinary one and the edges.

They are written to `schemas/` once and must decode to these messages for ever. To show something new, add an example.
"""

from dataclasses import dataclass

from floodmark.contracts.envelope import Envelope, caused_by, originate
from floodmark.contracts.messages import (
    BucketBuilt,
    BuildBucket,
    BuildError,
    Message,
    RecordRefused,
    RefusedHeader,
    SegmentAnnounced,
    SegmentChange,
    SegmentMetadata,
    SegmentsChanged,
    SourceFingerprint,
    TimeRange,
)
from floodmark.core.bounds import INT64_MAX, INT64_MIN, TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.fingerprint import EMPTY_HASH

_T0_MS = 1_751_328_000_000  # 2025-07-01T00:00:00Z
_HOUR_MS = 3_600_000
_WEEK_MS = 168 * _HOUR_MS
_FIRST_WEEK_MS = TIME_MIN_MS // _WEEK_MS * _WEEK_MS  # begins four days before the year 1
_MIDNIGHT = TimeRange(start_ms=_T0_MS, end_ms=_T0_MS + _HOUR_MS)
_ONE = TimeRange(start_ms=_T0_MS + _HOUR_MS, end_ms=_T0_MS + 2 * _HOUR_MS)


@dataclass(frozen=True, slots=True)
class Example:
    """`by_hand` is written as a person with kcat would: no headers, nothing that may be left out."""

    name: str
    envelope: Envelope
    by_hand: bool = False


def _example(name: str, message: Message, *, by_hand: bool = False, cause: Envelope | None = None) -> Example:
    event_id, source = f"example-{name}", "floodmark/examples"
    if cause is None:
        envelope = originate(message, event_id=event_id, source=source, time_ms=_T0_MS)
    else:
        envelope = caused_by(cause, message, event_id=event_id, source=source, time_ms=_T0_MS + 250)
    return Example(name, envelope, by_hand)


_ADDED = _example(
    "add",
    SegmentAnnounced(
        table="trips",
        action="add",
        path="day=2025-07-01/part-0.parquet",
        name="trips-2025-07-01-0",
        metadata=SegmentMetadata(
            start_ms=_T0_MS, last_ms=_T0_MS + _HOUR_MS - 1, rows=300_000, bytes=7_340_032, crc=-8113543210987654321
        ),
    ),
)

_ANNOUNCEMENTS = (
    _ADDED,
    _example(
        "add-by-hand", SegmentAnnounced(table="trips", action="add", path="day=2025-07-01/part-1.parquet"), by_hand=True
    ),
    _example(
        "replace-absolute-uri",
        SegmentAnnounced(table="trips", action="replace", path="s3a://lake/trips/día=1/part-0.parquet"),
    ),
    _example(
        "add-without-times",
        SegmentAnnounced(table="t", action="add", path="a", metadata=SegmentMetadata(rows=0, crc=INT64_MIN)),
    ),
    _example("delete-by-name", SegmentAnnounced(table="trips", action="delete", name="trips-2025-07-01-0")),
)


def _changed(name: str, *changes: SegmentChange, cause: Envelope | None = None) -> Example:
    message = SegmentsChanged(
        event_id=f"trips-{name}", table="trips", registry_version=42, registered_at_ms=_T0_MS + 200, changes=changes
    )
    return _example(name, message, cause=cause)


_SEGMENTS = (
    _changed(
        "added",
        SegmentChange(action="added", name="trips-2025-07-01-0", crc=-8113543210987654321, ranges=(_MIDNIGHT,)),
        cause=_ADDED.envelope,
    ),
    _changed(
        "moved", SegmentChange(action="replaced", name="trips-2025-07-01-0", crc=INT64_MAX, ranges=(_MIDNIGHT, _ONE))
    ),
    _changed(
        "whole-table-and-last-instant",
        SegmentChange(action="deleted", name="sans-dates-é", crc=None, ranges=None),
        SegmentChange(
            action="added", name="far", crc=0, ranges=(TimeRange(start_ms=TIME_MAX_MS - 1, end_ms=TIME_MAX_MS),)
        ),
    ),
)

_TASKS = (
    _example(
        "append",
        BuildBucket(
            task_id="trips_hourly-append-1",
            view="trips_hourly",
            incarnation="7f3a",
            bucket_start_ms=_T0_MS,
            bucket_end_ms=_T0_MS + _HOUR_MS,
            mode="APPEND",
            lane="live",
            fingerprint=SourceFingerprint(count=2, hash=4839201748392017483),
            slice_versions={str(_T0_MS): 3, "wide": 0},
            definition_hash="sha256:9b1c",
            dispatched_at_ms=_T0_MS + 300,
            dispatch_try=1,
        ),
        cause=_ADDED.envelope,
    ),
    _example(
        "delete-before-1970",
        BuildBucket(
            task_id="trips_hourly-delete-1",
            view="trips_hourly",
            incarnation="7f3a",
            bucket_start_ms=-_HOUR_MS,
            bucket_end_ms=0,
            mode="DELETE",
            lane="backfill",
            fingerprint=SourceFingerprint(count=0, hash=EMPTY_HASH),
            slice_versions={"-86400000": 7},
            definition_hash="sha256:9b1c",
            dispatched_at_ms=_T0_MS + 300,
            dispatch_try=4,
        ),
    ),
    _example(
        "append-before-year-1",
        BuildBucket(
            task_id="trips_weekly-append-1",
            view="trips_weekly",
            incarnation="7f3a",
            bucket_start_ms=_FIRST_WEEK_MS,
            bucket_end_ms=_FIRST_WEEK_MS + _WEEK_MS,
            mode="APPEND",
            lane="backfill",
            fingerprint=SourceFingerprint(count=1, hash=4839201748392017483),
            slice_versions={str(TIME_MIN_MS): 1, "wide": 0},
            definition_hash="sha256:9b1c",
            dispatched_at_ms=_T0_MS + 300,
            dispatch_try=1,
        ),
    ),
)


def _built(name: str, **fields: object) -> Example:
    ordinary = {
        "task_id": "trips_hourly-append-1",
        "attempt_id": "attempt-1",
        "view": "trips_hourly",
        "incarnation": "7f3a",
        "bucket_start_ms": _T0_MS,
        "mode": "APPEND",
        "rows_read": 0,
        "rows_written": 0,
        "bytes_written": 0,
        "duration_ms": 12,
    }
    return _example(name, BucketBuilt.model_validate(ordinary | fields))


_RESULTS = (
    _built("committed", outcome="committed", rows_read=600_000, rows_written=24, bytes_written=4_096, duration_ms=150),
    _built("committed-before-year-1", bucket_start_ms=_FIRST_WEEK_MS, outcome="committed", rows_read=1, rows_written=1),
    _built("covered", outcome="covered", reason="the bucket was made VALID by attempt-0"),
    _built(
        "frozen",
        outcome="frozen",
        reason="an input is missing",
        error=BuildError(rule="input-missing", message="no such file", object="s3a://lake/trips/part-0.parquet"),
    ),
)


def _refused(name: str, **fields: object) -> Example:
    ordinary = {
        "topic": "announcements.v1",
        "partition": 3,
        "offset": 17,
        "service": "ingester",
        "replica": "ingester-0",
        "refused_at_ms": _T0_MS + 5,
    }
    return _example(name, RecordRefused.model_validate(ordinary | fields))


_DEADLETTERS = (
    _refused(
        "not-json",
        key=b"trips",
        value=b"{oops",
        headers=(RefusedHeader(name="ce_id", value=b"\xff\x00"), RefusedHeader(name="empty", value=None)),
        rule="not-json",
        reason="not-json: record announcements.v1/3/17: Invalid JSON: key must be a string at line 1 column 2",
    ),
    _refused(
        "tombstone",
        key=None,
        value=None,
        headers=None,
        rule="value-missing",
        reason="value-missing: record announcements.v1/3/17 has no value",
    ),
)

ALL_EXAMPLES = (*_ANNOUNCEMENTS, *_SEGMENTS, *_TASKS, *_RESULTS, *_DEADLETTERS)
