"""The messages between services, one frozen model for each kind.

A kind ends in its version. Readers ignore fields they do not know, so a field with a default may be added; any other
change is a new kind, and the golden examples of the old one must still decode. Docstrings here become the
descriptions in `schemas/`.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from floodmark.contracts.fields import (
    CHANGES_MAX,
    BucketTimeMs,
    Count,
    Id,
    Int64,
    Name,
    ObjectName,
    Positive,
    RawBytes,
    Reason,
    SegmentName,
    SegmentPath,
    SliceVersions,
    TimeMs,
    TraceId,
)
from floodmark.core.fingerprint import EMPTY_HASH

Mode = Literal["APPEND", "OVERWRITE", "DELETE"]
Lane = Literal["live", "repair", "backfill"]
Outcome = Literal["committed", "covered", "superseded", "frozen", "failed"]


def _require_kind(schema: dict[str, Any]) -> None:
    """In Python a message knows its kind; on the wire it must be said."""
    schema["required"] = sorted({"kind", *schema.get("required", ())})


class Part(BaseModel):
    """Something inside a message."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, use_attribute_docstrings=True)


class Message(Part):
    """A value that travels on a topic."""

    model_config = ConfigDict(json_schema_extra=_require_kind)

    kind: str

    @classmethod
    def kind_name(cls) -> str:
        return str(cls.model_fields["kind"].default)


class TimeRange(Part):
    """The half-open range `[start_ms, end_ms)`."""

    start_ms: TimeMs
    end_ms: TimeMs

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.end_ms <= self.start_ms:
            raise ValueError(f"end_ms must be after start_ms, got [{self.start_ms}, {self.end_ms})")
        return self


class SegmentMetadata(Part):
    """What the announcer knows about the file. The ingester checks it against the file; times come as a pair."""

    start_ms: TimeMs | None = None
    last_ms: TimeMs | None = None
    """The last instant in the data, inclusive."""
    rows: Count | None = None
    bytes: Count | None = None
    crc: Int64 | None = None

    @model_validator(mode="after")
    def _has_both_times_in_order(self) -> Self:
        if (self.start_ms is None) != (self.last_ms is None):
            raise ValueError("start_ms and last_ms must be given together")
        if self.start_ms is not None and self.last_ms is not None and self.last_ms < self.start_ms:
            raise ValueError(f"last_ms must not be before start_ms, got {self.last_ms} and {self.start_ms}")
        return self


class SegmentAnnounced(Message):
    """A producer says that a file of a base table appeared, was replaced, or is to be forgotten."""

    kind: Literal["segment-announced.v1"] = "segment-announced.v1"
    table: Name
    action: Literal["add", "replace", "delete"]
    path: SegmentPath | None = None
    """Relative to the table's location, or an absolute URI. A delete may give the name instead."""
    name: SegmentName | None = None
    """Derived from the path when absent."""
    metadata: SegmentMetadata | None = None
    only_if_absent: bool = False
    """Of a delete: forget the segment only if its file is not there. What was found gone may have come back since."""

    @model_validator(mode="after")
    def _names_its_segment(self) -> Self:
        if self.action != "delete" and self.path is None:
            raise ValueError(f"path must be given with action {self.action!r}")
        if self.path is None and self.name is None:
            raise ValueError("path or name must be given with action 'delete'")
        return self


class SegmentChange(Part):
    """One segment of a registry change."""

    action: Literal["added", "replaced", "deleted"]
    name: SegmentName
    crc: Int64 | None
    """Of the content now registered; null exactly when deleted."""
    ranges: tuple[TimeRange, ...] | None = Field(min_length=1, max_length=2)
    """What the change affects: a moved segment has its old and its new range. Null means the whole table."""
    trace_id: TraceId | None = None
    """The trace of what reported this change, when the changes of one event come from several."""

    @model_validator(mode="after")
    def _has_a_crc_unless_deleted(self) -> Self:
        if (self.crc is None) != (self.action == "deleted"):
            raise ValueError(f"crc must be null exactly when action is 'deleted', got {self.crc} with {self.action!r}")
        return self


class SegmentsChanged(Message):
    """The registry of a table changed. Published after the change; may be repeated."""

    kind: Literal["segments-changed.v1"] = "segments-changed.v1"
    event_id: Id
    table: Name
    registry_version: Count
    registered_at_ms: TimeMs
    changes: tuple[SegmentChange, ...] = Field(min_length=1, max_length=CHANGES_MAX)


class SourceFingerprint(Part):
    """The source of one bucket: how many segments, and the hash over them."""

    count: Count
    hash: Int64

    @model_validator(mode="after")
    def _is_empty_in_one_way(self) -> Self:
        if self.count == 0 and self.hash != EMPTY_HASH:
            raise ValueError(f"hash must be {EMPTY_HASH} when count is 0, got {self.hash}")
        return self


class BuildBucket(Message):
    """Build one bucket of a view from exactly this input, or report that the input has changed."""

    kind: Literal["build-bucket.v1"] = "build-bucket.v1"
    task_id: Id
    view: Name
    incarnation: Id
    bucket_start_ms: BucketTimeMs
    bucket_end_ms: BucketTimeMs
    mode: Mode
    lane: Lane
    fingerprint: SourceFingerprint
    slice_versions: SliceVersions
    """Registry slice (its start in ms, or "wide") to the version at which the fingerprint was read. "@" and a number
    follow the slice of a table that was created after others of its name were dropped."""
    definition_hash: Id
    dispatched_at_ms: TimeMs
    dispatch_try: Positive

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.bucket_end_ms <= self.bucket_start_ms:
            span = f"[{self.bucket_start_ms}, {self.bucket_end_ms})"
            raise ValueError(f"bucket_end_ms must be after bucket_start_ms, got {span}")
        if self.mode == "DELETE" and self.fingerprint.count > 0:
            raise ValueError(f"fingerprint.count must be 0 with mode 'DELETE', got {self.fingerprint.count}")
        return self


class BuildError(Part):
    """Why a bucket could not be built."""

    rule: Id
    message: Reason
    object: ObjectName
    """The file, bucket or server it happened to."""


class BucketBuilt(Message):
    """How one attempt at a task ended."""

    kind: Literal["bucket-built.v1"] = "bucket-built.v1"
    task_id: Id
    attempt_id: Id
    view: Name
    incarnation: Id
    bucket_start_ms: BucketTimeMs
    mode: Mode
    outcome: Outcome
    reason: Reason | None = None
    rows_read: Count
    rows_written: Count
    bytes_written: Count
    duration_ms: Count
    error: BuildError | None = None
    """Present exactly when the outcome is frozen or failed."""

    @model_validator(mode="after")
    def _explains_a_bad_outcome(self) -> Self:
        if (self.error is not None) != (self.outcome in ("frozen", "failed")):
            stated = "present" if self.error else "absent"
            raise ValueError(
                f"error must be present exactly when outcome is frozen or failed, got {stated} with {self.outcome!r}"
            )
        return self


class RefusedHeader(Part):
    """One header of a refused record. Order and repetitions are kept."""

    name: str
    value: RawBytes | None


class RecordRefused(Message):
    """A record that can never be handled, with its original bytes and the rule it breaks."""

    kind: Literal["record-refused.v1"] = "record-refused.v1"
    topic: Id
    partition: Count
    offset: Count
    key: RawBytes | None
    value: RawBytes | None
    headers: tuple[RefusedHeader, ...] | None
    dropped_bytes: Count = 0
    """How much of an oversized original was left out; the whole of it is at topic, partition and offset."""
    rule: Id
    reason: Reason
    service: Id
    replica: Id
    refused_at_ms: TimeMs
