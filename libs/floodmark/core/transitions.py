"""Every change of a bucket's state, as a pure decision. These functions are the whole state machine (INV-1).

A decision sees one entry and what was read with it, in the same attempt. Strict ones (append, refresh, clear) know
their own landed write by its attempt id and reject every other mismatch; lenient ones (revert, mark) just leave alone
what does not fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from floodmark.core.buckets import Cause, DataFile, Entry, State, synthesized
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import EMPTY, Fingerprint


class Mode(StrEnum):
    APPEND = "APPEND"
    OVERWRITE = "OVERWRITE"
    DELETE = "DELETE"


class Reason(StrEnum):
    """Why a strict operation was rejected."""

    NOT_VACANT = "another attempt already built this bucket"
    NOT_STALE = "this bucket is VALID by another attempt"
    VACANT = "this bucket has no entry to refresh"
    SUPERSEDED = "the source changed since this attempt read it"
    SOURCE_NOT_EMPTY = "the source is not empty"
    BEYOND_SOURCE = "this bucket ends after the source's last instant"
    NOT_COVERED = "the view's coverage has not begun"
    DROPPED = "the view was dropped or replaced"
    TOO_LARGE = "its commit is larger than a write may be"
    HOLD_LOST = "this attempt's hold ran out, so what it read and wrote may be gone"


@dataclass(frozen=True, slots=True)
class Changed:
    entry: Entry


@dataclass(frozen=True, slots=True)
class AlreadyTrue:
    """Nothing to write: the effect is there, by this very attempt where that matters."""


@dataclass(frozen=True, slots=True)
class Rejected:
    reason: Reason
    found: Entry | None = None
    detail: str = ""


Decision = Changed | AlreadyTrue | Rejected

_APPEND, _STALE = Mode.APPEND, State.STALE
"""A member is found on its enum in the time of a whole decision, and a commit decides on many."""


@dataclass(frozen=True, slots=True)
class Build:
    """What one attempt made of one bucket, and the exact source it read."""

    start_ms: int
    mode: Mode
    attempt_id: str
    fingerprint: Fingerprint
    slice_versions: Mapping[str, int]
    definition_hash: str
    built_at_ms: int
    files: tuple[DataFile, ...] = ()
    change: Changed = field(init=False, compare=False, repr=False)
    """What it makes of its bucket. Made with the build, because a commit, for which others wait, decides on many."""

    def __post_init__(self) -> None:
        if not self.attempt_id:
            raise InvalidInput("attempt-id", f"the build of bucket {self.start_ms} has no attempt id")
        if self.mode is Mode.DELETE and (self.fingerprint != EMPTY or self.files):
            raise InvalidInput("delete-not-empty", f"a DELETE of bucket {self.start_ms} has no source and no files")
        if self.fingerprint.is_empty and self.files:
            raise InvalidInput(
                "empty-with-files", f"bucket {self.start_ms} has an empty source but {len(self.files)} files"
            )
        entry = Entry(
            state=State.VALID,
            ever_valid=True,
            fingerprint=self.fingerprint,
            slice_versions=self.slice_versions,
            files=self.files,
            attempt_id=self.attempt_id,
            definition_hash=self.definition_hash,
            refreshed_at_ms=self.built_at_ms,
        )
        object.__setattr__(self, "change", Changed(entry))


@dataclass(frozen=True, slots=True)
class Source:
    """The live source of a bucket: its fingerprint, and the slice versions it was read at."""

    fingerprint: Fingerprint
    slice_versions: Mapping[str, int]


def commit(entry: Entry | None, build: Build, live: Source | Build) -> Decision:
    """Make a bucket VALID from a finished build. The write must check `live.slice_versions` (INV-3, INV-4), which is
    why a build may be taken for its own live source.

    SUBTLE: our own landed write is looked for first. After a lost answer the entry may be STALE again, or the source
    may have moved on; the write happened all the same, and its files must be kept.
    """
    if entry is not None and entry.attempt_id == build.attempt_id:
        return AlreadyTrue()
    if build.mode is _APPEND:
        if entry is not None:
            return Rejected(Reason.NOT_VACANT, entry)
    elif entry is None or entry.state is not _STALE:
        return Rejected(Reason.VACANT if entry is None else Reason.NOT_STALE, entry)
    if live is build:
        return build.change
    if live.fingerprint != build.fingerprint:
        return Rejected(Reason.SOURCE_NOT_EMPTY if build.mode is Mode.DELETE else Reason.SUPERSEDED, entry)
    return Changed(replace(build.change.entry, slice_versions=live.slice_versions))


def revert(entry: Entry | None, live: Source, *, definition_hash: str) -> Decision:
    """STALE -> VALID when source and definition are what the bucket was built from. The write must check the slices
    (INV-3)."""
    if entry is None or entry.state is State.VALID or not entry.is_built_from(live.fingerprint, definition_hash):
        return AlreadyTrue()
    return Changed(entry.reverted(live.slice_versions))


def mark_stale(entry: Entry | None, *, in_coverage: bool, cause: Cause) -> Decision:
    """VALID -> STALE; VACANT inside coverage -> STALE, so that it is looked at (INV-6); STALE keeps its first cause."""
    if entry is None:
        return Changed(synthesized(cause)) if in_coverage else AlreadyTrue()
    return Changed(entry.stale(cause)) if entry.state is State.VALID else AlreadyTrue()
