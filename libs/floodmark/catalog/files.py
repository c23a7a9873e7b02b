"""The files that make up a view at one moment."""

from dataclasses import dataclass

from floodmark.core.buckets import Entry, State
from floodmark.ledger.ledger import Ledger
from floodmark.sql.meaning import is_outdated


@dataclass(frozen=True, slots=True)
class CurrentFile:
    path: str
    bucket_ms: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CurrentFiles:
    """The files of VALID buckets, in order of time, and the buckets that have an entry but are not VALID."""

    view: str
    location: str
    watermark_ms: int | None
    files: tuple[CurrentFile, ...]
    left_out_ms: tuple[int, ...]


def current_files(ledger: Ledger, view: str) -> CurrentFiles:
    state = ledger.views.state(view)
    location = state.header.definition.location.rstrip("/")
    entries = sorted(state.entries.items())
    outdated = is_outdated(state.header.definition)

    def is_current(entry: Entry) -> bool:
        same_definition = not outdated and entry.definition_hash == state.header.definition.hash
        return same_definition and entry.state is State.VALID

    return CurrentFiles(
        view=view,
        location=location,
        watermark_ms=state.header.watermark_ms,
        files=tuple(
            CurrentFile(f"{location}/{file.name}", start, file.rows, file.bytes)
            for start, entry in entries
            if is_current(entry)
            for file in entry.files
        ),
        left_out_ms=tuple(start for start, entry in entries if not is_current(entry)),
    )
