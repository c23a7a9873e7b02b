"""Export and import of a view's state as JSON, for backups, moves and a look from outside. Format: docs/ledger.md.

An export says what was true of its source then. An import therefore brings every entry in as STALE, cause `import`:
nothing is VALID until a revert finds, in its own write, that the live source is the one the bucket was built from.
A revert does not look at files. So an entry whose files are not all there any more comes in as one that was never
built, and can only be built again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

from floodmark.core.buckets import BucketGrid, Cause, DataFile, Entry, State, synthesized
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import Fingerprint
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.runs import Run, Runs, whole_shards
from floodmark.core.tables import MEANING, CoverageMode, ViewDefinition, ViewHeader, ViewStatus
from floodmark.ledger.ledger import Ledger

FORMAT = "floodmark-view-state"
VERSION = 2
"""2: the view's query may mean what versions before would not build, as in format 4 of nodes."""

Hash = Annotated[int, PlainSerializer(str, return_type=str)]
"""As a decimal string: many JSON tools read numbers as doubles and would round it."""


class _Part(BaseModel):
    # Unknown fields are left alone, so that an export of a later minor change still reads.
    model_config = ConfigDict(frozen=True, extra="ignore")


class FilePart(_Part):
    name: str = Field(min_length=1)
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)


class FingerprintPart(_Part):
    count: int
    hash: Hash

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        self.value()
        return self

    def value(self) -> Fingerprint:
        try:
            return Fingerprint(self.count, self.hash)
        except InvalidInput as refusal:
            raise ValueError(str(refusal)) from refusal  # pydantic adds the field to a ValueError only


class CausePart(_Part):
    kind: str
    event_id: str
    marked_at_ms: int
    place: str
    segments: tuple[str, ...]
    trace_id: str = ""


class RunPart(_Part):
    """`count` neighbouring buckets with one and the same entry."""

    start_ms: int
    count: int = Field(ge=1, le=100_000_000)
    state: State
    fingerprint: FingerprintPart | None
    slice_versions: Mapping[str, int]
    files: tuple[FilePart, ...]
    attempt_id: str
    definition_hash: str
    refreshed_at_ms: int
    cause: CausePart | None

    @model_validator(mode="after")
    def _is_built_or_stale(self) -> Self:
        if self.state is State.VALID and self.fingerprint is None:
            raise ValueError("a VALID bucket needs a fingerprint")
        return self


class ViewPart(_Part):
    name: str
    table: str
    select: str
    hash: str
    bucket_ms: int
    location: str
    coverage: CoverageMode
    properties: Mapping[str, str]
    meaning: int = Field(default=0, ge=0, le=MEANING)


class Export(_Part):
    """A whole view. Buckets are in order and do not overlap."""

    format: Literal["floodmark-view-state"]
    version: int
    exported_at_ms: int
    incarnation: str
    status: ViewStatus
    view: ViewPart
    coverage_start_ms: int | None
    watermark_ms: int | None
    buckets: tuple[RunPart, ...]


# -- out -----------------------------------------------------------------------------------------------------------


def export_view(ledger: Ledger, view: str, *, now_ms: int) -> Export:
    """The state of a view as it is now."""
    state = ledger.views.state(view)
    header = state.header
    if header.status is ViewStatus.DROPPING:
        raise InvalidInput("unknown-view", f"view {view!r} is being dropped")
    d = header.definition
    return Export(
        format=FORMAT,
        version=2 if d.meaning else 1,
        exported_at_ms=now_ms,
        incarnation=header.incarnation,
        status=header.status,
        view=ViewPart(
            name=d.name,
            table=d.table,
            select=d.select,
            hash=d.hash,
            bucket_ms=d.bucket_ms,
            location=d.location,
            coverage=d.coverage,
            properties=dict(d.properties),
            meaning=d.meaning,
        ),
        coverage_start_ms=header.coverage_start_ms,
        watermark_ms=header.watermark_ms,
        buckets=tuple(run_part(*run) for run in state.stretches()),
    )


def run_part(start_ms: int, count: int, entry: Entry) -> RunPart:
    mark = entry.cause
    return RunPart(
        start_ms=start_ms,
        count=count,
        state=entry.state,
        fingerprint=entry.fingerprint and FingerprintPart(count=entry.fingerprint.count, hash=entry.fingerprint.hash),
        slice_versions=dict(entry.slice_versions),
        files=tuple(FilePart(name=f.name, rows=f.rows, bytes=f.bytes) for f in entry.files),
        attempt_id=entry.attempt_id,
        definition_hash=entry.definition_hash,
        refreshed_at_ms=entry.refreshed_at_ms,
        cause=mark
        and CausePart(
            kind=mark.kind,
            event_id=mark.event_id,
            marked_at_ms=mark.marked_at_ms,
            place=mark.place,
            segments=mark.segments,
            trace_id=mark.trace_id,
        ),
    )


# -- in ------------------------------------------------------------------------------------------------------------


def parse(text: str | bytes, *, what: str) -> Export:
    """Read an export, or say which field of `what` is wrong. A newer version is refused before its fields are read."""
    try:
        export = Export.model_validate_json(text)
    except ValidationError as error:
        version = _version_in(text)
        if version is not None and version > VERSION:
            raise _too_new(what, version) from error
        lines = [f"{'.'.join(str(part) for part in e['loc']) or 'the file'}: {e['msg']}" for e in error.errors()[:5]]
        raise InvalidInput("import-format", f"{what} is no export of a view: {'; '.join(lines)}") from error
    if export.version > VERSION:
        raise _too_new(what, export.version)
    return export


def _too_new(what: str, version: int) -> InvalidInput:
    known = f"this version of floodmark knows {VERSION} and older"
    return InvalidInput("import-format", f"{what} has version {version} of the export format, {known}")


class _Versioned(_Part):
    version: int


def _version_in(text: str | bytes) -> int | None:
    try:
        return _Versioned.model_validate_json(text).version
    except ValidationError:
        return None


class FilesThere(Protocol):
    """What lies at the location of the view that is imported."""

    def overlaps(self, location: str) -> bool:
        """Whether files of this other location may lie there too."""

    def missing(self, files: Sequence[DataFile], /) -> Collection[str]:
        """The names of those that are not there, or have another size."""


def import_view(ledger: Ledger, export: Export, *, now_ms: int, files: FilesThere) -> ViewHeader:
    """Create the view anew, every entry STALE. Others see nothing of it, or all of it."""
    definition = ViewDefinition(**_fields(export.view))
    ledger.registry.header(definition.table)  # an unknown table is refused here
    cause = Cause("import", export.incarnation, now_ms)
    entries, runs = _stale_entries(export, definition.grid, cause)
    _check_coverage(export, definition)
    header = ViewHeader(
        definition=definition,
        incarnation=export.incarnation,
        created_at_ms=now_ms,
        coverage_start_ms=export.coverage_start_ms,
        watermark_ms=export.watermark_ms,
        status=ViewStatus.PAUSED if export.status is ViewStatus.PAUSED else ViewStatus.ACTIVE,
    )
    return ledger.views.restore(
        header, entries, runs, verified=lambda entries: _with_files(entries, files, cause), is_here=files.overlaps
    )


def _with_files(entries: Mapping[int, Entry], there: FilesThere, cause: Cause) -> dict[int, Entry]:
    """The entries as they are, but for those that name a file that is gone: they are as if never built (INV-11)."""
    named = {file.name: file for entry in entries.values() for file in entry.files}
    missing = frozenset(there.missing(list(named.values())))
    return {s: synthesized(cause) if any(f.name in missing for f in e.files) else e for s, e in entries.items()}


def _fields(part: ViewPart) -> dict[str, Any]:
    return {name: getattr(part, name) for name in ViewPart.model_fields}


def _stale_entries(export: Export, grid: BucketGrid, cause: Cause) -> tuple[dict[int, Entry], Runs]:
    """The entries by bucket, and those of long stretches as runs."""
    entries: dict[int, Entry] = {}
    long: list[Run] = []
    free_from_ms: int | None = None
    for run in export.buckets:
        window = grid.window(run.start_ms)  # refuses a start that is none
        if free_from_ms is not None and window.start_ms < free_from_ms:
            raise InvalidInput(
                "import-buckets", f"bucket {run.start_ms} of {export.view.name} stands twice or unsorted"
            )
        free_from_ms = run.start_ms + run.count * grid.width_ms
        entry, whole = _stale_entry(run, cause), _window(run, grid)
        shards = IntervalSet() if run.files else whole_shards(whole, grid)
        long += (Run(part.start_ms, part.end_ms, entry) for part in shards)
        listed = IntervalSet.of(Interval(grid.shard_start(p.start_ms), grid.shard_start(p.end_ms)) for p in shards)
        for part in listed.gaps(whole):
            entries |= dict.fromkeys(grid.starts_in(part), entry)
    return entries, Runs().put(long)


def _window(run: RunPart, grid: BucketGrid) -> Interval:
    return Interval(run.start_ms, run.start_ms + run.count * grid.width_ms)


def _stale_entry(run: RunPart, cause: Cause) -> Entry:
    """As it was built, but assumed not to match. The slice versions are another registry's, so they are dropped."""
    if run.fingerprint is None:
        return synthesized(cause)
    built = Entry(
        state=State.STALE,
        ever_valid=True,
        fingerprint=run.fingerprint.value(),
        files=tuple(DataFile(f.name, f.rows, f.bytes) for f in run.files),
        attempt_id=run.attempt_id,
        definition_hash=run.definition_hash,
        refreshed_at_ms=run.refreshed_at_ms,
    )
    return replace(built, cause=cause)


def _check_coverage(export: Export, definition: ViewDefinition) -> None:
    """Below the watermark, within coverage, no bucket is VACANT (INV-5)."""
    name, start_ms, watermark_ms = definition.name, export.coverage_start_ms, export.watermark_ms
    if start_ms is None or watermark_ms is None:
        if start_ms != watermark_ms:
            raise InvalidInput("import-coverage", f"{name} has a coverage start or a watermark without the other")
        return
    if start_ms > watermark_ms or start_ms % definition.bucket_ms or watermark_ms % definition.bucket_ms:
        raise InvalidInput(
            "import-coverage",
            f"coverage [{start_ms}, {watermark_ms}) of {name} must be whole buckets of {definition.bucket_ms} ms",
        )
    if start_ms == watermark_ms:
        return
    listed = IntervalSet.of(_window(run, definition.grid) for run in export.buckets)
    vacant = next(listed.gaps(Interval(start_ms, watermark_ms)), None)
    if vacant is not None:
        raise InvalidInput(
            "import-coverage", f"{name} has no bucket {vacant.start_ms}, though its coverage includes it"
        )
